#!/bin/bash
# plugin.sh ORDO LIBEXEC PLUGIN_DIRECTORY - a plugin misbehaves on one rank of two: the run ends with the error of that rank, or with
# the name of that rank, within seconds.
set -eu
plugins=$3
. "$(dirname "$0")/lib.sh"

hostile() { train --plugin-path "$plugins" --ranks 2 --train.deadline 5 --strategy "hostile:$1"; }

hostile how=nothing; expect 0 "5 steps"

echo "its error is what is said, wherever it fails"
for at in create wrap reduce post_step; do
  hostile "how=fail:at=$at"; [ "$code" = 1 ] || [ "$code" = 2 ] || fail "exit code $code"
  expect "$code" E-PLUGIN-FAILED "the cause of it all" "look no further" "plugin 'hostile'"
  ! grep -q E-COMM-MISMATCH said || fail "the cause is covered by a mismatch"
done
hostile how=silent:at=wrap; expect "$code" E-PLUGIN-NO-RECORD

echo "it takes the rank with it"
hostile how=crash; expect 1 "rank 1 was ended by signal 6"
hostile how=leave; expect 1 # whoever notices first says it: mpirun, or the rank that waited
grep -qE "rank 1 (left the run with exit code 7|ended \(process)" said || fail "rank 1 is not named"

echo "it starts what nobody else starts"
hostile how=extra; expect 1 E-COMM-MISMATCH "all_reduce sum of 3 f32"

echo "a name of a metric is no JSON"
hostile how=metric:rank=0; expect 0
python3 -c 'import json, sys; [json.loads(line) for line in open("out/metrics.jsonl")]' || fail "metrics.jsonl is damaged"
grep -qF '"hostile.a__name__":1.5' out/metrics.jsonl || fail "the metric is missing"

echo "one rank has another plan"
code=0
mkdir empty
timeout -k 5 60 mpirun --oversubscribe --bind-to none --mca pml ob1 \
  -n 1 "$ORDO_LIBEXEC/ordo-train" --data.train text.txt --strategy hostile --plugin-path "$plugins" --train.steps 2 : \
  -n 1 "$ORDO_LIBEXEC/ordo-train" --data.train text.txt --strategy hostile:rank=3 --plugin-path "$plugins" --train.steps 2 >said 2>&1 || code=$?
[ "$code" != 0 ] || fail "ranks with different plans went on"
expect "$code" "rank 1"
timeout -k 5 60 mpirun --oversubscribe --bind-to none --mca pml ob1 \
  -n 1 "$ORDO_LIBEXEC/ordo-train" --data.train text.txt --strategy hostile --plugin-path "$plugins" --train.steps 2 : \
  -n 1 "$ORDO_LIBEXEC/ordo-train" --data.train text.txt --strategy hostile --plugin-path empty --train.steps 2 >said 2>&1 || code=$?
expect "$code" "no strategy 'hostile'"
