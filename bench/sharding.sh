#!/bin/bash
# sharding.sh ORDO [STRATEGY@LIMIT...] - what a training step costs under each sharded strategy, against ddp in the same run.
#
# Two ranks. The strategies take turns within a round, so that a machine that slows down slows all of them; a ratio is that of the medians of a
# strategy's steps after the first two of each run, over all rounds. What they hold in memory: sharded_memory.sh.
set -eu
ordo=$1 rounds=5 steps=8
shift
. "$(dirname "$0")/reference.sh"
[ $# -gt 0 ] || set -- fsdp2@1.08 fsdp2:reshard_after_forward=false@1.05 fsdp1@1.08 fsdp1:sharding_strategy=SHARD_GRAD_OP@1.05

for round in $(seq "$rounds"); do
  run ddp 2 ddp 8
  step_seconds ddp >>"$work/seconds_ddp"
  i=0
  for row; do
    i=$((i + 1))
    run "$i" 2 "${row%@*}" 8
    step_seconds "$i" >>"$work/seconds_$i"
  done
done
ddp=$(median <"$work/seconds_ddp") i=0 failed=0
for row; do
  i=$((i + 1))
  awk -v s="$(median <"$work/seconds_$i")" -v d="$ddp" -v name="${row%@*}" -v limit="${row##*@}" -v rounds="$rounds" \
    'BEGIN {printf "%-44s %.3f of ddp (limit %.2f); step %.3f s against %.3f s, medians of %d rounds\n", name, s / d, limit, s, d, rounds; exit s / d > limit}' ||
    failed=1
done
exit "$failed"
