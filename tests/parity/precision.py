#!/usr/bin/env python3
"""precision.py ORDO PLUGINS TRAINER - apex_amp with the shipped strategies as a person meets it: who owns the precision, what is refused twice,
the matrix, models of 16 bits that are saved and trained on, and bad input through `ordo train`. PLUGINS is the directory of the built plugins."""
import json
import os
import struct
import subprocess
import sys
import tempfile

ordo, plugins, trainer = sys.argv[1:]
names = ("ddp", "fsdp1", "fsdp2", "tp", "apex_amp")
environment = dict(os.environ, ORDO_LIBEXEC=trainer, ORDO_PLUGIN_PATH="", OPENBLAS_NUM_THREADS="1")
path = ":".join(f"{plugins}/{name}" for name in names)
failed = 0


def check(condition, text):
    global failed
    if not condition:
        print("FAIL", text)
        failed = 1


def run(*words, more=()):
    where = ":".join([path, *more])
    return subprocess.run([ordo, words[0], "--plugin-path", where, *map(str, words[1:])], env=environment, capture_output=True, text=True)


def plan(strategy, precision, *words, **keys):
    return run("plan", "--strategy", strategy, "--precision", precision, "--ranks", 2, *words, **keys)


# ---- precision has one owner, and both are named ----
for strategy in ("fsdp1", "fsdp2"):
    for owned in ("param_dtype=bf16", "param_dtype=f16"):
        for level in ("O1", "O2", "O3", "O4", "O5"):
            what = f"{strategy}:{owned} with apex_amp:{level}"
            text = plan(f"{strategy}:{owned}", f"apex_amp:{level}")
            check(text.returncode == 3, f"{what}: exit {text.returncode}")
            line = [one for one in text.stdout.splitlines() if "E-PLAN-PRECISION-OWNER" in one]
            check(len(line) == 1 and f"'{strategy}'" in line[0] and "'apex_amp'" in line[0], f"{what}: {text.stdout}")
            found = json.loads(plan(f"{strategy}:{owned}", f"apex_amp:{level}", "--json").stdout)
            owners = [one for one in found["findings"] if one["code"] == "E-PLAN-PRECISION-OWNER"]
            check(not found["legal"] and len(owners) == 1, f"{what}: {found['findings']}")
            check(all(f"'{name}'" in owners[0]["text"] for name in (strategy, "apex_amp")), f"{what}: {owners}")
            check(f"choose {strategy}:param_dtype=f32" in found["fixes"], f"{what}: {found['fixes']}")
    check(plan(f"{strategy}:param_dtype=bf16", "apex_amp:O0").returncode == 0, f"{strategy}: O0 converts nothing")
print("ok   owners")

# ---- twice ----
for precision in ("apex_amp+apex_amp", "apex_amp:O1+apex_amp:O2", "apex_amp:O2+bf16-mixed"):
    done = plan("ddp", precision)
    check(done.returncode == 2 and "one precision plugin at most" in done.stderr, f"{precision}: {done.returncode} {done.stderr}")
for strategy in ("ddp=2+ddp=2", "fsdp1=2+fsdp1=2", "fsdp2=2+fsdp2=2"):
    done = run("plan", "--strategy", strategy, "--precision", "apex_amp:O2", "--ranks", 4)
    check(done.returncode == 2 and "stands twice" in done.stderr, f"{strategy}: {done.returncode} {done.stderr}")
done = run("plan", "--strategy", "fsdp1=2+fsdp2=2", "--precision", "apex_amp:O2", "--ranks", 4)
check(done.returncode == 3 and "'fsdp1'" in done.stdout and "'fsdp2'" in done.stdout, f"two that shard: {done.returncode} {done.stdout}")
print("ok   twice")

# ---- the matrix: a conflict with apex_amp is one without it, or has a second owner ----
cells = {(one["strategy"], one["precision"]): one for one in json.loads(run("matrix", "--json").stdout)["combinations"]}
column = [one for one in cells.values() if one["precision"] == "apex_amp"]
check(len(column) >= 13, f"{len(column)} cells of apex_amp")
for one in column:
    alone = cells[one["strategy"], "none"]
    check(one["legal"] or one["code"] == "E-PLAN-PRECISION-OWNER" or (not alone["legal"] and alone["code"] == one["code"]),
          f"{one['strategy']} with apex_amp: {one['code']} {one['text']}")
for name in ("none", "ddp", "fsdp1", "fsdp2", "tp", "tp+fsdp1", "ddp+fsdp2", "tp+ddp+fsdp2"):
    check(cells[name, "apex_amp"]["legal"], f"{name} with apex_amp has no order")
steps = plan("fsdp1", "apex_amp:O2", "--steps").stdout.split()
order = ["precision.convert_model", "strategy.wrap", "optimizer.create", "precision.wrap_optimizer"]
check([one for one in steps if one in order] == order, f"fsdp1 with apex_amp:O2: {steps}")
print("ok   matrix")

# ---- weights of 16 bits: saved, read again, trained on ----
work = tempfile.TemporaryDirectory()
text = f"{work.name}/text.txt"
open(text, "w").write("".join(f"{i % 17} times {i % 13} is {(i % 17) * (i % 13)}\n" for i in range(400)))
SMALL = {"data.train": text, "data.tokenizer": "bytes", "train.seq_len": 32, "train.batch": 4, "train.steps": 4, "optim.lr": 1e-2,
         "log.peak": "false", "log.progress": "none", "train.deadline": 60}
FRESH = {"model.layers": 1, "model.hidden_size": 32, "model.intermediate_size": 48, "model.heads": 4}
serial = 0


def train(strategy, precision, ranks, **keys):
    global serial
    serial += 1
    output = f"{work.name}/run{serial}"
    values = {**SMALL, **({} if "model_path" in keys else FRESH), **{key.replace("_", ".", 1): value for key, value in keys.items()}}
    words = [word for key, value in values.items() for word in (f"--{key}", value)]
    return output, run("train", "--strategy", strategy, "--precision", precision, "--ranks", ranks, "--train.output", output, *words)


def tensors(directory):
    """name -> (dtype, bytes)"""
    blob = open(f"{directory}/model/model.safetensors", "rb").read()
    size = struct.unpack("<Q", blob[:8])[0]
    head = json.loads(blob[8:8 + size])
    return {name: (one["dtype"], blob[8 + size + one["data_offsets"][0]:8 + size + one["data_offsets"][1]]) for name, one in head.items()
            if name != "__metadata__"}


def widened(kind, blob):
    if kind == "F16":
        return list(struct.unpack(f"<{len(blob) // 2}e", blob))
    if kind == "BF16":
        blob = b"".join(b"\0\0" + blob[i:i + 2] for i in range(0, len(blob), 2))
    return list(struct.unpack(f"<{len(blob) // 4}f", blob))


def losses(output):
    return [json.loads(line)["loss"] for line in open(f"{output}/metrics.jsonl")]


for precision, kind, key in (("apex_amp:O3", "F16", "f16"), ("bf16-true", "BF16", "bf16")):
    for strategy, ranks in (("none", 1), ("ddp", 2), ("fsdp1", 2), ("fsdp2", 2), ("tp", 2)):
        what = f"{precision} under {strategy}"
        saved = {}
        for dtype in ("f32", key):
            output, done = train(strategy, precision, ranks, checkpoint_dtype=dtype, train_ordered="true")
            check(done.returncode == 0, f"{what}: {done.stderr}")
            if done.returncode:
                break
            saved[dtype] = (output, tensors(output))
        if len(saved) < 2:
            continue
        wide, low = saved["f32"][1], saved[key][1]
        check(all(one[0] == "F32" for one in wide.values()) and all(one[0] == kind for one in low.values()), f"{what}: types of the files")
        for name in wide:  # what training holds has 16 bits, so neither file rounds it
            check(widened(*wide[name]) == widened(*low[name]), f"{what}: {name} differs between the files")
        again = [train(strategy, precision, ranks, model_path=f"{saved[dtype][0]}/model", train_ordered="true") for dtype in ("f32", key)]
        for output, done in again:
            check(done.returncode == 0, f"{what}, trained on: {done.stderr}")
        if any(done.returncode for _, done in again):
            continue
        check(losses(again[0][0]) == losses(again[1][0]), f"{what}: the two files are trained on differently")
        check(losses(again[0][0])[0] < losses(saved["f32"][0])[0], f"{what}: the weights were not loaded: {losses(again[0][0])}")
# A first rate below what 16 bits can show is said, and waits for larger ones; it is no error.
output, done = train("fsdp2", "apex_amp:O3", 2, optim_lr="3e-5", optim_warmup_steps="3000")
check(done.returncode == 0 and done.stderr.count("changed no weight") == 1, f"a slow warm-up in 16 bits: {done.stderr}")
print("ok   weights of 16 bits")

# ---- O0 leaves a strategy's own precision alone, as no precision plugin does ----
alone, beside = (train("fsdp2:param_dtype=bf16", precision, 2, train_ordered="true") for precision in ("none", "32-true"))
check(alone[1].returncode == 0 and beside[1].returncode == 0, f"O0 beside a strategy that casts: {alone[1].stderr} {beside[1].stderr}")
if not failed:
    check(losses(alone[0]) == losses(beside[0]), f"O0 changes a strategy that casts: {losses(alone[0])} {losses(beside[0])}")
print("ok   O0")

# ---- what runs is shown: the level behind an alias, and the scale of every step ----
for precision, resolved, scaled in (("16-mixed:init_scale=256", "apex_amp:O1:scaler=torch:init_scale=256", 256), ("apex_amp", "apex_amp:O1", 65536),
                                    ("bf16-mixed", "apex_amp:O4", None), ("apex_amp:O2:loss_scale=8", "apex_amp:O2:loss_scale=8", 8),
                                    ("none", "none", None)):
    output, done = train("ddp", precision, 2, log_progress="plain")
    check(done.returncode == 0, f"{precision}: {done.stderr}")
    if done.returncode:
        continue
    plan_line = [line for line in done.stdout.splitlines() if line.startswith("plan ")]
    check(len(plan_line) == 1 and ("with" not in plan_line[0] if precision == "none" else f"with {resolved} on 2 ranks" in plan_line[0]), f"{precision}: {plan_line}")
    check(json.load(open(f"{output}/summary.json")).get("precision") == resolved, f"{precision}: summary.json")
    lines = [json.loads(line) for line in open(f"{output}/metrics.jsonl")]
    used = [line.get("apex_amp.loss_scale") for line in lines]
    check(used == [scaled] * len(lines) or any(line["skipped"] for line in lines) and None not in used and used[0] == scaled, f"{precision}: {used}")
    check(("  scale " in done.stdout) == (scaled is not None), f"{precision}: the lines of the steps: {done.stdout}")
print("ok   shown")

# ---- bad input through the program ----
for precision, word in (("apex_amp:O5:loss_scale=128", "bf16 has the range of fp32"), ("bf16-mixed:loss_scale=dynamic", "bf16 has the range of fp32"),
                        ("apex_amp:O1:master_weights=yes", "would be copies"), ("apex_amp:O2:num_losses=0", "num_losses"),
                        ("apex_amp:O2:init_scale=0", "init_scale=0 is outside of"), ("apex_amp:O2:max_loss_scale=0", "max_loss_scale=0 is outside of"),
                        ("apex_amp:O1:max_loss_scale=1e-300", "is outside of"), ("apex_amp:O2:loss_scale=1e300", "is outside of"),
                        ("apex_amp:O2:loss_scale=1e39", "is outside of"), ("apex_amp:O1:loss_scale=1e-39", "is outside of"),
                        ("16-mixed:init_scale=1e300", "is outside of"), ("16-mixed:backoff_factor=0.999999", "is above 0.917"),
                        ("apex_amp:O2:min_loss_scale=1024:init_scale=256", "an overflow would raise the scale"),
                        ("apex_amp:O2:patience=100000", "1..1000"),
                        ("apex_amp:O2:cast_model_type=f32", "nothing of that is left"), ("32-true:cast_model_type=f16", "fp32 everywhere"),
                        ("apex_amp:O3:scaler=torch", "belongs to a dynamic"), ("apex_amp:O5:patience=3", "bf16 needs no loss scale"),
                        ("bf16-mixed:O2", "where 'bf16-mixed' sets it to 'O4'"), ("32-true:opt_level=O5", "'32-true' means apex_amp:opt_level=O0"),
                        ("apex_amp:opt_level=O2:loss_scale", "write loss_scale=VALUE"),
                        ("bf16", "bf16-mixed (apex_amp:opt_level=O4)"), ("fp16", "16-mixed (apex_amp:opt_level=O1:scaler=torch)")):
    _, done = train("ddp", precision, 2)
    check(done.returncode == 2 and word in done.stderr, f"{precision}: {done.returncode} {done.stderr}")
for strategy, ranks in (("none", 1), ("fsdp2", 2)):
    scale = 2 ** 24  # times 1 / tokens it is beyond 65504, and the floor lets it go no lower
    _, done = train(strategy, f"apex_amp:O1:init_scale={scale}:min_loss_scale={scale}:patience=3", ranks, train_steps=50)
    check(done.returncode not in (0, 124) and f"in 3 steps in a row, the last of them at loss scale {scale:g}" in done.stderr
          and "lowest that min_loss_scale allows" in done.stderr, f"overflow for ever, {strategy}: {done.returncode} {done.stderr}")
# a learning rate that makes the loss NaN: neither the scale nor a floor that nobody set is the cause
_, done = train("none", "apex_amp:O2", 1, train_steps=60, optim_lr=1000)
check(done.returncode not in (0, 124) and "lower min_loss_scale" not in done.stderr and "learning rate" in done.stderr
      and ("weights are NaN" in done.stderr or "enlarges nothing" in done.stderr), f"loss NaN for ever: {done.returncode} {done.stderr}")
# short of patience a run ends, and says that it has done nothing
output, done = train("none", "apex_amp:O1:init_scale=16777216", 1, train_steps=3, log_progress="plain")
check(done.returncode == 0 and "3 of 3 steps were skipped" in done.stdout and "nothing was trained" in done.stdout
      and json.load(open(f"{output}/summary.json"))["skipped_steps"] == 3, f"all skipped: {done.returncode} {done.stdout} {done.stderr}")
# a static scale that overflows is the first suspect
_, done = train("ddp", "apex_amp:O2:loss_scale=1e9", 2)
check(done.returncode not in (0, 124) and "E-STEP-NONFINITE" in done.stderr and "'apex_amp' has multiplied the loss by 1e+09" in done.stderr
      and "lower the loss scale first" in done.stderr, f"static scale: {done.returncode} {done.stderr}")
output, done = train("none", "apex_amp:O2", 1)
check(done.returncode == 0, f"O2: {done.stderr}")
file = f"{output}/model/model.safetensors"
blob = bytearray(open(file, "rb").read())
blob[-4:] = struct.pack("<f", float("nan"))
open(file, "wb").write(blob)
_, done = train("ddp", "apex_amp:O2", 2, model_path=f"{output}/model")
check(done.returncode not in (0, 124) and "NaN" in done.stderr, f"NaN in weights: {done.returncode} {done.stderr}")
print("ok   bad input")
sys.exit(failed)
