#!/bin/sh
# trace.sh ORDO REPORT - what `ordo train --log.trace` and `--log.memory` say about ddp on two ranks: the first bucket is on its way before the
# backward of the first block, the bytes are 4 for each parameter, and a single large bucket is found to be late (so the check can fail).
set -u
ordo=$1 report=$2
. "$(dirname "$0")/../script.sh"
seq 1 4000 >"$dir/text.txt"
train() { # NAME STRATEGY [options]
  name=$1 strategy=$2
  shift 2
  $ordo train --data.train "$dir/text.txt" --model.layers 4 --model.hidden_size 48 --model.intermediate_size 64 --model.heads 4 --train.seq_len 32 \
    --train.batch 4 --train.steps 3 --ranks 2 --strategy "$strategy" --log.peak false --train.output "$dir/$name" --log.trace "$dir/$name.json" \
    --log.memory "$dir/$name.csv" "$@" >"$dir/$name.log" 2>&1 || { cat "$dir/$name.log"; fail "train $name"; }
}

train small ddp:bucket_cap=16KiB:first_bucket=8KiB
parameters=$(sed -n 's/^model  *\([0-9]*\) parameters.*/\1/p' "$dir/small.log")
for trace in "$dir/small.json" "$dir/small.json.rank1"; do
  python3 "$report" "$trace" --bytes $((4 * parameters)) || fail "$trace"
done
train accumulating ddp:bucket_cap=16KiB:first_bucket=8KiB --train.micro_batch 1
python3 "$report" "$dir/accumulating.json" --bytes $((4 * parameters)) || fail "with accumulation"
train late ddp:bucket_cap=1GiB:first_bucket=1GiB
python3 "$report" "$dir/late.json" >"$dir/out" 2>&1
grep -q "too late" "$dir/out" || fail "one bucket for everything was not found to be late: $(cat "$dir/out")"
echo "ok   one bucket is late: $(tail -1 "$dir/out")"

# The timeline: 3 steps, of each step two lines for itself, for the step's end and for the optimizer, four for each of 6 units forward and backward.
for csv in "$dir/small.csv" "$dir/small.csv.rank1"; do
  [ "$(wc -l <"$csv")" = $((1 + 3 * (2 * 3 + 4 * 12))) ] || fail "$csv has $(wc -l <"$csv") lines"
  awk -F, -v weights=$((4 * parameters)) 'NR > 1 && ($5 != weights || $11 != $5 + $6 + $7 + $8 + $9 + $10 || $12 < $11) {bad = 1; print "line " NR ": " $0} END {exit bad}' \
    "$csv" || fail "$csv does not add up"
done
echo "ok   the timeline adds up"
[ "$(sed -n 's/.*"comm_bytes":\([0-9]*\).*/\1/p' "$dir/small/metrics.jsonl" | tail -1)" -ge $((4 * parameters)) ] || fail "metrics.jsonl has too few comm_bytes"
grep -q '"comm":{"ddp":{"all_reduce":{"calls":[0-9]*,"bytes":[0-9]*}' "$dir/small/summary.json" || fail "summary.json has no calls and bytes by axis and kind"
[ ! -e "$dir/small.json.rank0" ] || fail "rank 0 has a suffix"
$ordo train --data.train "$dir/text.txt" --train.steps 1 --train.output "" --log.trace "$dir/no/such" >"$dir/out" 2>&1
code=$?
[ $code = 1 ] && grep -q "cannot create" "$dir/out" || fail "a trace that cannot be written: exit $code, $(cat "$dir/out")"
exit $failed
