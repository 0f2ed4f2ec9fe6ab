#!/bin/bash
# offload.sh ORDO [STRATEGY...] - a model whose weights, gradients and AdamW state exceed the memory that the job may use.
#
# Two ranks run inside a memory cgroup (v1 or v2; where none can be made the benchmark is skipped: exit code 77): first without a limit, to see what the strategy takes in
# memory and how long a step is; then with a limit below the model's 16 bytes for each parameter, where it must fail; then with offload=disk
# under the same limit, where it must train. The steps' losses are compared, and the slowdown is printed.
set -eu
ordo=$1
shift
[ $# -gt 0 ] || set -- fsdp2
steps=${ORDO_BENCH_STEPS:-5} layers=${ORDO_BENCH_LAYERS:-16}
if [ -w /sys/fs/cgroup/memory ]; then base=/sys/fs/cgroup/memory limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes
elif [ -w /sys/fs/cgroup/cgroup.procs ] && grep -q memory /sys/fs/cgroup/cgroup.subtree_control; then base=/sys/fs/cgroup limit=memory.max peak=memory.peak
else echo "skipped: no memory cgroup can be made here"; exit 77
fi
if ! mkdir "$base/ordo-offload-$$-probe" 2>/dev/null || ! [ -w "$base/ordo-offload-$$-probe/$limit" ]; then
  rmdir "$base/ordo-offload-$$-probe" 2>/dev/null || true
  echo "skipped: no memory cgroup can be made in $base"; exit 77
fi
rmdir "$base/ordo-offload-$$-probe"
work=$(mktemp -d)
trap 'rm -rf "$work"; rmdir "$base"/ordo-offload-$$-* 2>/dev/null || true' EXIT
awk 'BEGIN {for (i = 0; i < 4097; i++) {t = (i * 2654435761) % 512; printf "\\x%02x\\x%02x\n", t % 256, int(t / 256)}}' | tr -d '\n' >"$work/escaped"
printf "$(cat "$work/escaped")" >"$work/tokens.bin"
parameters=$((512 * 512 + layers * (4 * 512 * 512 + 3 * 512 * 1408 + 2 * 512) + 512)) state=$((16 * parameters))

run() { # NAME STRATEGY LIMIT (0: none); leaves the peak in NAME.peak
  local group=$base/ordo-offload-$$-$1
  mkdir "$group"
  [ "$3" = 0 ] || echo "$3" >"$group/$limit"
  (echo $BASHPID >"$group/cgroup.procs"
    exec "$ordo" train --data.train "$work/tokens.bin" --data.format tokens16 --data.order sequential --model.layers "$layers" --model.hidden_size 512 \
      --model.intermediate_size 1408 --model.heads 8 --model.vocab_size 512 --train.seq_len 64 --train.batch 2 --steps "$steps" --checkpoint.save false \
      --log.progress none --log.peak false --ranks 2 --strategy "$2" --output "$work/$1" --overwrite >"$work/$1.log" 2>&1) && code=0 || code=$?
  cat "$group/$peak" >"$work/$1.peak" 2>/dev/null || echo 0 >"$work/$1.peak"
  rmdir "$group" 2>/dev/null || { sleep 1; rmdir "$group"; } # the next strategy makes it again
  return "$code"
}
losses() { sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }
median_step() { sed -n 's/.*"seconds":\([0-9.e-]*\),"tokens.*/\1/p' "$1/metrics.jsonl" | tail -n +3 | sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
mib() { echo $(($1 / 1048576)); }

failed=0 allowed=$((state * 7 / 10))
echo "limit: a memory cgroup ($base, $limit) of $(mib $allowed) MiB for both ranks together, mapped files included; the model needs $(mib $state) MiB of weights, gradients and AdamW state"
for strategy; do
  mkdir -p "$work/cold"
  run free "$strategy" 0 || { cat "$work/free.log"; exit 1; }
  if run tight "$strategy" "$allowed"; then echo "FAIL $strategy: trains in $(mib $allowed) MiB without offload"; failed=1; fi
  if ! run cold "$strategy:offload=disk:$work/cold" "$allowed"; then tail -5 "$work/cold.log"; echo "FAIL $strategy: offload=disk does not train in $(mib $allowed) MiB"; exit 1; fi
  [ "$(losses "$work/free")" = "$(losses "$work/cold")" ] || { echo "FAIL $strategy: offload changes the losses"; failed=1; }
  awk -v f="$(median_step "$work/free")" -v c="$(median_step "$work/cold")" -v name="$strategy" -v s="$(mib $state)" -v a="$(mib $allowed)" \
    -v pf="$(mib "$(cat "$work/free.peak")")" -v pc="$(mib "$(cat "$work/cold.peak")")" \
    'BEGIN {printf "%-8s weights, gradients and AdamW state %d MiB: took %d MiB without a limit, cannot train in %d; with offload=disk it does (peak %d), %.2f times the step (%.3f s)\n", name, s, pf, a, pc, c / f, c}'
  rm -rf "$work"/free "$work"/tight "$work"/cold
done
exit "$failed"
