#!/bin/bash
# scaling.sh ORDO - what training with ddp on two ranks costs against two independent one-rank runs at the same time.
#
# Both use two processes of one thread each, so cores, caches and memory are shared alike and the difference is communication and
# waiting. Three rounds in turn; of each run the median step after the first two. The trace of the first ddp run says when its first
# all-reduce started, and that the bytes are 4 for each parameter.
set -eu
ordo=$1 rounds=3 steps=10
. "$(dirname "$0")/reference.sh"

for round in $(seq "$rounds"); do
  run "alone_a_$round" 1 none 4 &
  first=$!
  run "alone_b_$round" 1 none 4
  wait "$first"
  run "ddp_$round" 2 ddp 8 --log.trace "$work/ddp_$round.json"
  awk -v a="$(step_seconds "alone_a_$round" | median)" -v b="$(step_seconds "alone_b_$round" | median)" -v d="$(step_seconds "ddp_$round" | median)" \
    'BEGIN {alone = (a > b) ? a : b; printf "%.4f %.4f %.4f\n", alone / d, alone, d}' >>"$work/ratios"
done
python3 "$(dirname "$0")/trace_report.py" "$work/ddp_1.json" --bytes $((4 * parameters))
core=$("$ordo" doctor | sed -n 's/.*OpenBLAS core \([A-Za-z0-9]*\).*/\1/p')
sort -g "$work/ratios" | awk -v core="$core" '{r[NR] = $1; a[NR] = $2; d[NR] = $3} END {m = int((NR + 1) / 2);
  printf "ddp on 2 ranks               %.3f of two independent runs (limit 0.93); step %.3f s against %.3f s, medians of %d rounds, core %s\n", r[m], d[m], a[m], NR, core
  exit r[m] < 0.93}'
