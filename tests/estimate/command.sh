#!/bin/sh
# command.sh ORDO CLUMSY_DIR LIMIT - `ordo plan --estimate` as a person meets it: the table, JSON with stable keys, an estimate of a configuration
# file against the run of that file, a job far larger than this machine within LIMIT MiB of memory (0: not looked at), and every refusal.
# ORDO_LIBEXEC and ORDO_PLUGIN_PATH point into the build.
set -u
ordo=$(realpath "$1") clumsy=$2 limit=$3
. "$(dirname "$0")/../script.sh"

small="--model.layers 2 --model.hidden_size 16 --model.intermediate_size 24 --model.heads 2 --train.seq_len 16"

# The table begins with the plan and has every rank that was asked for.
$ordo plan --estimate --world 4 -s ddp $small --ranks-shown 3,1 >"$dir/table" || fail "the table"
$ordo plan --world 4 -s ddp | head -3 >"$dir/plan"
head -3 "$dir/table" | cmp -s - "$dir/plan" || fail "the table does not begin with the plan"
grep -q '^rank 3 of 4   ddp=3/4' "$dir/table" && grep -q '^rank 1 of 4' "$dir/table" || fail "ranks 3 and 1 are not in the table"
grep -q 'model.layers.\*.mlp.up_proj.weight *x2 *\[24, 16\] *\[24, 16\]' "$dir/table" || fail "shapes: $(grep up_proj "$dir/table")"
[ "$($ordo plan --estimate --ranks 4 --strategy ddp $small | grep -c '^rank ')" = 2 ] || fail "the first and the last rank are not shown"

# JSON, on its own on standard output.
$ordo plan --estimate --world 3 -s fsdp2 $small --json >"$dir/json" 2>"$dir/err" || fail "JSON: $(cat "$dir/err")"
python3 - "$dir/json" <<'END' || fail "keys of the JSON"
import json, sys
d = json.load(open(sys.argv[1]))
assert set(d) == {"plan", "model", "batch", "seq_len", "steps", "ranks"}, d.keys()
assert d["plan"]["strategy"] == "fsdp2" and d["plan"]["ranks"] == 3 and len(d["plan"]["digest"]) == 16
assert d["model"]["layers"] == 2 and d["model"]["parameters"] > 0
tags = {"weights", "gradients", "optimizer", "activations", "comm", "other", "total"}
assert [r["rank"] for r in d["ranks"]] == [0, 2]
for r in d["ranks"]:
    assert set(r) == {"rank", "place", "sequences", "micro_batches", "micro_batch", "peak_bytes", "bytes", "setup", "first_step", "later_step",
                      "leaves"}, r.keys()
    assert set(r["peak_bytes"]) == tags and set(r["bytes"]) == tags
    assert r["later_step"]["fsdp2"]["reduce_scatter"]["calls"] == 3
    assert r["peak_bytes"]["total"] >= r["bytes"]["total"] > 0
    assert {"name", "count", "whole", "here"} == set(r["leaves"][0])
whole = d["model"]["parameters"] * 4
assert whole <= 3 * d["ranks"][0]["bytes"]["weights"] < 2 * whole  # a third each, and padding
END

# A configuration file, estimated and run.
awk 'BEGIN {for (i = 0; i < 400; i++) printf "%d times %d is %d\n", i % 17, i % 13, (i % 17) * (i % 13)}' >"$dir/text.txt"
cat >"$dir/run.ini" <<END
[model]
layers = 2
hidden_size = 32
intermediate_size = 48
heads = 2
[data]
train = $dir/text.txt
[train]
steps = 3
seq_len = 16
batch = 6
micro_batch = 2
ranks = 2
output = $dir/run
[strategy]
name = fsdp2
[log]
peak = false
progress = none
END
compare() { # [options]: the estimate of the file and its run, by tag, on rank 0
  $ordo plan --estimate "$dir/run.ini" --json --ranks-shown 0 "$@" >"$dir/json" 2>"$dir/err" || fail "a configuration file $*: $(cat "$dir/err")"
  $ordo train "$dir/run.ini" --overwrite "$@" >"$dir/out" 2>&1 || fail "train $*: $(cat "$dir/out")"
  python3 - "$dir/json" "$dir/run/summary.json" <<'END' || fail "the run of a file and its estimate $*"
import json, sys
estimate, run = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
assert estimate["plan"]["digest"] == run["plan_digest"]
dry, real = estimate["ranks"][0]["peak_bytes"], run["peak_bytes"]
for tag in dry:
    print("%-12s %10d measured %10d estimated" % (tag, real[tag], dry[tag]))
    assert abs(dry[tag] - real[tag]) <= 0.05 * real[tag], tag
END
}
weights() { sed -n 's/.*"peak_bytes":{"weights":\([0-9]*\).*/\1/p' "$dir/run/summary.json"; }
if $ordo list | grep -q '^apex_amp '; then
  compare --precision apex_amp:O0
  whole=$(weights)
  for level in O2 O5; do
    compare --precision "apex_amp:$level"
    [ "$(weights)" -lt "$whole" ] || fail "$level: weights take $(weights) bytes, in fp32 $whole"
  done
fi
compare
# The model of the run, without its weights, as a directory and as its description alone.
rm "$dir/run/model/model.safetensors"
$ordo plan --estimate --world 2 -s ddp --model "$dir/run/model" --train.seq_len 16 >"$dir/a" || fail "a directory without weights"
$ordo plan --estimate --world 2 -s ddp --model "$dir/run/model/config.json" --train.seq_len 16 >"$dir/b" || fail "config.json"
grep -v '^model' "$dir/a" >"$dir/a2"
grep -v '^model' "$dir/b" | cmp -s "$dir/a2" - || fail "a directory and its config.json give two estimates"

# 70 thousand million parameters on 1024 ranks: four times 280 GB per rank with ddp, on this machine.
cat >"$dir/limited.py" <<'END'
import resource, subprocess, sys
code = subprocess.run(sys.argv[2:], stdout=open(sys.argv[0] + ".out", "w")).returncode
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print("%.0f MiB resident" % peak)
sys.exit(code or (int(sys.argv[1]) > 0 and peak > int(sys.argv[1])))
END
strategies="ddp fsdp1 fsdp2 ddp=8+fsdp2"
$ordo list | grep -q '^tp ' && strategies="$strategies tp=8+fsdp2"
for strategy in $strategies; do
  python3 "$dir/limited.py" "$limit" "$ordo" plan --estimate --world 1024 -s "$strategy" --model.layers 80 --model.hidden_size 8192 \
    --model.heads 64 --model.kv_heads 8 --model.intermediate_size 28672 --model.vocab_size 128256 --model.tie_embeddings=false \
    --train.seq_len 4096 --train.batch 1024 >"$dir/out" 2>&1 || fail "1024 ranks of $strategy: $(cat "$dir/out")"
  grep -q '^model    70553706496 parameters' "$dir/limited.py.out" || fail "$strategy: $(grep '^model' "$dir/limited.py.out")"
  echo "ok   70B on 1024 ranks of $strategy: $(cat "$dir/out")"
done

# Refusals.
expect 2 E-MESH-SIZE $ordo plan --estimate --world 4 -s ddp=3 $small
expect 2 "no rank '4' of 4" $ordo plan --estimate --world 4 -s ddp $small --ranks-shown 0,4
expect 2 E-ESTIMATE-RANK $ordo plan --estimate --world 4 -s ddp $small --ranks-shown first
expect 2 E-ESTIMATE-RANK $ordo plan --estimate --world 4 -s ddp $small --ranks-shown -1
expect 2 E-ESTIMATE-MODEL $ordo plan --estimate --world 4 -s ddp
expect 2 E-ESTIMATE-WORLD $ordo plan --estimate -s ddp $small
expect 2 E-MODEL-PATH $ordo plan --estimate --world 2 -s ddp --model "$dir/nothing"
expect 2 E-CONFIG-VALUE $ordo plan --estimate --world 2 -s ddp --model "$dir/run/model" --train.seq_len 100000
expect 2 E-CONFIG-VALUE $ordo plan --estimate --world 2 -s ddp --model.layers 2 --model.heads 3 --model.hidden_size 16
expect 2 E-CONFIG-KEY $ordo plan --estimate --world 2 -s ddp $small --nonsense 1
expect 2 "exclude each other" $ordo plan --estimate --world 2 -s ddp $small --explain
expect 2 E-PLUGIN-UNKNOWN $ordo plan --estimate --world 2 -s nonsense $small
# More tensors than a process has addresses.
huge="--model.layers 10000 --model.hidden_size 262144 --model.intermediate_size 262144 --model.heads 64 --model.vocab_size 1000000"
expect 1 E-NOMEM $ordo plan --estimate --world 2 -s ddp $huge
expect 1 E-TRAIN-MEMORY $ordo plan --estimate --world 2 -s ddp --model.layers 400 --model.hidden_size 512 --model.intermediate_size 1024 --model.heads 8 \
  --train.seq_len 4096 --train.batch 8192
# Plugins: one that does not declare it, one that declares it and touches a gradient, and one that is refused before any plugin is loaded.
expect 2 E-DRY-RUN-PLUGIN $ordo --plugin-path "$clumsy" plan --estimate --world 2 -s silent $small
grep -q "plugin 'silent'" "$dir/err" || fail "the plugin is not named: $(cat "$dir/err")"
expect 4 E-DRY-RUN-TOUCHED $ordo --plugin-path "$clumsy" plan --estimate --world 2 -s liar $small
grep -q "'liar'" "$dir/err" || fail "the strategy is not named: $(cat "$dir/err")"
# Help says what is run, and the program by its own name starts no ranks either.
$ordo plan --estimate --help | grep -q 'the plugins ARE loaded' || fail "--help does not say that plugins run"
$ordo plan --help | grep -q -- --estimate || fail "ordo plan --help does not name --estimate"
$ordo estimate --ranks 1000 --strategy ddp $small >"$dir/out" 2>&1 || fail "ordo estimate: $(cat "$dir/out")"

exit $failed
