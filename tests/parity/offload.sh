#!/bin/bash
# offload.sh ORDO STRATEGY... - offload=disk:DIR as a person uses it: the same model bit for bit, nothing left in DIR while a run works, after it, or
# after its ranks were killed; and a directory that is none is named.
set -u
ordo=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAIL $*"; failed=1; }

awk 'BEGIN {for (i = 0; i < 500; i++) printf "%d times %d is %d\n", i % 17, i % 13, (i % 17) * (i % 13)}' >"$dir/text.txt"
mkdir "$dir/cold"
small="--data.train $dir/text.txt --model.layers 2 --model.hidden_size 48 --model.intermediate_size 80 --model.heads 4 --train.seq_len 32 --log.peak false --ranks 2"
train() { # NAME STRATEGY [options]
  local name=$1 strategy=$2
  shift 2
  $ordo train $small --strategy "$strategy" --train.batch 6 --train.micro_batch 1 --train.steps 6 --train.output "$dir/$name" "$@" >"$dir/out" 2>&1
}
empty() { [ -z "$(ls -A "$dir/cold")" ] || fail "$1 left $(ls "$dir/cold")"; }

for strategy; do
  train "$strategy" "$strategy" || fail "$strategy: $(cat "$dir/out")"
  for offload in "disk:$dir/cold" cpu; do
    train "$strategy-${offload%%:*}" "$strategy:offload=$offload" || fail "$strategy:offload=$offload: $(cat "$dir/out")"
    cmp -s "$dir/$strategy/model/model.safetensors" "$dir/$strategy-${offload%%:*}/model/model.safetensors" || fail "$strategy: offload=${offload%%:*} leaves another model"
    empty "$strategy:offload=$offload"
  done

  out=$dir/killed-$strategy
  $ordo train $small --strategy "$strategy:offload=disk:$dir/cold" --train.steps 100000000 --train.deadline 5 --log.interval 1000000 --train.output "$out" \
    >"$dir/out" 2>"$dir/err" &
  pid=$!
  for _ in $(seq 150); do
    [ -s "$out/metrics.jsonl" ] && break
    sleep 0.2
  done
  empty "a run of $strategy that works"
  mpirun=$(cat /proc/$pid/task/*/children)
  ranks=$(cat /proc/${mpirun%% *}/task/*/children)
  opened=0
  for rank in $ranks; do
    ls -l /proc/$rank/fd | grep -q "$dir/cold/.*deleted" && opened=$((opened + 1))
  done
  [ $opened = 2 ] || fail "$strategy: $opened of 2 ranks have a file in the directory"
  kill -9 $ranks
  wait $pid
  [ $? = 1 ] || fail "$strategy: killed ranks, another exit code than 1"
  empty "a killed run of $strategy"

  train "refused-$strategy" "$strategy:offload=disk:$dir/none" && fail "$strategy: trains into a directory that is none"
  grep -q "$dir/none" "$dir/out" && grep -q "No such file" "$dir/out" || fail "$strategy: $(cat "$dir/out")"
  echo "ok   $strategy: the same model, nothing left, errors"
done
exit $failed
