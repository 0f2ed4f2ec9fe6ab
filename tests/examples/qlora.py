#!/usr/bin/env python3
"""qlora.py SOURCE BUILD PREFIX - examples/qlora: the stored base, the adapters and their gradients against references of their own.

A plain run gives the dense gradient G of a layer at W = base + s B A, so the gradients of the adapter must be dA = s B^T G and
dB = s G A^T. SGD without clipping shows them: the difference of the weights after k and k + 1 steps over lr. The data are one batch, so that
every step sees the same. fp32 sums over 192 tokens and 128 columns differ by about 1e-5: the gate is 1e-3 beside what the difference of two
weights loses, far below any wrong factor or transposition."""
import math
import sys
from array import array

from outside import LAYERS, Outside, check, distance, losses, read_tensors, rows, summary

RANK, ALPHA, BLOCK = 4, 8.0, 32
SCALE = ALPHA / RANK
LEVELS = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
          -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
          0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def single(x):
    return array("f", [x])[0]


def nf4(values):
    """The base as it should come back: the nearest level times the largest magnitude of each block."""
    out = array("f")
    for begin in range(0, len(values), BLOCK):
        block = values[begin:begin + BLOCK]
        most = max(abs(x) for x in block)
        for x in block:
            scaled = single(x / most) if most > 0 else 0.0
            out.append(most * single(min(LEVELS, key=lambda level: abs(scaled - single(level)))))
    return out


def product(a, b, rows, inner, columns, transpose_a=False, transpose_b=False):
    """a [rows, inner] times b [inner, columns]; the transposed ones are given the other way round."""
    def at(i, k):
        return a[k * rows + i] if transpose_a else a[i * inner + k]
    lines = [b[k * columns:(k + 1) * columns] if not transpose_b else b[k::inner] for k in range(inner)]
    out = []
    for i in range(rows):
        line = [0.0] * columns
        for k in range(inner):
            factor = at(i, k)
            if factor:
                line = [x + factor * y for x, y in zip(line, lines[k])]
        out.extend(line)
    return out


def layers(tensors):
    return [name for name in tensors if name.split(".")[-2] in TARGETS]


source, build, prefix = sys.argv[1:]
with Outside(source, build, prefix) as outside:
    outside.example("qlora")
    batch = f"{outside.work}/batch.txt"
    open(batch, "wb").write(open(f"{source}/LICENSE", "rb").read()[2000:2000 + 6 * 32 + 1])
    qlora = f"qlora:rank={RANK}:alpha={ALPHA}"
    sgd = {"data": batch, "optim_name": "sgd", "optim_lr": 0.5, "optim_momentum": 0, "optim_clip": 0}

    def dumped(steps, strategy="none", ranks=1, **keys):
        path = f"{outside.work}/weights-{strategy}-{ranks}-{steps}.safetensors"
        run = outside.must_train(strategy, qlora, ranks=ranks, train_steps=steps, train_dump_weights=path, **{**sgd, **keys})
        return run, read_tensors(path)

    # the base: NF4 of the first weights, and never anything else
    fresh = f"{outside.work}/fresh.safetensors"
    outside.must_train("none", None, train_steps=1, train_dump_weights=fresh, **{**sgd, "optim_lr": 0})
    fresh = read_tensors(fresh)
    check(len(layers(fresh)) == 7 * LAYERS, f"layers {layers(fresh)}")
    run, before = dumped(3, checkpoint_save="true")
    _, after = dumped(4)
    for name in fresh:
        wanted = nf4(fresh[name][1]) if name in layers(fresh) else fresh[name][1]
        check(before[name][1] == wanted, f"{name} is not what NF4 makes of it")
        check(after[name][1] == wanted, f"{name} has changed")

    # gradients of the adapters from the dense gradient of the merged model
    dense = f"{outside.work}/dense.safetensors"
    plain = outside.must_train("none", None, model=f"{run}/model", train_steps=1, train_dump_gradients=dense, **{**sgd, "optim_lr": 0})
    dense = read_tensors(dense)
    worst, judged = 0.0, 0
    for name in layers(fresh):
        stem = name[:-len(".weight")]
        (shape, a), (_, b) = before[f"{stem}.lora_A.weight"], before[f"{stem}.lora_B.weight"]
        (out, columns), g = dense[name]
        check(shape == [RANK, columns] and len(b) == out * RANK, f"shapes of the adapter of {stem}")
        wanted_a = product(b, g, RANK, out, columns, transpose_a=True)
        wanted_b = product(g, a, out, columns, RANK, transpose_b=True)
        for which, old, wanted in (("A", a, wanted_a), ("B", b, wanted_b)):
            new = after[f"{stem}.lora_{which}.weight"][1]
            found = [(x - y) / sgd["optim_lr"] for x, y in zip(old, new)]
            wanted = [SCALE * x for x in wanted]
            # the new weight is rounded to 2^-24 of itself, its update too
            lost = 2 * 2.0 ** -24 * math.sqrt(sum(x * x for x in old)) / sgd["optim_lr"] / math.sqrt(sum(x * x for x in wanted))
            off = distance(found, wanted)
            check(off < 1e-3 + lost, f"gradient of lora_{which} of {stem}: {off} from the reference, {lost} lost")
            if lost < 0.01:
                worst, judged = max(worst, off), judged + 1
    check(judged >= 20, f"only {judged} of 28 gradients are large enough to be judged") # those of q and k of a fresh model are tiny
    merged = abs(losses(plain)[0] - losses(dumped(4)[0])[3])
    check(merged < 1e-5 * losses(plain)[0], f"the merged model computes another loss: {merged}")
    print(f"qlora: base is NF4 and does not move, {judged} gradients of adapters within {worst:.1e} of the reference, merged loss within {merged:.1e}")

    # strategies: the same numbers; the optimizer holds adapters and nothing else; packed weights travel
    numel = sum(len(values) for name, (_, values) in before.items() if "lora" in name)
    one = outside.must_train("none", qlora)
    check(losses(one)[-1] < losses(one)[0], f"it does not learn: {losses(one)}")
    plain = outside.must_train("none", None)
    optimizer = summary(one)["peak_bytes"]["optimizer"]
    check(optimizer == 2 * 4 * numel, f"AdamW takes {optimizer} bytes for {numel} elements of adapters")
    values = ("loss", "grad_norm")
    ordered = {}
    for strategy, ranks in (("ddp", 2), ("fsdp2", 2), ("ddp", 3), ("fsdp2", 3)):
        many = outside.must_train(strategy, qlora, ranks=ranks)
        for ours, theirs in zip(rows(many, *values), rows(one, *values)):
            # the parity gate: loss 1e-5, gradient norm with AdamW 2e-4
            check(abs(ours[0] - theirs[0]) <= 1e-5 * theirs[0] and abs(ours[1] - theirs[1]) <= 2e-4 * theirs[1],
                  f"{strategy} on {ranks} ranks: {ours}, one rank {theirs}")
        found = rows(outside.must_train(strategy, qlora, ranks=ranks, train_ordered="true"), *values)
        check(ordered.setdefault(ranks, found) == found, f"ordered: {strategy} differs from ddp on {ranks} ranks")
        for name, (_, tensor) in dumped(2, strategy, ranks)[1].items():
            check("lora" in name or tensor == before[name][1], f"{strategy} on {ranks} ranks changed {name}")
    expected = 0
    for name, (shape, _) in before.items():
        chunk = -(-shape[0] // 3)
        width = shape[1] // BLOCK * (4 + BLOCK // 2) if name in layers(fresh) else 4 * (shape[1] if len(shape) > 1 else 1)
        expected += 3 * chunk * width * (2 if ".layers." in name else 1)
    moved = summary(many)["comm"]["fsdp2"]["all_gather"]["bytes"]
    check(moved == 6 * expected, f"all-gathers moved {moved} bytes, not {6 * expected}")

    # a plugin that stores a base and packs what is gathered: everything but the base is packed, a byte more for each piece, exactly
    example = outside.paths
    outside.paths = [one for one in example if not one.endswith("/qlora/out")] + [f"{build}/tests/examples"]
    wire = outside.must_train("fsdp2", qlora, ranks=3, train_ordered="true")
    outside.paths = example
    check(rows(wire, *values) == ordered[3], "packing parameters beside a packed base changes the numbers")
    pieces = sum(3 * (2 if ".layers." in name else 1) for name in before if name not in layers(fresh))
    packed = summary(wire)["comm"]["fsdp2"]["all_gather"]["bytes"]
    check(packed == moved + 6 * pieces, f"all-gathers moved {packed} bytes, not {moved + 6 * pieces}: the base was packed, or nothing was")

    # packed leaves that fsdp1 is told to ignore stay with the host: whole on every rank, and the numbers of ddp
    one = rows(one, *values)
    for strategy, ranks in (("none", 1), ("fsdp1", 1), ("fsdp1", 2), ("fsdp1:sync_module_states=true", 2),
                            ("fsdp1:sharding_strategy=NO_SHARD", 2), ("fsdp2", 2)):
        apart = strategy if strategy == "none" else f"{strategy}:ignored=*_proj.weight"
        found = rows(outside.must_train(apart, qlora, ranks=ranks), *values)
        for ours, theirs in zip(found, one):
            check(abs(ours[0] - theirs[0]) <= 1e-5 * theirs[0] and abs(ours[1] - theirs[1]) <= 2e-4 * theirs[1],
                  f"{apart} on {ranks} ranks: {ours}, one rank {theirs}")

    # tp cuts the layers: the plan says so, on any number of ranks
    outside.paths.append(f"{build}/plugins/tp")
    for strategy in ("tp", "tp=2+fsdp2"):
        told = outside.ordo("plan", "--strategy", strategy, "--precision", qlora, "--ranks", "4").stdout
        check("E-PLAN-CONFLICTS" in told and "sliced_parameters" in told, f"{strategy} and qlora: {told}")
        check(not outside.train(strategy, qlora, ranks=4 if "+" in strategy else 2), f"{strategy} cuts a packed base")
        check("sliced_parameters" in outside.last.stderr and "(null)" not in outside.last.stderr, f"{strategy}: {outside.last.stderr}")
    # one that does not say so is refused by name when it comes to the cut
    example = outside.paths
    outside.paths = [one for one in example if not one.endswith("/qlora/out")] + [f"{build}/tests/examples"]
    for strategy, ranks in (("tp", 1), ("tp", 2), ("tp=2+fsdp2", 4)):
        check(not outside.train(strategy, qlora, ranks=ranks), f"{strategy} cuts a packed base")
        check("stored as nf4 and cannot be cut" in outside.last.stderr and "q_proj" in outside.last.stderr, f"{strategy}: {outside.last.stderr}")
    # replicated by a plan file it is not cut, and its adapters train
    open(f"{outside.work}/mlp.plan", "w").write("model.layers.*.mlp.* = replicate\n")
    mlp = qlora + ":targets=gate_proj,up_proj,down_proj"
    for ours, theirs in zip(rows(outside.must_train(f"tp:plan={outside.work}/mlp.plan", mlp, ranks=2), *values), rows(outside.must_train("none", mlp), *values)):
        check(abs(ours[0] - theirs[0]) <= 1e-5 * theirs[0] and abs(ours[1] - theirs[1]) <= 2e-4 * theirs[1], f"tp beside replicated packed layers: {ours}, one rank {theirs}")
    outside.paths = example

    # the model that the command makes when it is told nothing has rows of 128 and 352 elements: the example's own block fits
    check(outside.train("fsdp2", "qlora:rank=8", ranks=2, **{"model.intermediate_size": 352, "model.hidden_size": 128}), outside.last.stderr)
    check(not outside.train("none", "qlora:block=64", **{"model.intermediate_size": 352, "model.hidden_size": 128}), "blocks of 64 in rows of 352")
    check("rows of 352 elements" in outside.last.stderr and "down_proj" in outside.last.stderr and "32, 16, 8" in outside.last.stderr, outside.last.stderr)

    for strategy, word in (("fsdp2:param_dtype=bf16", "param_dtype"), ("fsdp1", "flat parameters hold")):
        check(not outside.train(strategy, qlora, ranks=2), f"{strategy} trains a base that it cannot shard")
        check(word in outside.last.stderr and "proj" in outside.last.stderr, f"{strategy}: {outside.last.stderr}")
    for precision, word in (("qlora:block=24", "option 'block' is 24, which does not divide the rows of 64 elements"), ("qlora:block=24", "for all targets: 64, 32, 16, 8"), ("qlora:block=12", "multiple of 8"), ("qlora:targets=none", "target"),
                            ("qlora:targets=lm_head", "lm_head")):
        check(not outside.train("none", precision), f"{precision} is accepted")
        check(word in outside.last.stderr, f"{precision}: {outside.last.stderr}")
    again = outside.ordo("eval", "--strategy", "none", "--model", f"{run}/model", "--data", batch, "--data.tokenizer", "bytes", "--train.seq_len", "32",
                         "--train.batch", "6")
    check(again.returncode == 0, f"the merged model is not a plain model: {again.stderr}")
print("qlora: trains with ddp and fsdp2; optimizer holds adapters only")
