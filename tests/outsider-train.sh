#!/bin/sh
# outsider-train.sh ORDO PLUGIN_PATH WORK SOURCE - trains the same few steps with the outsider's plugin and with ddp on 3 ranks.
#
# In ordered mode both add the same numbers in the same order, so every digit of the metrics must agree; without it sums may be taken
# in another order, and the parity gate applies (loss 1e-5, gradient norm 2e-5 for SGD). SGD without clipping: nothing hides a wrong
# scale. Accumulation over two micro-batches, an uneven batch on 3 ranks.
set -eu
ordo=$1 paths=$2 work=$3 source=$4

train() { # STRATEGY ORDERED
  "$ordo" train --plugin-path "$paths" --strategy "$1" --ranks 3 --data "$source/LICENSE" --data.tokenizer bytes --data.order sequential \
    --model.layers 2 --model.hidden_size 32 --model.intermediate_size 44 --model.heads 4 --train.seq_len 32 --train.batch 8 \
    --train.micro_batch 2 --train.steps 6 --train.ordered "$2" --train.deadline 30 --optim.name sgd --optim.lr 0.1 --optim.clip 0 \
    --checkpoint.save false --log.peak false --log.progress none --train.output "$work/$1-$2" >"$work/$1-$2.log" 2>&1 ||
    { cat "$work/$1-$2.log"; exit 1; }
}

for ordered in true false; do
  train naive_allreduce $ordered
  train ddp $ordered
  python3 - "$work/naive_allreduce-$ordered/metrics.jsonl" "$work/ddp-$ordered/metrics.jsonl" $ordered <<'PYTHON'
import json, sys
def steps(path):
    rows = [json.loads(line) for line in open(path)]
    return [r for r in rows if "loss" in r and "grad_norm" in r]
ours, theirs = steps(sys.argv[1]), steps(sys.argv[2])
exact = sys.argv[3] == "true"
if len(ours) != 6 or len(theirs) != 6:
    sys.exit(f"{len(ours)} and {len(theirs)} steps in the metrics instead of 6")
if ours[0]["loss"] == ours[-1]["loss"]:
    sys.exit("the loss does not change: nothing was trained")
for a, b in zip(ours, theirs):
    for key, tolerance in (("loss", 1e-5), ("grad_norm", 2e-5)):
        if abs(a[key] - b[key]) > (0.0 if exact else tolerance * abs(b[key])):
            sys.exit(f"step {b['step']}: {key} is {a[key]}, with ddp {b[key]}")
print(f"6 steps on 3 ranks, ordered={sys.argv[3]}: " + ("equal to ddp in every digit" if exact else "equal to ddp within the parity gate"))
PYTHON
done
