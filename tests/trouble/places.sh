#!/bin/bash
# places.sh ORDO LIBEXEC PLUGIN_DIRECTORY - tensor parallelism by somebody else (columns.c): it trains what one rank trains, alone and beside
# strategies on data axes, and where it misbehaves at a place of one rank, all ranks end with that error.
set -eu
plugins=$3
. "$(dirname "$0")/lib.sh"

columns() { # RANKS STRATEGY WORDS...
  local ranks=$1 strategy=$2; shift 2
  train --plugin-path "$plugins" --ranks "$ranks" --strategy "$strategy" --train.deadline 20 --model.vocab_size 260 --data.order sequential \
    --train.micro_batch 1 --checkpoint.save false "$@"
}
losses() { python3 -c 'import json
for row in map(json.loads, open("out/metrics.jsonl")):
  if "grad_norm" in row: print("%.4f %.4f" % (row["loss"], row["grad_norm"]))' >"$1"; }

columns 1 none; expect 0 "5 steps"; losses alone
[ "$(wc -l <alone)" = 5 ] || fail "no metrics of 5 steps"
for strategy in columns columns=2+ddp columns=2+fsdp1 columns=2+fsdp2; do
  columns "$([ $strategy = columns ] && echo 2 || echo 4)" $strategy; expect 0 "5 steps"; losses parts
  cmp -s alone parts || fail "$strategy trains $(tr '\n' ';' <parts), one rank $(tr '\n' ';' <alone)"
done
"$ordo" plan --plugin-path "$plugins" --strategy columns=2 --world 2 --estimate --model.layers 1 --model.hidden_size 16 --model.heads 2 \
  --train.seq_len 16 >said 2>&1 || fail "an estimate is refused"

echo "it fails at a place of one rank, forward or in the loss"
for at in 2 3 5 6; do
  columns 2 columns:how=fail:at=$at; expect 2 E-PLUGIN-FAILED "the cause of it all" "plugin 'columns', activation" "rank 1"
done
columns 4 columns=2:how=fail:at=2:rank=3+fsdp2; expect 2 "the cause of it all" "rank 3"
columns 2 columns:how=silent; expect 2 E-PLUGIN-NO-RECORD "plugin 'columns'"
columns 2 columns:how=crash; expect 1 "rank 1 was ended by signal 6"
columns 2 columns:how=leave; expect 1 # whoever notices first says it
columns 2 columns:how=extra; expect 1 E-COMM-MISMATCH "all_reduce sum of 3 f32"

echo "it does not listen, or describes other pieces than it has"
columns 2 columns:how=deaf:at=2; expect 2 "nobody adds up the products of the parts"
columns 2 columns:how=deaf:at=1; expect 2 "nobody adds up the gradients of their input"
columns 2 columns:how=deaf:at=6; expect 2 "nobody completes the loss over the vocabulary"
columns 2 columns:how=torn; expect 1 E-INVARIANT-COVERAGE self_attn.o_proj.weight
