"""run.py DIR [--ranks N] [--strategy S] [--case NAME] - every golden case of a directory through the `ordo` command.

DIR has the layout of the public golden set: training/*.json (trajectories), inference/eval.json, inference/greedy.json, with the files they name.
Each case becomes an ordinary command line (train, eval, generate) and nothing of the product is called in another way. A line a case
says the worst deviation in units of its tolerance: below 1 passes. Exit code 1 if a case fails.

Standard library only, so that it runs on a machine that has just built Ordo.
"""
import argparse
import array
import json
import math
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

LR_DIGITS = 1e-8  # metrics.jsonl has 9 significant digits: half a unit of the last is at most 5e-9, twice that for both ends


def read_safetensors(path):
    """Name -> array of floats. fp32 only, which is what golden files and dumps have."""
    blob = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    tensors = {}
    for name, entry in json.loads(blob[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is {entry['dtype']}, not F32")
        begin, end = entry["data_offsets"]
        values = array.array("f")
        values.frombytes(blob[8 + length + begin : 8 + length + end])
        tensors[name] = values
    return tensors


def norm(values):
    return math.sqrt(math.fsum(v * v for v in values))


def relative(got, reference):
    return abs(got - reference) / abs(reference) if reference else abs(got)


class Worst:
    """The largest deviation in units of its tolerance, and what it is of."""

    def __init__(self):
        self.ratio, self.what, self.compared = 0.0, "no deviation", 0

    def add(self, what, deviation, tolerance):
        self.compared += 1
        ratio = deviation / tolerance if tolerance else (0.0 if deviation == 0 else math.inf)
        if not ratio <= self.ratio:  # a NaN counts as the worst of all
            self.ratio, self.what = (ratio if ratio == ratio else math.inf), what


class Golden:
    def __init__(self, options):
        self.root = Path(options.directory).resolve()
        self.ranks, self.strategy = options.ranks, options.strategy
        self.failed = self.passed = 0

    def ordo(self, verb, *words):
        command = ["ordo", verb, *map(str, words)]
        if verb != "generate":
            command += ["--ranks", str(self.ranks)]
            if self.strategy:
                command += ["--strategy", self.strategy]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode}: {' '.join(command)}\n{done.stderr.strip()}")
        return done.stdout

    def data_words(self, file):
        description = json.loads((self.root / file).read_text())
        folder = (self.root / file).parent
        words = ["--data.train", folder / description["ids_file"], "--data.format", "tokens16", "--train.batch", description["batch"],
                 "--train.seq_len", description["seq_len"]]
        if "targets_file" in description:
            words += ["--data.targets", folder / description["targets_file"]]
        return words

    def schedule_words(self, case):
        """The learning rates of a case: constant, or the start of one of the schedules beside it."""
        lr = case["lr"]
        if all(value == case["optimizer"]["lr"] for value in lr):
            return ["--optim.lr", repr(lr[0]), "--optim.schedule", "constant"]
        for path in sorted((self.root / "schedule").glob("*.json")):
            schedule = json.loads(path.read_text())
            if all(abs(a - b) <= 1e-12 * schedule["peak"] for a, b in zip(lr, schedule["lr"])) and len(lr) <= len(schedule["lr"]):
                kind = "cosine" if "cos" in schedule["formula"] else "linear"
                return ["--optim.lr", repr(schedule["peak"]), "--optim.schedule", kind, "--optim.warmup_steps", schedule["warmup_steps"],
                        "--optim.decay_steps", schedule["total_steps"], "--optim.floor_fraction", repr(schedule["floor_fraction"])]
        raise RuntimeError("no schedule beside the case gives its learning rates")

    def train(self, path):
        case = json.loads(path.read_text())
        optimizer, out = case["optimizer"], Path(tempfile.mkdtemp(prefix="ordo-golden-"))
        words = self.data_words(case["data"]["file"]) + self.schedule_words(case)
        words += ["--model.path", self.root / case["model"], "--data.order", "sequential", "--train.steps", case["steps"], "--train.batch", case["batch"],
                  "--train.seq_len", case["seq_len"], "--optim.name", optimizer["name"], "--optim.clip", repr(case["clip_grad_norm"] or 0.0)]
        if case["micro_batch"] != case["batch"]:
            words += ["--train.micro_batch", max(1, case["micro_batch"] // self.ranks)]
        for key in ("beta1", "beta2", "eps", "momentum", "weight_decay"):
            if key in optimizer and not (key == "weight_decay" and optimizer["name"] == "sgd"):
                words += [f"--optim.{key}", repr(optimizer[key])]
        words += ["--train.output", out, "--train.dump_gradients", out / "gradients.safetensors", "--train.dump_weights", out / "weights.safetensors",
                  "--checkpoint.save", "false", "--log.progress", "none", "--log.peak", "false"]
        try:
            self.ordo("train", *words)
            return self.compare(case, path.parent, out)
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def compare(self, case, folder, out):
        worst, tolerance = Worst(), case["tolerance"]
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if "grad_norm" in line]
        if len(steps) != case["steps"]:
            raise RuntimeError(f"metrics.jsonl has {len(steps)} steps, not {case['steps']}")
        for i, line in enumerate(steps):
            worst.add(f"loss of step {i + 1}", relative(line["loss"], case["loss"][i]), tolerance["loss_rel"])
            worst.add(f"gradient norm of step {i + 1}", relative(line["grad_norm"], case["grad_norm_before_clip"][i]), tolerance["grad_norm_rel"])
            worst.add(f"tokens of step {i + 1}", abs(line["n_tokens"] - case["n_tokens"][i]), 0)
            worst.add(f"lr of step {i + 1}", relative(line["lr"], case["lr"][i]), LR_DIGITS)
        self.compare_gradients(case, folder, read_safetensors(out / "gradients.safetensors"), worst)
        self.compare_weights(case, folder, read_safetensors(out / "weights.safetensors"), worst)
        return worst

    def compare_gradients(self, case, folder, got, worst):
        tolerance = case["tolerance"]
        for name, reference in case.get("grad_l2_step1", {}).items():
            worst.add(f"norm of the gradient of {name}", relative(norm(got[name]), reference), tolerance["grad_l2_step1_rel"])
        if "grads_step1_file" not in case:
            return
        for name, reference in read_safetensors(folder / case["grads_step1_file"]).items():
            distance = norm(a - b for a, b in zip(got[name], reference, strict=True))
            worst.add(f"gradient of {name}", distance / (norm(reference) or 1), tolerance["grads_step1_relL2_per_parameter"])

    def compare_weights(self, case, folder, got, worst):
        tolerance = case["tolerance"]
        for name, reference in case.get("weight_l2_after", {}).items():
            worst.add(f"norm of {name}", relative(norm(got[name]), reference), tolerance["weight_l2_rel"])
        if "weights_after_file" not in case:
            return
        start = self.start_weights(case["model"])
        apart = moved = 0.0
        for name, reference in read_safetensors(folder / case["weights_after_file"]).items():
            differences = [a - b for a, b in zip(got[name], reference, strict=True)]
            apart += math.fsum(d * d for d in differences)
            moved += math.fsum((a - b) ** 2 for a, b in zip(reference, start[name], strict=True)) if start else 0.0
            worst.add(f"an element of {name}", max(map(abs, differences), default=0.0), tolerance["weights_max_abs"])
        if moved:
            worst.add("the update of the whole model", math.sqrt(apart / moved), tolerance["update_relL2_whole_model"])

    def start_weights(self, model):
        start = {}
        for path in sorted((self.root / model).glob("*.safetensors")):
            start.update(read_safetensors(path))
        return start

    def evaluate(self, name, reference, tolerance):
        model = json.loads(next(iter(sorted((self.root / "training").glob("*.json")))).read_text())["model"]
        worst = Worst()
        text = self.ordo("eval", *self.data_words(f"data/{name}.json"), "--model.path", self.root / model, "--log.progress", "none")
        values = dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) == 2)
        worst.add("mean loss", relative(float(values["loss"]), reference["mean"]), tolerance["mean_rel"])
        worst.add("counted tokens", abs(int(values["tokens"]) - reference["n_tokens"]), 0)
        return worst

    def generate(self, reference):
        """Ids, and the text byte for byte (the begin token is not printed)."""
        worst = Worst()
        ids = reference["prompt_ids"] + reference["generated"]
        words = ["--model.path", self.root / "model/model.bin", "--data.tokenizer", self.root / "model/tokenizer.bin", "--generate.positions", len(ids) - 1]
        if len(reference["prompt_ids"]) > 1:
            words += ["--generate.prompt_ids", ",".join(map(str, reference["prompt_ids"]))]
        got = [int(word) for word in self.ordo("generate", *words, "--generate.print_ids", "true").split()]
        worst.add("the ids", 0 if got == ids[1:] else 1, 0)
        if "text" in reference:
            worst.add("the text", 0 if self.ordo("generate", *words).rstrip("\n") == reference["text"].rstrip("\n") else 1, 0)
        return worst

    def case(self, name, run):
        try:
            worst = run()
            good = worst.ratio < 1 and worst.compared > 0
            print(f"{'ok  ' if good else 'FAIL'} {name:32} {worst.ratio:9.3g} of the tolerance   {worst.what} ({worst.compared} compared)", flush=True)
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            good = False
            print(f"FAIL {name:32} {type(error).__name__}: {error}", flush=True)
        self.passed += good
        self.failed += not good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--strategy")
    parser.add_argument("--case", help="only cases whose name contains this")
    options = parser.parse_args()
    golden = Golden(options)
    wanted = lambda name: not options.case or options.case in name
    for path in sorted((golden.root / "training").glob("*.json")):
        if wanted(path.stem):
            golden.case(path.stem, lambda: golden.train(path))
    evaluations = golden.root / "inference/eval.json"
    if evaluations.exists():
        table = json.loads(evaluations.read_text())
        for name in (n for n in table if isinstance(table[n], dict) and "mean" in table[n] and wanted("eval_" + n)):
            golden.case("eval_" + name, lambda: golden.evaluate(name, table[name], table["tolerance"]))
    greedy = golden.root / "inference/greedy.json"
    if greedy.exists():
        table = json.loads(greedy.read_text())
        for name in (n for n in table if isinstance(table[n], dict) and "generated" in table[n] and wanted("greedy_" + n)):
            golden.case("greedy_" + name, lambda: golden.generate(table[name]))
    print(f"{golden.passed} passed, {golden.failed} failed")
    return 1 if golden.failed or not golden.passed else 0


if __name__ == "__main__":
    sys.exit(main())
