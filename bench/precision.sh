#!/bin/bash
# precision.sh ORDO [LEVEL...] - what a level of apex_amp costs and saves against fp32 in the same run: time of a step, bytes sent, memory.
#
# The reference case: one rank, and two with ddp and with fsdp2. fp32 and the levels take turns within a round, so that a machine that slows down
# slows all of them; a ratio is that of the medians of all steps after the first two of each run. A step in bf16 may take
# 1.15 of fp32's (where there are matrix units for it, it takes much less); fp16 is storage, without a limit of time. Bytes and memory must be those
# of the formulas in docs/precision.md.
set -eu
ordo=$1 rounds=3 steps=6
shift
. "$(dirname "$0")/reference.sh"
[ $# -gt 0 ] || set -- O5 O2
norms=$((17 * 512)) matrices=$((parameters - 17 * 512)) limit=1.15 failed=0
! "$ordo" list | grep -q '^apex_amp ' && { echo "skipped: the plugin apex_amp is not installed"; exit 77; }

sent() { tail -n 1 "$work/$1.metrics" | sed -n 's/.*"comm_bytes":\([0-9]*\).*/\1/p'; }
total() { sed -n 's/.*"peak_bytes":{[^}]*"total":\([0-9]*\).*/\1/p' "$work/$1.summary"; }
# Weights and gradients at the worst moment of the second step; the peak of the account has the set-up, where replicas are read in fp32.
held() { awk -F, 'NR > 1 && $1 == 2 && $5 + $6 > most {most = $5 + $6} END {print most}' "$work/$1.csv"; }
measure() { # NAME RANKS STRATEGY [options]
  local name=$1
  shift
  run "$name" "$1" "$2" $((4 * $1)) --log.memory "$work/$name.csv" --log.detail_steps 2 "${@:3}"
  step_seconds "$name" >>"$work/$name.steps"
  cp "$work/$name/summary.json" "$work/$name.summary"
  cp "$work/$name/metrics.jsonl" "$work/$name.metrics"
  rm -rf "$work/$name"
}

for row in 1:none 2:ddp 2:fsdp2; do
  ranks=${row%%:*} strategy=${row#*:}
  for _ in $(seq "$rounds"); do
    measure "$strategy-fp32" "$ranks" "$strategy"
    for level; do measure "$strategy-$level" "$ranks" "$strategy" --precision "apex_amp:$level"; done
  done
  for level; do
    awk -v s="$(median <"$work/$strategy-$level.steps")" -v f="$(median <"$work/$strategy-fp32.steps")" -v sent="$(sent "$strategy-$level")" \
      -v all="$(sent "$strategy-fp32")" -v w="$(held "$strategy-$level")" \
      -v W="$(held "$strategy-fp32")" -v t="$(total "$strategy-$level")" -v T="$(total "$strategy-fp32")" -v M="$matrices" -v N="$norms" -v limit="$limit" -v level="$level" -v name="$strategy" -v ranks="$ranks" 'BEGIN {
        half = (2 * M + 4 * N) / (4 * M + 4 * N)
        bytes = all > 0 ? sent / all : half
        timed = level ~ /^O[45]/ || level ~ /bf16/
        printf "%-6s %-3s %d rank%s  step %.3f of fp32%s (%.3f s against %.3f s)", name, level, ranks, (ranks > 1 ? "s" : " "), s / f,
          (timed ? sprintf(" (limit %.2f)", limit) : ""), s, f
        if (all > 0) printf "; sent %.4f of its bytes (formula %.4f)", bytes, half
        printf "; weights and gradients %.3f, all memory %.3f of its\n", w / W, t / T
        exit ((timed && s / f > limit) || bytes > half + 0.001 || bytes < half - 0.001) }' || failed=1
  done
done
exit "$failed"
