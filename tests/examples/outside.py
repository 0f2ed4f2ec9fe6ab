"""outside.py - what the tests of examples/ share: builds an example against an installed copy of the package alone, runs the command,
reads what a run left. Standard library only."""
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from array import array

MODEL = {"model.layers": 2, "model.hidden_size": 64, "model.intermediate_size": 128, "model.heads": 4}
LAYERS = 2


def check(condition, text):
    if not condition:
        sys.exit(f"{sys.argv[0]}: {text}")


class Outside:
    """A temporary directory with the installed package, and the plugins built there."""

    def __init__(self, source, build, prefix):
        self.source, self.build = source, build
        self.work = tempfile.mkdtemp()
        os.chmod(self.work, 0o755)
        root = f"{self.work}/root"
        subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", root], check=True, stdout=subprocess.DEVNULL)
        self.installed = root + prefix
        for name in os.listdir(f"{self.installed}/lib/pkgconfig"):
            path = f"{self.installed}/lib/pkgconfig/{name}"
            text = open(path).read().replace(prefix, self.installed) if name.startswith("ordo") else None
            if text is not None:
                open(path, "w").write(text)
        self.paths = [f"{build}/plugins/{name}" for name in ("ddp", "fsdp1", "fsdp2")]
        self.serial = 0

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        shutil.rmtree(self.work)

    def example(self, directory):
        """Builds examples/DIRECTORY in an empty place; its plugin is found from then on."""
        place = f"{self.work}/{directory}"
        shutil.copytree(f"{self.source}/examples/{directory}", place)
        environment = dict(os.environ, PKG_CONFIG_PATH=f"{self.installed}/lib/pkgconfig")
        for command in (["meson", "setup", "out"], ["meson", "compile", "-C", "out"]):
            done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
            check(done.returncode == 0, f"examples/{directory} does not build outside:\n{done.stdout}{done.stderr}")
        check(f"{self.source}/sdk" not in open(f"{place}/out/compile_commands.json").read(), "compiled against the source tree")
        subprocess.run(["chmod", "-R", "go-w", place], check=True)
        self.paths.append(f"{place}/out")

    def ordo(self, *words, paths=None):
        environment = dict(os.environ, ORDO_LIBEXEC=f"{self.build}/trainer", ORDO_PLUGIN_PATH="")
        command = [f"{self.build}/host/cli/ordo", words[0], "--plugin-path", ":".join(paths or self.paths), *words[1:]]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    def steps(self, strategy, precision, *more, paths=None):
        """The plan as a list of steps, or the whole text of a refusal."""
        done = self.ordo("plan", "--strategy", strategy, "--precision", precision, "--ranks", "2", "--steps", *more, paths=paths)
        if done.returncode == 0:
            return done.stdout.split()
        check(done.returncode == 3, f"plan ended with {done.returncode}: {done.stderr}")
        return self.ordo("plan", "--strategy", strategy, "--precision", precision, "--ranks", "2", *more, paths=paths).stdout

    def train(self, strategy, precision, ranks=1, data=None, model=None, **keys):
        """Trains; returns the directory of the run. Keys as data_order=... or "data.order", default: 6 sequences a step, 6 steps, AdamW."""
        self.serial += 1
        output = f"{self.work}/run{self.serial}"
        values = {"data.train": data or f"{self.source}/LICENSE", "data.tokenizer": "bytes", "data.order": "sequential", "train.seq_len": 32,
                  "train.batch": 6, "train.steps": 6, "train.deadline": 60, "optim.name": "adamw", "optim.lr": 1e-2, "optim.clip": 1,
                  "checkpoint.save": "false", "log.peak": "false", "log.progress": "none", "train.output": output}
        values.update({"model.path": model} if model else MODEL)
        values.update({key if "." in key else key.replace("_", ".", 1): value for key, value in keys.items()})
        words = [word for key, value in values.items() for word in (f"--{key}", str(value))]
        done = self.ordo("train", "--strategy", strategy, *(["--precision", precision] if precision else []), "--ranks", str(ranks), *words)
        self.last = done
        return output if done.returncode == 0 else None

    def must_train(self, *words, **keys):
        output = self.train(*words, **keys)
        check(output, f"training {words} failed:\n{self.last.stdout}{self.last.stderr}")
        return output


def rows(run, *names):
    """Per step the numbers of the metrics."""
    found = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    return [tuple(row[name] for name in names) for row in found if "grad_norm" in row]


def losses(run):
    return [row[0] for row in rows(run, "loss")]


def summary(run):
    return json.load(open(f"{run}/summary.json"))


def read_tensors(path):
    """name -> (shape, array of floats) of an fp32 safetensors file."""
    blob = open(path, "rb").read()
    size = struct.unpack("<Q", blob[:8])[0]
    tensors = {}
    for name, entry in json.loads(blob[8:8 + size]).items():
        if name == "__metadata__":
            continue
        check(entry["dtype"] == "F32", f"{name} of {path} is {entry['dtype']}")
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["shape"], array("f", blob[8 + size + begin:8 + size + end]))
    return tensors


def write_tensors(path, tensors):
    """The file again with other numbers, in the same order."""
    blob = open(path, "rb").read()
    size = struct.unpack("<Q", blob[:8])[0]
    body = bytearray(blob[8 + size:])
    for name, entry in json.loads(blob[8:8 + size]).items():
        if name in tensors:
            body[entry["data_offsets"][0]:entry["data_offsets"][1]] = tensors[name][1].tobytes()
    open(path, "wb").write(blob[:8 + size] + bytes(body))


def distance(ours, reference):
    """Relative L2 distance."""
    square = sum((a - b) ** 2 for a, b in zip(ours, reference))
    norm = sum(b * b for b in reference)
    check(len(ours) == len(reference) and norm > 0, "nothing to compare with")
    return math.sqrt(square / norm)
