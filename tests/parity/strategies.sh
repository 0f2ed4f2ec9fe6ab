#!/bin/sh
# strategies.sh ORDO STRATEGY... - the verbs under each strategy on two ranks against one rank without any: the same run in `ordered` mode leaves the
# same model, bit for bit among strategies, whether blocks are computed again or not; eval and generate of it give the same answer. Without
# `ordered` the validation loss is that of ddp within 0.005.
set -u
ordo=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() {
  echo "FAIL $*"
  failed=1
}

awk 'BEGIN {for (i = 0; i < 500; i++) printf "%d times %d is %d\n", i % 17, i % 13, (i % 17) * (i % 13)}' >"$dir/text.txt"
train() { # NAME [options]
  name=$1
  shift
  $ordo train --data.train "$dir/text.txt" --data.validation_fraction 0.1 --model.layers 3 --model.hidden_size 48 --model.intermediate_size 80 \
    --model.heads 4 --train.seq_len 32 --train.batch 6 --train.micro_batch 1 --train.steps 12 --train.ordered "$ordered" --train.sample_positions 30 \
    --log.peak false --train.output "$dir/$name" --train.dump_gradients "$dir/$name.grads" --train.dump_weights "$dir/$name.weights" "$@" \
    >"$dir/$name.out" 2>&1 || fail "train $name: $(cat "$dir/$name.out")"
}
use() { # NAME MODEL [options]: what eval and generate say of a model
  name=$1 model=$2
  shift 2
  $ordo eval --model.path "$dir/$model/model" --data.validation "$dir/text.txt" --train.seq_len 32 --train.validate_sequences 33 --train.batch 6 "$@" \
    >"$dir/$name.eval" 2>&1 || fail "eval $name: $(cat "$dir/$name.eval")"
  $ordo generate --model.path "$dir/$model/model" --generate.prompt "3 times " --generate.positions 30 "$@" >"$dir/$name.text" 2>&1 ||
    fail "generate $name: $(cat "$dir/$name.text")"
}
validation() { sed -n 's/.*"validation_loss":\([0-9.]*\).*/\1/p' "$dir/$1/summary.json"; }
comm() { sed -n 's/.*"comm":\({.*}}}\).*/\1/p' "$dir/$1/summary.json"; }

ordered=false
train ddp-fast --ranks 2 --strategy ddp
ordered=true
train ddp --ranks 2 --strategy ddp
use one ddp
for strategy in "$@"; do
  train "$strategy" --ranks 2 --strategy "$strategy"
  train "$strategy-again" --ranks 2 --strategy "$strategy" --train.activation_checkpointing block
  for name in "$strategy" "$strategy-again"; do
    for file in model/model.safetensors; do
      cmp -s "$dir/ddp/$file" "$dir/$name/$file" || fail "$name left another $file than ddp"
    done
    cmp -s "$dir/ddp.grads" "$dir/$name.grads" || fail "$name has other gradients than ddp in step 1"
    cmp -s "$dir/ddp.weights" "$dir/$name.weights" || fail "$name has other weights than ddp"
    [ "$(validation "$name")" = "$(validation ddp)" ] || fail "$name: validation loss $(validation "$name"), ddp $(validation ddp)"
    grep '^sample' "$dir/$name.out" >"$dir/a"
    grep '^sample' "$dir/ddp.out" >"$dir/b"
    cmp -s "$dir/a" "$dir/b" || fail "$name generates $(cat "$dir/a"), ddp $(cat "$dir/b")"
  done
  ordered=false
  train "$strategy-fast" --ranks 2 --strategy "$strategy"
  ordered=true
  awk -v a="$(validation "$strategy-fast")" -v b="$(validation ddp-fast)" 'BEGIN {d = a - b; exit !(a > 0 && d <= 0.005 && -d <= 0.005)}' ||
    fail "$strategy without ordered: validation loss $(validation "$strategy-fast"), ddp $(validation ddp-fast)"
  # Blocks that are computed again use what backward has gathered anyway: not one call or byte more.
  [ -n "$(comm "$strategy")" ] && [ "$(comm "$strategy")" = "$(comm "$strategy-again")" ] ||
    fail "$strategy communicates $(comm "$strategy"), with checkpointing $(comm "$strategy-again")"
  # A run on two ranks sums the losses in another order: 7 digits.
  use "$strategy" ddp --ranks 2 --strategy "$strategy"
  cmp -s "$dir/one.text" "$dir/$strategy.text" || fail "$strategy generates $(cat "$dir/$strategy.text"), one rank $(cat "$dir/one.text")"
  awk -v a="$(sed -n 's/.*"loss":\([0-9.]*\).*/\1/p' "$dir/one.eval")" -v b="$(sed -n 's/.*"loss":\([0-9.]*\).*/\1/p' "$dir/$strategy.eval")" \
    'BEGIN {d = a - b; exit !(a > 0 && d < 1e-7 * a && -d < 1e-7 * a)}' || fail "$strategy: eval says $(cat "$dir/$strategy.eval"), one rank $(cat "$dir/one.eval")"
  echo "ok   $strategy: train, eval, generate; validation loss $(validation "$strategy") (ddp $(validation ddp)), without ordered $(validation "$strategy-fast") (ddp $(validation ddp-fast))"
done

# One flat parameter for the whole model leaves no unit to wrap; blocks are computed again all the same (accelerate PR #4140).
train no-units --ranks 2 --strategy "$1:units=none" --train.activation_checkpointing block
cmp -s "$dir/ddp/model/model.safetensors" "$dir/no-units/model/model.safetensors" || fail "$1:units=none with checkpointing left another model than ddp"
exit $failed
