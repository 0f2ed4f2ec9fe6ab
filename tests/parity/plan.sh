#!/bin/bash
# plan.sh ORDO PLUGINS FAKES - the order of the shipped sharded strategies, alone and with precision plugins; its digest on every rank; and what a
# run of that plan holds, read from its memory timeline.
#
# PLUGINS is the directory of the built plugins, FAKES that of manifests that stand for precision plugins: apex_amp (split set-up), jointx (joint).
set -u
ordo=$1 plugins=$2 fakes=$3
. "$(dirname "$0")/../script.sh"
path=$plugins/tp/tp.so:$plugins/ddp/ddp.so:$plugins/fsdp1/fsdp1.so:$plugins/fsdp2/fsdp2.so:$fakes/fake_apex_amp.so:$fakes/fake_jointx.so
unset ORDO_PLUGIN_PATH

tail="scheduler.create restore.optimizer RP restore.scheduler restore.data restore.rng verify"
order() { # STRATEGY PRECISION STEPS: what lies between model.build and the tail
  local precision=() rest=${tail/RP /} got
  [ "$2" = none ] || { precision=(--precision "$2"); rest=${tail/RP/restore.precision}; }
  got=$($ordo plan --plugin-path "$path" --strategy "$1" "${precision[@]}" --ranks 4 --steps --resume 2>"$dir/err" | tr '\n' ' ')
  [ "$got" = "mesh.init model.build $3 $rest " ] || fail "$1 with $2: $got$(cat "$dir/err")"
}
order fsdp1 none "strategy.wrap optimizer.create weights.load_sharded"
order fsdp2 none "optimizer.create strategy.prepare_joint weights.load_sharded"
order ddp=2+fsdp2 none "optimizer.create strategy.prepare_joint strategy.wrap weights.load_sharded"
order fsdp1 apex_amp "precision.convert_model strategy.wrap optimizer.create weights.load_sharded precision.wrap_optimizer"
order fsdp2 apex_amp "precision.convert_model optimizer.create strategy.prepare_joint weights.load_sharded precision.wrap_optimizer"
order ddp=2+fsdp2 apex_amp "precision.convert_model optimizer.create strategy.prepare_joint strategy.wrap weights.load_sharded precision.wrap_optimizer"
# A split model is prepared by nobody, or by the strategy that it is composed with.
[ -f "$plugins/tp/tp.so" ] && {
  order tp none "weights.load weights.sync strategy.partition optimizer.create"
  order tp=2+ddp none "weights.load weights.sync strategy.partition optimizer.create strategy.wrap"
  order tp=2+fsdp1 none "strategy.partition strategy.wrap optimizer.create weights.load_sharded"
  order tp=2+fsdp2 none "strategy.partition optimizer.create strategy.prepare_joint weights.load_sharded"
}
for strategy in fsdp1 fsdp2 ddp=2+fsdp2; do
  $ordo plan --plugin-path "$path" --strategy $strategy --precision jointx --ranks 4 >"$dir/out" 2>&1
  code=$?
  [ $code = 3 ] && grep -q "precision.initialize" "$dir/out" || fail "$strategy with jointx: exit $code, $(cat "$dir/out")"
done
for strategy in fsdp1 fsdp2; do # precision has one owner
  $ordo plan --plugin-path "$path" --strategy $strategy:param_dtype=bf16 --precision apex_amp:O2 --ranks 4 >"$dir/out" 2>&1
  code=$?
  [ $code = 3 ] && grep -q "owns_precision" "$dir/out" || fail "$strategy with 16-bit messages and apex_amp: exit $code, $(cat "$dir/out")"
done
echo "ok   order"

digest() { sed -n 's/.*"digest": "\([0-9a-f]\{16\}\)".*/\1/p'; }
launch="mpirun --allow-run-as-root --oversubscribe --bind-to none -n 3"
for row in fsdp1 fsdp1:use_orig_params=false fsdp2 fsdp2:reshard_after_forward=false; do
  $launch sh -c "$ordo plan --plugin-path $path --strategy $row --ranks 3 --json >$dir/plan.\$OMPI_COMM_WORLD_RANK" || fail "$row: plan on 3 ranks"
  one=$($ordo plan --plugin-path "$path" --strategy $row --ranks 3 --digest)
  for rank in 0 1 2; do
    [ "$(digest <"$dir/plan.$rank")" = "$one" ] && [ -n "$one" ] || fail "$row: rank $rank plans $(digest <"$dir/plan.$rank"), one process $one"
  done
  echo "$one" >>"$dir/digests"
done
[ "$(sort -u "$dir/digests" | wc -l)" = 4 ] || fail "other options must have other digests: $(cat "$dir/digests")"
echo "ok   digests"

layers=4 hidden=64 inter=96
awk 'BEGIN {for (i = 0; i < 400; i++) printf "%d times %d is %d\n", i % 17, i % 13, (i % 17) * (i % 13)}' >"$dir/text.txt"
units() { # STRATEGY: units that are gathered at the worst moment beside the root, in hundredths
  $ordo train --plugin-path "$path" --data.train "$dir/text.txt" --model.layers $layers --model.hidden_size $hidden --model.intermediate_size $inter --model.heads 4 \
    --train.seq_len 32 --train.batch 4 --train.micro_batch 1 --train.steps 3 --ranks 2 --strategy "$1" --log.peak false --log.progress none --optim.weight_decay 0 --train.output "$dir/run" \
    --train.overwrite --log.memory "$dir/memory.csv" >"$dir/out" 2>&1 || { cat "$dir/out" >&2; echo -1; return; }
  awk -F, -v d=$hidden -v F=$inter '
    NR == 1 {for (i = 1; i <= NF; i++) column[$i] = i}
    NR > 1 {w = $column["weights"]; if (base == "" || w < base) base = w; if (w > worst) worst = w}
    END {block = 4 * int((4 * (4 * d * d + 3 * d * F + 2 * d) + 4095) / 4096) * 1024; root = 4096 * int((4 * (257 * d + d) + 4095) / 4096); printf "%d\n", 100 * (worst - base - root) / block}' "$dir/memory.csv"
  planned=$($ordo plan --plugin-path "$path" --strategy "$1" --ranks 2 --digest)
  grep -q "\"plan_digest\":\"$planned\"" "$dir/run/summary.json" || fail "$1: the run has another digest than the plan"
}
for strategy in fsdp1 fsdp1:forward_prefetch=true fsdp1:use_orig_params=false fsdp2 fsdp2:backward_prefetch=post; do
  n=$(units $strategy)
  [ "$n" -gt 90 ] && [ "$n" -le 200 ] || fail "$strategy: $n hundredths of a unit are gathered beside the root"
done
for strategy in fsdp1:sharding_strategy=SHARD_GRAD_OP fsdp2:reshard_after_forward=false; do # what keeps them shows it, so the bound can fail
  n=$(units $strategy)
  [ "$n" -ge 395 ] || fail "$strategy: $n hundredths of a unit are gathered, all 4 were expected"
done
echo "ok   two units at a time"
exit $failed
