# reference.sh - sourced by benchmarks of `ordo train` (with $ordo set): the reference case and what they share. Llama, 8 layers, hidden 512, MLP 1408, 8 heads,
# vocabulary 4096, 256 tokens. Sets work (a directory, removed at the end), rounds, steps; tokens for $steps steps of 8 sequences.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rounds=${ORDO_BENCH_ROUNDS:-$rounds} steps=${ORDO_BENCH_STEPS:-$steps}
parameters=$((4096 * 512 + 8 * (4 * 512 * 512 + 3 * 512 * 1408 + 2 * 512) + 512))

# Token ids do not matter for time: a plain ramp through the vocabulary, as little-endian uint16.
awk -v n=$(((steps * 8 + 8) * 256 + 1)) 'BEGIN {for (i = 0; i < n; i++) {t = (i * 2654435761) % 4096; printf "\\x%02x\\x%02x\n", t % 256, int(t / 256)}}' |
  tr -d '\n' >"$work/escaped"
printf "$(cat "$work/escaped")" >"$work/tokens.bin"

run() { # NAME RANKS STRATEGY BATCH [options]: leaves $work/NAME
  local name=$1 ranks=$2 strategy=$3 batch=$4
  shift 4
  "$ordo" train --data.train "$work/tokens.bin" --data.format tokens16 --data.order sequential --model.layers 8 --model.hidden_size 512 \
    --model.intermediate_size 1408 --model.heads 8 --model.vocab_size 4096 --train.seq_len 256 --steps "$steps" --checkpoint.save false \
    --log.progress none --log.peak false --ranks "$ranks" --strategy "$strategy" --train.batch "$batch" --output "$work/$name" "$@" \
    >"$work/$name.log" 2>&1 || { cat "$work/$name.log"; exit 1; }
}
step_seconds() { sed -n 's/.*"seconds":\([0-9.e-]*\),"tokens.*/\1/p' "$work/$1/metrics.jsonl" | tail -n +3; } # after the first two
median() { sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
