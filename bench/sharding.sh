#!/bin/bash
# sharding.sh ORDO [STRATEGY:LIMIT...] - what a training step costs under each sharded strategy, against ddp in the same run.
#
# The reference case of scaling.sh on two ranks. The strategies take turns within a round, so that a machine that slows down slows all of them;
# a ratio is that of the medians of a strategy's steps after the first two of each run, over all rounds. With it: the most memory that parameters,
# gradients and optimizer state took on a rank, by the session's own account.
set -eu
ordo=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rounds=${ORDO_BENCH_ROUNDS:-5} steps=${ORDO_BENCH_STEPS:-8}
[ $# -gt 0 ] || set -- fsdp2@1.08 fsdp2:reshard_after_forward=false@1.05 fsdp1@1.08 fsdp1:sharding_strategy=SHARD_GRAD_OP@1.05
sequences=$((steps * 8 + 8))
awk -v n=$((sequences * 256 + 1)) 'BEGIN {for (i = 0; i < n; i++) {t = (i * 2654435761) % 4096; printf "\\x%02x\\x%02x\n", t % 256, int(t / 256)}}' |
  tr -d '\n' >"$work/escaped"
printf "$(cat "$work/escaped")" >"$work/tokens.bin"

run() { # NAME STRATEGY
  "$ordo" train --data.train "$work/tokens.bin" --data.format tokens16 --data.order sequential --model.layers 8 --model.hidden_size 512 \
    --model.intermediate_size 1408 --model.heads 8 --model.vocab_size 4096 --train.seq_len 256 --steps "$steps" --checkpoint.save false \
    --log.progress none --log.peak false --ranks 2 --strategy "$2" --train.batch 8 --output "$work/run" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  sed -n 's/.*"seconds":\([0-9.e-]*\),"tokens.*/\1/p' "$work/run/metrics.jsonl" | tail -n +3 >>"$work/$1"
  rm -rf "$work/run"
}
median() { sort -g "$1" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

for round in $(seq "$rounds"); do
  run ddp ddp
  i=0
  for row; do i=$((i + 1)); run "$i" "${row%@*}"; done
done
ddp=$(median "$work/ddp") i=0 failed=0
for row; do
  i=$((i + 1))
  awk -v s="$(median "$work/$i")" -v d="$ddp" -v name="${row%@*}" -v limit="${row##*@}" -v rounds="$rounds" \
    'BEGIN {printf "%-44s %.3f of ddp (limit %.2f); step %.3f s against %.3f s, medians of %d rounds\n", name, s / d, limit, s, d, rounds; exit s / d > limit}' ||
    failed=1
done
exit "$failed"
