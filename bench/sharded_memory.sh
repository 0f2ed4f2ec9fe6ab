#!/bin/bash
# sharded_memory.sh ORDO [STRATEGY...] - what a sharded strategy holds of parameters, gradients and optimizer at its worst moment, against the bound
# of two units. Without names: every strategy that `ordo list` finds and that replaces leaves on a data axis. Exit code 1 if one holds more.
#
# Gathered parameters lie in whole huge pages, so each of the three buffers of the bound may have up to 2 MiB of padding; a third block would be
# 12 MiB more. Read from the memory timeline of the second step on two ranks, activations left out, because an average or a count of all-gathers would
# not show that a third unit was alive.
set -eu
ordo=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
layers=8 hidden=512 inter=1408 vocab=4096 ranks=2
seq 1 4000 >"$work/text.txt"
if [ $# = 0 ]; then
  for id in $("$ordo" list | awk 'NR > 1 && $2 == "strategy" && $4 == "usable" {print $1}'); do
    manifest=$("$ordo" inspect "$id")
    if grep -q '^ *[0-9]*  *replaces_leaves=' <<<"$manifest" && ! grep -q '^ *[0-9]*  *mesh_axis=model' <<<"$manifest"; then set -- "$@" "$id"; fi
  done
fi
[ $# -gt 0 ] || { echo "no sharded strategy is installed"; exit 77; }

failed=0
for strategy in "$@"; do
  "$ordo" train --data.train "$work/text.txt" --model.layers $layers --model.hidden_size $hidden --model.intermediate_size $inter --model.heads 8 \
    --model.vocab_size $vocab --train.seq_len 64 --train.batch 2 --train.steps 2 --ranks $ranks --strategy "$strategy" --checkpoint.save false \
    --log.progress none --log.peak false --output "" --log.memory "$work/memory.csv" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  awk -F, -v name="$strategy" -v L=$layers -v d=$hidden -v F=$inter -v V=$vocab -v W=$ranks '
    NR > 1 && $1 == 2 && $11 - $8 > worst {worst = $11 - $8; where = $2 " of " $3 " (" $4 ")"}
    END {
      block = 4 * d * d + 3 * d * F + 2 * d; root = V * d + d; P = root + L * block
      bound = 16 * P / W + 8 * root + 12 * block
      printf "%-34s %7.1f MiB at the worst moment, %s; %.3f of the bound of two units, %.1f MiB\n", name, worst / 1048576, where, worst / bound, bound / 1048576
      exit !(worst > 0 && worst <= bound + 3 * 2097152 + 65536) }' "$work/memory.csv" || failed=1
done
exit $failed
