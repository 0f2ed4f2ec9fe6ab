#!/bin/bash
# scaling.sh ORDO - what training with ddp on two ranks costs against two independent one-rank runs at the same time.
#
# Both use two processes of one thread each, so cores, caches and memory are shared alike and the difference is communication and
# waiting. The trace of the first ddp run says when its first all-reduce started, and that the bytes are 4 for each parameter. The reference case (8 layers, hidden 512, 8 heads, vocabulary 4096, T=256, 4 sequences a rank), three rounds in turn; of each
# run the median step after the first two.
set -eu
ordo=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rounds=${ORDO_BENCH_ROUNDS:-3} steps=${ORDO_BENCH_STEPS:-10}
sequences=$((steps * 8 + 8))
# Token ids do not matter for time: a plain ramp through the vocabulary, as little-endian uint16.
awk -v n=$((sequences * 256 + 1)) 'BEGIN {for (i = 0; i < n; i++) {t = (i * 2654435761) % 4096; printf "\\x%02x\\x%02x\n", t % 256, int(t / 256)}}' |
  tr -d '\n' >"$work/escaped"
printf "$(cat "$work/escaped")" >"$work/tokens.bin"

common=(--data.train "$work/tokens.bin" --data.format tokens16 --data.order sequential --model.layers 8 --model.hidden_size 512
  --model.intermediate_size 1408 --model.heads 8 --model.vocab_size 4096 --train.seq_len 256 --steps "$steps"
  --checkpoint.save false --log.progress none --log.peak false)

run() { # NAME RANKS STRATEGY BATCH [options]
  local name=$1 ranks=$2 strategy=$3 batch=$4
  shift 4
  "$ordo" train "${common[@]}" --ranks "$ranks" --strategy "$strategy" --train.batch "$batch" --output "$work/$name" "$@" >"$work/$name.log" 2>&1 ||
    { cat "$work/$name.log"; exit 1; }
}
median_step() { sed -n 's/.*"seconds":\([0-9.e-]*\),"tokens.*/\1/p' "$1/metrics.jsonl" | tail -n +3 | sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

for round in $(seq "$rounds"); do
  run "alone_a_$round" 1 none 4 &
  first=$!
  run "alone_b_$round" 1 none 4
  wait "$first"
  run "ddp_$round" 2 ddp 8 --log.trace "$work/ddp_$round.json"
  awk -v a="$(median_step "$work/alone_a_$round")" -v b="$(median_step "$work/alone_b_$round")" -v d="$(median_step "$work/ddp_$round")" \
    'BEGIN {alone = (a > b) ? a : b; printf "%.4f %.4f %.4f\n", alone / d, alone, d}' >>"$work/ratios"
done
parameters=$((4096 * 512 + 8 * (4 * 512 * 512 + 3 * 512 * 1408 + 2 * 512) + 512))
python3 "$(dirname "$0")/trace_report.py" "$work/ddp_1.json" --bytes $((4 * parameters))
core=$("$ordo" doctor | sed -n 's/.*OpenBLAS core \([A-Za-z0-9]*\).*/\1/p')
sort -g "$work/ratios" | awk -v core="$core" '{r[NR] = $1; a[NR] = $2; d[NR] = $3} END {m = int((NR + 1) / 2);
  printf "ddp on 2 ranks               %.3f of two independent runs (limit 0.93); step %.3f s against %.3f s, medians of %d rounds, core %s\n", r[m], d[m], a[m], NR, core
  exit r[m] < 0.93}'
