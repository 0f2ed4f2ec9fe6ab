#!/bin/bash
# ranks.sh ORDO LIBEXEC - one rank is killed, stopped, or never arrives: the others end with an error within seconds, and nothing is left.
set -eu
. "$(dirname "$0")/lib.sh"
# A signal is to end a rank of a sanitized build too: the sanitizer would answer it with exit(1).
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}handle_segv=0
steps="--train.steps 100000000 --log.progress none --optim.lr 0"

# The processes of this test's ranks, in the order of their start: they alone have the scratch directory on their command line.
ranks_of() { pgrep -f "ordo-train .*--train.output $work/run" | while read -r p; do
  [ "$(cat /proc/"$p"/comm 2>/dev/null)" = ordo-train ] && echo "$p"; done | sort -n || true; }

# lose SIGNAL RANKS WHICH: starts, waits until steps were made, sends the signal to one rank, waits for the end.
lose() {
  local signal=$1 ranks=$2 which=$3 launcher victims began
  rm -rf run
  train_code=0
  "$ordo" train --data.train text.txt --model.layers 1 --model.hidden_size 16 --model.intermediate_size 32 --model.heads 2 --train.batch 6 \
    --train.seq_len 16 $steps --train.output "$work/run" --train.deadline 3 --ranks "$ranks" >said 2>&1 &
  launcher=$!
  for _ in $(seq 300); do [ -s run/metrics.jsonl ] && break; sleep 0.1; done
  [ -s run/metrics.jsonl ] || fail "no step was made within 30 s"
  mapfile -t victims < <(ranks_of)
  [ "${#victims[@]}" = "$ranks" ] || fail "expected $ranks processes, found: ${victims[*]}"
  began=$SECONDS
  kill -"$signal" "${victims[$which]}"
  for _ in $(seq 400); do kill -0 $launcher 2>/dev/null || break; sleep 0.1; done
  if kill -0 $launcher 2>/dev/null; then kill -9 "${victims[@]}" $launcher; fail "signal $signal at $ranks ranks: still running after 40 s"; fi
  code=0
  wait $launcher || code=$?
  [ $((SECONDS - began)) -le 30 ] || fail "took $((SECONDS - began)) s"
  for _ in $(seq 50); do [ -z "$(ranks_of)" ] && break; sleep 0.1; done
  [ -z "$(ranks_of)" ] || fail "left behind: $(ranks_of)"
  ! grep -q -e '-----' -e 'help message' said || fail "mpirun's own words came through"
}

echo "killed"
for ranks in 2 5; do
  lose KILL $ranks $((ranks - 1)); expect 1 E-RUN-RANK-LOST "signal 9"
done
lose SEGV 3 0; expect 1 E-RUN-RANK-LOST "signal 11"

echo "stopped: the deadline ends the wait"
lose STOP 2 1; expect 1 "did not finish within 3 s"
lose STOP 3 0; expect 1 "did not finish within 3 s"

echo "never arrived: the start has a limit too"
began=$SECONDS code=0
timeout -k 5 60 mpirun --oversubscribe --bind-to none --mca pml ob1 \
  -n 1 "$ORDO_LIBEXEC/ordo-train" --data.train text.txt --train.deadline 2 --train.output "$work/run" : -n 1 sleep 50 >said 2>&1 || code=$?
[ "$code" != 0 ] && [ $((SECONDS - began)) -lt 30 ] || fail "exit code $code after $((SECONDS - began)) s"
grep -q "E-COMM-TIMEOUT: the start of communication took longer than 2 s" said || fail "no error of the house"

echo "a /dev/shm that is too small for MPI"
if unshare -m mount -t tmpfs -o size=1m tmpfs /dev/shm 2>/dev/null; then
  code=0
  unshare -m sh -c 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"' sh "$ordo" train --data.train text.txt --model.layers 1 \
    --model.hidden_size 16 --model.intermediate_size 32 --model.heads 2 --train.seq_len 16 --train.steps 2 --log.peak false --ranks 2 \
    --train.output "$work/run" --train.overwrite >said 2>&1 || code=$?
  expect 0 "2 steps"
else
  echo "not tried: this user may not mount"
fi
