#!/bin/bash
# numbers.sh ORDO LIBEXEC - sizes that cannot work, losses that explode, batches without targets: each ends in one clear error.
set -eu
. "$(dirname "$0")/lib.sh"

echo "sizes"
train --model.heads 3; expect 2 "hidden_size (16) is not a multiple of heads (3)"
train --model.heads 4 --model.hidden_size 18; expect 2 "hidden_size (18) is not a multiple of heads (4)"
train --model.kv_heads 3 --model.heads 4; expect 2 "multiple of kv_heads"
train --model.layers 10000 --model.hidden_size 1048576; expect 1 E-TRAIN-MEMORY "GiB"
train --train.seq_len 1 --model.intermediate_size 1 --model.hidden_size 2 --model.heads 1; expect 0
train --train.steps 0; expect 0 "0 steps"
export ORDO_BF16_GEMM=yes # it would be taken as unset, and what is measured be something else
train --train.steps 0; expect 2 E-CONFIG-VALUE "ORDO_BF16_GEMM=yes is not understood"
export ORDO_BF16_GEMM=auto
train --train.steps 0; expect 0
unset ORDO_BF16_GEMM
train --train.batch 1 --ranks 3; expect 0 "5 steps"

echo "an exploding loss: one error, the weights are kept, the run of another directory is not touched"
train --train.steps 2; expect 0
cp out/model/model.safetensors before
for ranks in 1 2; do
  train --ranks $ranks --train.output exploded$ranks --optim.name sgd --optim.lr 1000 --optim.clip 0 --train.steps 50
  expect 1 E-STEP-NONFINITE "kept     the weights after step"
  [ "$(grep -c E-STEP-NONFINITE said)" = 1 ] || fail "said more than once"
  cmp -s before out/model/model.safetensors || fail "another model was changed"
  "$ordo" generate --model.path exploded$ranks/model-before-error --generate.positions 2 >said 2>&1 || fail "the kept weights cannot be read"
done

echo "no target counts"
head -c 64000 /dev/zero | tr '\0' '\377' >ones # -1: no token id and not -100
train --data.targets ones; expect 2 "target 0 is -1"
printf '\234\377\377\377%.0s' $(seq 160) >masked # -100
for ranks in 1 2; do
  train --ranks $ranks --data.targets masked --train.output masked$ranks; expect 2 E-STEP-WEIGHT
  [ "$(grep -c E-STEP-WEIGHT said)" = 1 ] || fail "said more than once"
done
code=0
"$ordo" eval --model.path out/model --data.train text.txt --data.targets masked --train.seq_len 16 >said 2>&1 || code=$?
expect 2 "no target counts"

echo "things that are no files"
mkfifo fifo.ini
code=0
timeout 20 "$ordo" train fifo.ini >said 2>&1 || code=$?
expect 2 "not a regular file"
echo "a user's file" >taken
train --train.output taken; [ "$code" != 0 ] || fail "a file was taken for a directory"
grep -q "a user's file" taken || fail "the file is gone"
