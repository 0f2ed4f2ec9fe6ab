#!/usr/bin/env python3
"""fp8.py SOURCE BUILD PREFIX - examples/fp8-wire: what travels, counted; what arrives, against a reference of its own; that it trains.

The reference rounds the first weights by the definition of e4m3 (sign, 4 bits of exponent with bias 7, 3 bits of mantissa, no infinity),
piece by piece as the ranks of fsdp2 hold them, and a plain run on one rank computes the loss of these: it must be that of the first step."""
import math
import shutil
import sys
from array import array

from outside import Outside, check, losses, read_tensors, rows, summary, write_tensors

VALUES = sorted({m * 2.0 ** -9 for m in range(8)} | {(8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8)} - {480.0})


def nearest(x):
    """The nearest value of e4m3, of two equally near ones that with the even code."""
    low, high = 0, len(VALUES) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if VALUES[middle] <= x else (low, middle)
    below, above = x - VALUES[low], VALUES[high] - x
    return VALUES[low] if below < above or (below == above and low % 2 == 0) else VALUES[high]


def rounded(piece):
    amax = max((abs(x) for x in piece), default=0.0)
    scale = 2.0 ** math.floor(math.log2(448.0 / amax)) if amax > 0 else 1.0
    return [math.copysign(nearest(abs(x) * scale), x) / scale for x in piece]


def pieces(shape, ranks):
    """Elements of each rank: rows as torch.chunk cuts them."""
    row = 1
    for extent in shape[1:]:
        row *= extent
    chunk = -(-shape[0] // ranks)
    return [(min(r * chunk, shape[0]) * row, min((r + 1) * chunk, shape[0]) * row) for r in range(ranks)], chunk * row


def quantise(path, ranks):
    tensors = read_tensors(path)
    for shape, values in tensors.values():
        for begin, end in pieces(shape, ranks)[0]:
            values[begin:end] = array("f", rounded(values[begin:end]))
    write_tensors(path, tensors)


def gathered(tensors, ranks, size, extra, steps):
    """Bytes of all-gathers: the root once a step, blocks for forward and for backward."""
    total = 0
    for name, (shape, _) in tensors.items():
        times = 2 if ".layers." in name else 1
        total += times * ranks * (pieces(shape, ranks)[1] * size + extra)
    return total * steps


source, build, prefix = sys.argv[1:]
with Outside(source, build, prefix) as outside:
    outside.example("fp8-wire")
    start = outside.must_train("none", None, train_steps=1, optim_lr=0, checkpoint_save="true")
    first = read_tensors(f"{start}/model/model.safetensors")
    for ranks in (2, 3):
        plain = outside.must_train("fsdp2", None, ranks=ranks)
        packed = outside.must_train("fsdp2", "fp8_wire", ranks=ranks)
        for run, size, extra in ((plain, 4, 0), (packed, 1, 4)):
            moved = summary(run)["comm"]["fsdp2"]["all_gather"]["bytes"]
            check(moved == gathered(first, ranks, size, extra, 6), f"{ranks} ranks: {moved} bytes, not {gathered(first, ranks, size, extra, 6)}")
        rest = [summary(run)["comm"]["fsdp2"]["reduce_scatter"] for run in (plain, packed)]
        check(rest[0] == rest[1], f"gradients do not travel as before: {rest}")

        model = f"{outside.work}/rounded{ranks}"
        shutil.copytree(f"{start}/model", model)
        quantise(f"{model}/model.safetensors", ranks)
        reference = losses(outside.must_train("none", None, model=model, train_steps=1))[0]
        # another summation order of the batch: the parity gate of losses
        check(abs(losses(packed)[0] - reference) <= 1e-5 * reference, f"first loss {losses(packed)[0]}, reference {reference}")
        check(abs(losses(packed)[0] - losses(plain)[0]) > 1e-5 * reference, "the weights were not rounded")
        # half a unit in 4 significant bits is at most 2^-4 of a weight, random in sign: a band of 2 % of the loss of fp32
        worst = max(abs(a - b) / b for a, b in zip(losses(packed), losses(plain)))
        check(worst < 0.02, f"losses leave the band around fp32: {worst}")
        check(losses(packed)[-1] < 0.8 * losses(packed)[0], "it does not learn")
        print(f"fp8_wire, fsdp2 on {ranks} ranks: first loss {losses(packed)[0]:.6f}, reference {reference:.6f}, worst {worst:.2%} from fp32")
    flat = outside.must_train("fsdp1", "fp8_wire", ranks=2)
    worst = max(abs(a - b) / b for a, b in zip(losses(flat), losses(plain)))
    check(0 < worst < 0.02, f"fsdp1: {worst} from fp32")
    values = ("loss", "grad_norm")
    check(rows(outside.must_train("ddp", "fp8_wire", ranks=2), *values) == rows(outside.must_train("ddp", None, ranks=2), *values),
          "ddp gathers no parameters, and still something changed")
    refused = outside.steps("fsdp2:param_dtype=bf16", "fp8_wire")
    check("E-PLAN-PRECISION-OWNER" in refused, f"two owners of what travels: {refused}")
