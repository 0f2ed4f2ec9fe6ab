#!/usr/bin/env python3
# curves.py ORDO STEPS small|large LEVEL... [--text FILE] - what opt levels of apex_amp do to training on real text: loss curves against fp32.
#
# The same model on the same batches, once without a precision and once with each level. O0 must print the same digits. The others must stay in
# a band around the fp32 curve that follows from the number of roundings and the size of one (docs/precision.md derives it; `bands` below is its
# last line), have the first gradient's norm within its own bound, and end within 2 % of the validation loss. A table shows how far they are
# inside. Guards against levels that train, but something else: a gradient that is not unscaled, an update that is lost in 16 bits.
#
# The band is of first order, so it holds where training does not multiply small differences, and with a high learning rate it does, a million
# times. So fp32 is also compared with itself, summed in two micro-batches: that has to stay in the band of fp32's own roundoff.
import json, math, os, pathlib, subprocess, sys, tempfile

# Roundoff: half a unit of the last of 11 (fp16) or 8 (bf16) significant bits.
ROUNDOFF = {"fp32": 2.0 ** -24, "O1": 2.0 ** -11, "O2": 2.0 ** -11, "O3": 2.0 ** -11, "O4": 2.0 ** -8, "O5": 2.0 ** -8}
WITHOUT_MASTERS, WITH_MASTERS = {"O3"}, {"O2", "O5"}
FINAL = 0.02
RANGE = 0.02  # deviation of fresh weights
DIGITS = 1e-8  # losses are printed with nine digits
SIZES = {  # layers, hidden, mlp, heads, batch, seq_len, peak learning rate
    "small": (2, 64, 176, 4, 8, 64, 2e-3),
    "large": (4, 128, 352, 4, 16, 64, 1e-3),
}


def fail(text):
    print("FAIL " + text)
    fail.count += 1


fail.count = 0


def text_of(arguments, work):
    """Real text: the file that is named, else the licences that every Debian has."""
    if arguments and os.path.getsize(arguments[0]) > 200000:
        return arguments[0]
    licences = sorted({p.resolve() for p in pathlib.Path("/usr/share/common-licenses").glob("*")})
    joined = b"".join(p.read_bytes() for p in licences)
    if len(joined) < 100000:
        print("skipped: there is no text: neither a file was named nor does /usr/share/common-licenses hold 100 kB")
        sys.exit(77)
    path = work / "text"
    path.write_bytes(joined)
    return str(path)


def train(ordo, work, name, steps, size, text, options=()):
    layers, hidden, mlp, heads, batch, seq, lr = SIZES[size]
    keys = {"data.train": text, "data.format": "bytes", "data.validation_fraction": 0.05, "model.layers": layers, "model.hidden_size": hidden,
            "model.intermediate_size": mlp, "model.heads": heads, "model.initializer_range": RANGE, "train.batch": batch, "train.seq_len": seq,
            "train.steps": steps, "train.validate_sequences": 64, "optim.lr": lr, "optim.schedule": "cosine", "optim.warmup_steps": steps // 2,
            "log.peak": "false", "train.output": work / name, "checkpoint.save": "true" if name in ("fp32", "O0") else "false"}
    command = [ordo, "train"] + [word for k, v in keys.items() for word in ("--" + k, str(v))] + list(options)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(done.stdout)
        sys.exit("FAIL %s: ordo train ended with %d" % (name, done.returncode))
    lines = [json.loads(line) for line in (work / name / "metrics.jsonl").read_text().splitlines()]
    return [m for m in lines if "loss" in m], json.loads((work / name / "summary.json").read_text())


def base(level):
    """Of a level with overrides ("O5:scaler=torch") the level."""
    return level.split(":")[0]


def roundings(size):
    """Roundings in series on the way from the ids to the loss: 17 a block, 4 outside (docs/precision.md counts them); products in series."""
    layers = SIZES[size][0]
    return 17 * layers + 4, 4 * layers + 1


def bands(level, size, reference):
    """How far each loss may be from that of fp32."""
    forward, products = roundings(size)
    path, result = 0.0, []  # how far an optimizer that moves every weight by its learning rate has come
    for step, m in enumerate(reference):
        parts = math.sqrt(forward) + math.sqrt(2 * forward)
        if base(level) in WITHOUT_MASTERS:
            parts += math.sqrt(products * step)
        size_of_logits = max(math.log(258) - m["loss"], 0.0) + RANGE * math.sqrt(SIZES[size][1])
        allowed = ROUNDOFF[base(level)] * parts * size_of_logits + DIGITS
        if base(level) in WITH_MASTERS:
            standing = math.erfc(path / (ROUNDOFF[base(level)] * RANGE * math.sqrt(2)))
            allowed += standing * abs(reference[0]["loss"] - m["loss"])
        result.append(allowed)
        path += m["lr"]
    return result


def same(one, other):
    keys = ("step", "loss", "grad_norm", "clip_coef", "n_tokens", "lr", "skipped")
    return [[m[k] for k in keys] for m in one] == [[m[k] for k in keys] for m in other]


def farthest(level, size, reference, curve):
    """The step whose loss is farthest from that of fp32 in relation to the band: index, distance, band."""
    allowed = bands(level, size, reference)
    away = [abs(m["loss"] - r["loss"]) for m, r in zip(curve, reference)]
    worst = max(range(len(away)), key=lambda i: away[i] / allowed[i])
    return worst, away[worst], allowed[worst]


def check_control(size, reference, curve):
    worst, off, allowed = farthest("fp32", size, reference, curve)
    print("fp32  summed in two parts: %.1e of %.1e at step %d" % (off, allowed, worst + 1))
    if not off <= allowed:
        fail("fp32 against itself, summed in two parts: the loss of step %d is off by %.1e, allowed are %.1e; this training multiplies roundings, "
             "so it says nothing about 16 bits" % (worst + 1, off, allowed))


def check_level(level, size, fp32, run):
    (reference, end), (curve, summary) = fp32, run
    skipped = sum(m["skipped"] for m in curve)
    if skipped: # every later step is an update behind
        return fail("%s: %d steps were skipped; the curves cannot be compared" % (level, skipped))
    worst, off, allowed = farthest(level, size, reference, curve)
    norm, norm_allowed = abs(curve[0]["grad_norm"] / reference[0]["grad_norm"] - 1), ROUNDOFF[base(level)] * math.sqrt(3 * roundings(size)[0])
    ratio = summary["validation_loss"] / end["validation_loss"]
    print("%-5s %8.5f of %.5f at step %-3d  %8.1e of %.1e  %10.6f  %.5f" % (level, off, allowed, worst + 1, norm, norm_allowed,
                                                                           summary["validation_loss"], ratio))
    if not off <= allowed:
        fail("%s: the loss of step %d is %.5f from that of fp32, allowed are %.5f" % (level, worst + 1, off, allowed))
    if not norm <= norm_allowed:
        fail("%s: the norm of the first gradient is off by %.2e, allowed are %.2e" % (level, norm, norm_allowed))
    if not abs(ratio - 1) <= FINAL:
        fail("%s: the validation loss is %.4f of that of fp32, allowed are %g" % (level, ratio, FINAL))
    if same(curve, reference):
        fail("%s: the curve is that of fp32 to the last digit: nothing was computed in 16 bits" % level)


def main():
    ordo, steps, size, words = os.path.realpath(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    named = words[words.index("--text") + 1:] if "--text" in words else []
    levels = words[:words.index("--text")] if "--text" in words else words
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        text = text_of([f for f in named if os.path.exists(f)], work)
        print("%d steps, model '%s', %d bytes of text (%s)" % (steps, size, os.path.getsize(text), "licences" if text.startswith(directory) else text))
        fp32 = train(ordo, work, "fp32", steps, size, text)
        losses = [m["loss"] for m in fp32[0]]
        print("fp32  loss %.4f -> %.4f, validation %.6f" % (losses[0], losses[-1], fp32[1]["validation_loss"]))
        if not losses[-1] < 0.7 * losses[0]:
            fail("fp32: the loss falls from %.3f to %.3f only; nothing is learnt that a level could spoil" % (losses[0], losses[-1]))
        halves = train(ordo, work, "halves", steps, size, text, ["--train.micro_batch", str(SIZES[size][4] // 2)])
        check_control(size, fp32[0], halves[0])
        o0 = train(ordo, work, "O0", steps, size, text, ["--precision", "apex_amp:O0"])
        models = [(work / name / "model" / "model.safetensors").read_bytes() for name in ("fp32", "O0")]
        if not same(o0[0], fp32[0]) or models[0] != models[1] or o0[1]["validation_loss"] != fp32[1]["validation_loss"]:
            fail("O0 is not what no precision computes, to the bit")
        else:
            print("O0    the same losses, norms and weights as fp32, to the bit")
        print("level loss off, of the band, where    first gradient's norm  validation  of fp32")
        for level in levels:
            check_level(level, size, fp32, train(ordo, work, level, steps, size, text, ["--precision", "apex_amp:" + level]))
    return 1 if fail.count else 0


sys.exit(main())
