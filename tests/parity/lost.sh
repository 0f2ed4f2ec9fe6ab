#!/bin/bash
# lost.sh ORDO FAKES - how a run on several ranks ends when it cannot go on: one error, the right one, from whoever knows.
#
# A killed rank is told by the launcher; a survivor that spoke would hide it, a second survivor would blame the first. A rank that hangs is told
# by the one that waited for it. Nothing of mpirun's own text comes through. A plan without an order is told by the plan, and nothing else is.
set -u
# A signal is to end a rank of a sanitized build too: the sanitizer would answer it with exit(1).
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}handle_segv=0
ordo=$1 fakes=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAIL $*"; cat "$dir/err"; failed=1; }

awk 'BEGIN {for (i = 0; i < 400; i++) printf "%d times %d is %d\n", i % 17, i % 13, (i % 17) * (i % 13)}' >"$dir/text.txt"
small="--data.train $dir/text.txt --model.layers 1 --model.hidden_size 16 --model.intermediate_size 24 --model.heads 2 --train.seq_len 16 --log.peak false"

# signal NAME RANKS SIGNAL VICTIM: starts a run, sends SIGNAL to rank VICTIM once it trains; the errors go to $dir/err.
signal() {
  local out=$dir/$1 ranks=$2 number=$3 victim=$4 mpirun rank
  $ordo train $small --ranks "$ranks" --train.steps 100000000 --train.deadline 4 --log.interval 1000000 --train.output "$out" >"$dir/out" 2>"$dir/err" &
  local pid=$!
  for _ in $(seq 150); do
    [ -s "$out/metrics.jsonl" ] && break
    sleep 0.2
  done
  mpirun=$(cat /proc/$pid/task/*/children)
  rank=$(cat /proc/${mpirun%% *}/task/*/children | tr ' ' '\n' | grep . | sed -n $((victim + 1))p)
  kill "-$number" "$rank"
  wait $pid
  code=$?
  [ $code = 1 ] || fail "$1: exit code $code"
  [ "$(grep -c '^error ' "$dir/err")" = 1 ] || fail "$1: there must be exactly one error"
  ! grep -q -e '------' -e 'help message' -e 'MCA parameter' -e MPI_A "$dir/err" || fail "$1: text of mpirun came through"
}

for round in 1 2; do
  signal "killed$round" 3 KILL 1
  grep -q '^error E-RUN-RANK-LOST: rank 1 was ended by signal 9' "$dir/err" || fail "killed: not said by the launcher"
done
echo "ok   a killed rank of three"
signal crashed 2 SEGV 1
grep -q '^error E-RUN-RANK-LOST: rank 1 was ended by signal 11' "$dir/err" || fail "crashed: not said by the launcher"
echo "ok   a crashed rank of two"
signal stopped 3 STOP 0
grep -q '^error E-COMM-TIMEOUT: .*rank 0' "$dir/err" || fail "stopped: rank 0 is not named"
echo "ok   a rank of three that hangs"

$ordo train $small --ranks 2 --plugin-path "$fakes" --strategy fsdp1 --precision jointx --train.output "" >"$dir/out" 2>"$dir/err"
[ $? = 3 ] && grep -q E-PLAN-CYCLE "$dir/err" && ! grep -q E-INTERNAL "$dir/err" && [ "$(grep -c '^error ' "$dir/err")" = 1 ] || fail "a plan without an order"
echo "ok   a plan without an order"

# Three ranks and two sequences: it works, and says that a rank has nothing to do.
$ordo train $small --ranks 3 --train.batch 2 --train.steps 1 --train.output "" >"$dir/out" 2>"$dir/err" && grep -q '1 of 3 ranks have no sequence' "$dir/out" ||
  fail "more ranks than sequences"
echo "ok   more ranks than sequences"
# An error on a terminal is coloured; the ranks cannot see it, the command tells them.
$ordo train $small --color always --train.layers 1 >"$dir/out" 2>"$dir/err"
[ $? = 2 ] && grep -q "$(printf '\033')\[1;31merror" "$dir/err" || fail "--color always"
echo "ok   a coloured error"
exit $failed
