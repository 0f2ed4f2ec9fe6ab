#!/bin/bash
# memory.sh ORDO - peak bytes of the session's account against weights + gradients + optimizer + activations, resident memory beside them.
#
# The formula is written out here once more, from docs/performance.md, so that a mistake in the trainer's own count shows. Exit code 1 if one
# case is off by more than 5 %.
set -eu
ordo=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
layers=8 hidden=512 inter=1408 heads=8 vocab=4096 seq=256
seq 1 12000 >"$work/text.txt"

run() { # NAME RANKS STRATEGY CHECKPOINTING
  "$ordo" train --data.train "$work/text.txt" --data.format bytes --data.order sequential --model.layers $layers --model.hidden_size $hidden \
    --model.intermediate_size $inter --model.heads $heads --model.vocab_size $vocab --train.seq_len $seq --train.batch $((4 * $2)) --train.steps 2 \
    --ranks "$2" --strategy "$3" --train.activation_checkpointing "$4" --checkpoint.save false --log.progress none --log.peak false \
    --output "$work/$1" >"$work/$1.log" 2>&1 || { cat "$work/$1.log"; exit 1; }
}
field() { sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p" "$work/$1/summary.json"; }
report() { # NAME CHECKPOINTING TEXT
  awk -v total="$(field "$1" total)" -v rss="$(field "$1" rss_bytes)" -v keeps="$2" -v text="$3" -v L=$layers -v d=$hidden -v F=$inter -v H=$heads \
    -v V=$vocab -v T=$seq -v N=$((4 * seq)) 'BEGIN {
      Q = d; K = d; hd = d / H; W = F > Q ? F : Q
      P = V * d + L * (2 * d * Q + 2 * d * K + 3 * d * F + 2 * d) + d
      R = 268435456 / (4 * V); if (R > N) R = N
      layer = d + 2 * Q + 2 * K + 2 * F + 2 + H
      A = keeps == "block" ? L * N * d + N * layer : L * N * (d + layer)
      A += N * d + N * (2 * d + W) + N * (d + Q + 2 * K) + 4 * N + R * V + 2 * 64 * T + 64 + T * hd
      formula = 16 * P + 4 * A
      printf "%-34s %7.1f MiB = %.4f of the formula (weights, gradients, AdamW %.1f, activations %.1f); resident %.0f MiB\n", text, total / 1048576,
        total / formula, 16 * P / 1048576, 4 * A / 1048576, rss / 1048576
      exit !(total > 0.95 * formula && total < 1.05 * formula) }'
}
failed=0
run one 1 none none
report one none "one rank" || failed=1
run block 1 none block
report block block "one rank, checkpointing of blocks" || failed=1
run ddp 2 ddp none
report ddp none "ddp, each of 2 ranks" || failed=1
exit $failed
