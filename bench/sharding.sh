#!/bin/bash
# sharding.sh ORDO [STRATEGY@LIMIT...] - what a training step costs under each sharded strategy, against ddp in the same run.
#
# The reference case on two ranks. The strategies take turns within a round, so that a machine that slows down slows all of them; a ratio is that of
# the medians of all steps of a strategy after the first two of each run.
set -eu
ordo=$1 rounds=5 steps=8
shift
. "$(dirname "$0")/reference.sh"
[ $# -gt 0 ] || set -- fsdp2@1.08 fsdp2:reshard_after_forward=false@1.05 fsdp1@1.08 fsdp1:sharding_strategy=SHARD_GRAD_OP@1.05 tp@1.15 tp:sequence_parallel=true@1.15

for round in $(seq "$rounds"); do
  i=0
  for row in ddp@0 "$@"; do
    run run 2 "${row%@*}" 8
    step_seconds run >>"$work/steps_$i"
    rm -rf "$work/run"
    i=$((i + 1))
  done
done
ddp=$(median <"$work/steps_0") i=0 failed=0
for row; do
  i=$((i + 1))
  awk -v s="$(median <"$work/steps_$i")" -v d="$ddp" -v name="${row%@*}" -v limit="${row##*@}" -v rounds="$rounds" \
    'BEGIN {printf "%-44s %.3f of ddp (limit %.2f); step %.3f s against %.3f s, medians of %d rounds\n", name, s / d, limit, s, d, rounds; exit s / d > limit}' ||
    failed=1
done
exit "$failed"
