#!/bin/sh
# verbs.sh ORDO - train, eval and generate as a person meets them: what a run leaves, that it can be repeated from resolved.ini, exit codes of
# bad input, a signal, and a killed rank. Needs no data from outside. ORDO_LIBEXEC and ORDO_PLUGIN_PATH point into the build.
set -u
ordo=$(realpath "$1")
. "$(dirname "$0")/../script.sh"

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
[ "$($ordo eval --model "$dir/run/model" "$dir/run/resolved.ini" --train.ranks 1 | tail -1 | sed 's/.*"loss":\([^,]*\).*/\1/')" = \
  "$(tail -1 "$dir/run/validation.jsonl" | sed 's/.*"loss":\([^,]*\).*/\1/')" ] || fail "eval of resolved.ini is not the validation of the run"
grep -q "tokenizer=bytes" "$dir/run/model/ordo.ini" || fail "the model does not remember its tokenizer"
[ -z "$(ls "$dir/run" | grep tmp)" ] || fail "temporary files were left"
echo "ok   a run and what it leaves"

# A directory belongs to one run.
cp -r "$dir/run" "$dir/before"
expect 2 "E-TRAIN-OUTPUT" $ordo train $small --train.steps 2 --train.output "$dir/run"
expect 2 "is part of the run" $ordo train --data "$dir/text.txt" --train.seq_len 16 --model "$dir/run/model" --output "$dir/run" --overwrite
diff -r "$dir/run" "$dir/before" || fail "a refused run has changed the earlier one"
$ordo train $small --train.steps 2 --train.output "$dir/before" --overwrite >"$dir/out" 2>&1 || fail "overwrite: $(cat "$dir/out")"
[ "$(wc -l <"$dir/before/metrics.jsonl")" = 2 ] && [ ! -e "$dir/before/validation.jsonl" ] || fail "an overwritten run is mixed with the earlier one"
mkdir "$dir/default"
for n in 1 2; do
  (cd "$dir/default" && $ordo train $small --train.steps 1 >"$dir/out" 2>&1) || fail "default output: $(cat "$dir/out")"
done
[ -s "$dir/default/ordo-run/summary.json" ] && [ -s "$dir/default/ordo-run-2/summary.json" ] || fail "the default name was not numbered: $(ls "$dir/default")"
expect 2 "no strategy" $ordo train $small --strategy nosuch --train.output "$dir/never"
[ ! -e "$dir/never" ] || fail "a run that did not begin has left something"
echo "ok   output directories"

# A model whose words were ids, and text for it.
head -c 6000 "$dir/text.txt" >"$dir/ids.bin"
$ordo train $small --data.train "$dir/ids.bin" --model.vocab_size 65536 --train.steps 1 --train.output "$dir/ids" >"$dir/out" 2>&1 || fail "ids: $(cat "$dir/out")"
[ ! -e "$dir/ids/model/ordo.ini" ] && ! grep -q eos "$dir/ids/model/config.json" || fail "ids made a tokenizer"
expect 2 "E-TOKENIZER-UNKNOWN" $ordo generate --model "$dir/ids/model" --prompt a
expect 2 "E-TOKENIZER-UNKNOWN" $ordo generate --model "$dir/ids/model" --generate.prompt_ids 3
expect 2 "E-TOKENIZER-UNKNOWN" $ordo eval --model "$dir/ids/model" --data "$dir/text.txt" --train.seq_len 16
expect 2 "E-TOKENIZER-UNKNOWN" $ordo train --model "$dir/ids/model" --data "$dir/text.txt" --train.seq_len 16 --output "$dir/ids2"
expect 2 "E-TOKENIZER-UNKNOWN" $ordo train --model "$dir/ids/model" --data "$dir/ids.bin" --train.seq_len 16 --output "$dir/ids2" --train.sample_positions 2
expect 0 "was it trained on bytes?" $ordo generate --model "$dir/ids/model" --prompt a --tokenizer bytes --generate.positions 2
[ "$($ordo generate --model "$dir/ids/model" --generate.prompt_ids 3,4 --generate.print_ids --generate.positions 1 | wc -l)" = 2 ] || fail "ids need a tokenizer"

# What would have no effect, or another one than asked for.
expect 2 "generate.positions = 17 is too many" $ordo generate --model "$dir/run/model" --prompt a --generate.positions 17
expect 2 "train.sample_positions = 17 is too many" $ordo train $small --train.sample_positions 17 --output "$dir/never"
expect 2 "generate.top_k has no effect" $ordo generate --model "$dir/run/model" --prompt a --generate.top_k 5
expect 2 "generate.top_p has no effect" $ordo generate --model "$dir/run/model" --prompt a --generate.top_p 0.5
$ordo generate --model "$dir/run/model" --prompt a --generate.top_k 5 --temperature 1 >"$dir/out" 2>&1 || fail "top_k with a temperature: $(cat "$dir/out")"
expect 2 "two sources of validation data" $ordo eval "$dir/run/resolved.ini" --model "$dir/run/model" --data.validation "$dir/text.txt"
expect 2 "give --data FILE" $ordo eval --model "$dir/run/model"
expect 2 "if it is the data: --data $dir/text.txt" $ordo train "$dir/text.txt"
expect 2 "give the directory: --model $dir/run/model" $ordo generate --model "$dir/run/model/model.safetensors"
expect 2 "give the directory: --model $dir/run/model" $ordo generate --model "$dir/run"
expect 2 "ordo train --help. lists all keys" $ordo train --nosuchkey 1

# Bad input.
: >"$dir/empty.txt"
printf 'ab\000cd%01000d' 7 >"$dir/binary.txt"
printf '[train]\r\nsteps = 1\r\nstep = 2\r\n' >"$dir/crlf.ini"
expect 2 "did you mean train.steps" $ordo train "$dir/crlf.ini"
expect 2 "it is empty" $ordo train "$dir/empty.txt"
expect 2 "it is empty" $ordo train --data.train "$dir/empty.txt"
expect 2 "byte 2 is zero" $ordo train --data.train "$dir/binary.txt"
expect 2 "is not a multiple of heads" $ordo train $small --model.heads 3 --train.output ""
expect 2 "there is no such file" $ordo train --data.train "$dir/none.txt"
expect 2 "shorter than one sequence" $ordo train --data.train "$dir/text.txt" --train.seq_len 100000 --train.output ""
expect 2 "no strategy" $ordo train $small --strategy nosuch --train.output ""
expect 2 "model.path is missing" $ordo eval --data.train "$dir/text.txt"
expect 1 "cannot make the directory" $ordo train $small --train.output "$dir/text.txt/run"
printf 'x' >>"$dir/run/model/model.safetensors"
expect 2 "E-SAFETENSORS" $ordo generate --model.path "$dir/run/model"

# A signal: the step ends, the model is saved, exit code 1, since the run is not done. One rank and two.
stopped() { # RANKS SIGNAL
  out=$dir/signal$1$2
  # A child of this shell in the background would ignore SIGINT, so the handlers are reset.
  env --default-signal=INT $ordo train $small --ranks $1 --train.steps 1000000 --log.interval 1000000 --train.output "$out" >"$dir/out" 2>"$dir/err" &
  pid=$!
  for i in $(seq 100); do
    [ -s "$out/metrics.jsonl" ] && break
    sleep 0.2
  done
  kill -$2 $pid
  wait $pid
  code=$?
  [ $code = 1 ] && [ -s "$out/model/model.safetensors" ] && [ -s "$out/summary.json" ] && [ "$(grep -c "E-TRAIN-STOPPED: stopped by SIG$2 after step" "$dir/err")" = 1 ] &&
    [ "$(grep -c '^error' "$dir/err")" = 1 ] || fail "SIG$2 on $1 ranks: exit $code, $(cat "$dir/err")"
  echo "ok   SIG$2 on $1 ranks"
}
stopped 1 TERM
stopped 1 INT
if command -v mpirun >/dev/null; then
  stopped 2 TERM
  stopped 2 INT
fi

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
