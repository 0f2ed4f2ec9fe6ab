#!/bin/sh
# verbs.sh ORDO - train, eval and generate as a person meets them: what a run leaves, that it can be repeated from resolved.ini, exit codes of
# bad input, a signal, and a killed rank. Needs no data from outside. ORDO_LIBEXEC and ORDO_PLUGIN_PATH point into the build.
set -u
ordo=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

fail() {
  echo "FAIL $*"
  failed=1
}

# code WORD COMMAND...: the command must end with the code and say the word on standard error.
expect() {
  code=$1 word=$2
  shift 2
  "$@" >"$dir/out" 2>"$dir/err"
  got=$?
  if [ "$got" != "$code" ] || ! grep -q -- "$word" "$dir/err"; then
    fail "$* ended with $got (wanted $code) or did not say '$word':"
    cat "$dir/err"
  else
    echo "ok   exit $code: $word"
  fi
}

awk 'BEGIN {for (i = 0; i < 400; i++) printf "%d times %d is %d\n", i % 17, i % 13, (i % 17) * (i % 13)}' >"$dir/text.txt"
small="--data.train $dir/text.txt --model.layers 1 --model.hidden_size 16 --model.intermediate_size 24 --model.heads 2 --train.seq_len 16 --log.peak false"

# A run, its files, and the same run again from what it saved.
$ordo train $small --train.steps 5 --data.validation_fraction 0.1 --train.output "$dir/run" >"$dir/out" 2>&1 || fail "train: $(cat "$dir/out")"
for file in metrics.jsonl validation.jsonl summary.json resolved.ini model/config.json model/model.safetensors; do
  [ -s "$dir/run/$file" ] || fail "$file was not written"
done
[ "$(wc -l <"$dir/run/metrics.jsonl")" = 5 ] || fail "metrics.jsonl has not 5 lines"
$ordo train "$dir/run/resolved.ini" --train.output "$dir/again" >"$dir/out" 2>&1 || fail "train from resolved.ini: $(cat "$dir/out")"
cmp -s "$dir/run/model/model.safetensors" "$dir/again/model/model.safetensors" || fail "the run from resolved.ini gave another model"
$ordo eval --model.path "$dir/run/model" --data.validation "$dir/text.txt" --train.seq_len 16 | tail -1 | grep -q '"nats_per_byte":[0-9]' || fail "eval has no nats per byte"
[ "$($ordo generate --model.path "$dir/run/model" --generate.prompt abc --generate.positions 2)" = abc ] || fail "generate does not print the prompt"
[ -z "$(ls "$dir/run" | grep tmp)" ] || fail "temporary files were left"
echo "ok   a run and what it leaves"

# Bad input.
: >"$dir/empty.txt"
printf 'ab\000cd%01000d' 7 >"$dir/binary.txt"
printf '[train]\r\nsteps = 1\r\nstep = 2\r\n' >"$dir/crlf.ini"
expect 2 "did you mean train.steps" $ordo train "$dir/crlf.ini"
expect 2 "it is empty" $ordo train "$dir/empty.txt"
expect 2 "it is empty" $ordo train --data.train "$dir/empty.txt"
expect 2 "byte 2 is zero" $ordo train --data.train "$dir/binary.txt"
expect 2 "does not divide" $ordo train $small --model.heads 3 --train.output ""
expect 2 "there is no such file" $ordo train --data.train "$dir/none.txt"
expect 2 "shorter than one sequence" $ordo train --data.train "$dir/text.txt" --train.seq_len 100000 --train.output ""
expect 2 "no strategy" $ordo train $small --strategy nosuch --train.output ""
expect 2 "is missing" $ordo eval --data.train "$dir/text.txt"
expect 1 "cannot make the directory" $ordo train $small --train.output "$dir/text.txt/run"
printf 'x' >>"$dir/run/model/model.safetensors"
expect 2 "E-SAFETENSORS" $ordo generate --model.path "$dir/run/model"

# A signal: the step ends, the model is saved, exit code 0.
$ordo train $small --train.steps 1000000 --log.interval 1000000 --train.output "$dir/signal" >"$dir/out" 2>"$dir/err" &
pid=$!
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  [ -s "$dir/signal/metrics.jsonl" ] && break
  sleep 0.2
done
kill -TERM $pid
wait $pid
[ $? = 0 ] && [ -s "$dir/signal/model/model.safetensors" ] && grep -q "stopped by a signal" "$dir/out" || fail "SIGTERM did not end in a saved model: $(cat "$dir/err")"
echo "ok   a signal"

# A killed rank: the others end within seconds, with a message and exit code 1.
if command -v mpirun >/dev/null; then
  $ordo train $small --ranks 2 --strategy ddp --train.steps 1000000 --log.interval 1000000 --train.output "$dir/killed" >"$dir/out" 2>"$dir/err" &
  pid=$!
  for i in $(seq 100); do
    [ -s "$dir/killed/metrics.jsonl" ] && break
    sleep 0.2
  done
  victim=$(for p in /proc/[0-9]*; do cat "$p/cmdline" 2>/dev/null | tr '\000' ' ' | grep -q "^[^ ]*ordo-train .*$dir/killed" && basename "$p"; done | head -1)
  started=$(date +%s)
  kill -9 "$victim"
  wait $pid
  code=$?
  took=$(($(date +%s) - started))
  [ $code = 1 ] && [ $took -le 15 ] && grep -q "E-COMM-PEER-LOST\|E-RUN-RANK-LOST" "$dir/err" || fail "a killed rank: exit $code after $took s: $(cat "$dir/err")"
  echo "ok   a killed rank ($took s)"
fi
exit $failed
