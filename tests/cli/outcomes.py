#!/usr/bin/env python3
"""outcomes.py ORDO ORDERING.md FAKES PLUGIN.so... - the table "Outcomes" of docs/ordering.md against the plugins that are built here.

The resolver's own test runs the table with fakes; this one asks the command, and every strategy is the shipped one. Precision plugins that
are not among the arguments come from FAKES, a directory of plugins that only declare. A row whose strategy is not built is an error: the
table and the tree must not drift apart.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

NAMES = {
    "convert": ["precision.convert_model"],
    "create": ["optimizer.create"],
    "load": ["weights.load", "weights.sync"],
    "load_sharded": ["weights.load_sharded"],
    "partition": ["strategy.partition"],
    "prepare_joint": ["strategy.prepare_joint"],
    "wrap": ["strategy.wrap"],
    "wrap_optimizer": ["precision.wrap_optimizer"],
    "X": ["precision.initialize"],
}
HIDDEN = {"mesh.init", "model.build", "restore.data", "restore.rng"}


def tail(precision):
    restored = ["restore.optimizer"] + (["restore.precision"] if precision != "none" else []) + ["restore.scheduler"]
    return ["scheduler.create"] + restored + ["verify"]


def spelled_out(text, precision):
    steps = []
    for word in text.replace(">", ",").split(","):
        word = word.strip()
        steps += tail(precision) if word == "T" else NAMES[word]
    return steps


def rows_of(path):
    """Cells of the table, as lists of four."""
    lines = open(path, encoding="utf-8").read().split("## Outcomes")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if line.startswith("| ")][1:]


def check(ordo, environment, strategy, precision, cell):
    """Null, or what is wrong."""
    parts = strategy.split("+")
    expression = strategy if strategy == "none" else "+".join(part + "=2" for part in parts)
    ranks = 1 if strategy == "none" else 2 ** len(parts)
    command = [ordo, "plan", "--strategy", expression, "--precision", precision, "--ranks", str(ranks), "--resume", "--json"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode not in (0, 3):
        return run.stderr.strip()
    plan = json.loads(run.stdout)
    if cell.startswith("conflict:"):
        expected = spelled_out(cell[len("conflict:"):].split(";")[0], precision)
        edges = [edge["before"].split("(")[0] for edge in plan["cycle"]]
        got = edges + edges[:1]
    else:
        expected = spelled_out(cell, precision)
        shown = subprocess.run(command[:-1] + ["--steps"], env=environment, capture_output=True, text=True).stdout.split()
        got = [step.split("(")[0] for step in shown if step.split("(")[0] not in HIDDEN]
    return None if got == expected else "expected %s\n  got      %s" % (" > ".join(expected), " > ".join(got))


def main():
    ordo, table, fakes, modules = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    failed, cells = 0, 0
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        built = {os.path.basename(module)[: -len(".so")] for module in modules}
        for name in ("apex_amp", "jointx"):
            if name not in built:
                shutil.copy(os.path.join(fakes, "fake_%s.so" % name), directory)
        path = ":".join([os.path.dirname(os.path.abspath(module)) for module in modules] + [directory])
        environment = dict(os.environ, ORDO_PLUGIN_PATH=path)
        for row in rows_of(table):
            for precision, cell in zip(("none", "apex_amp:O2", "jointx"), row[1:]):
                wrong = check(ordo, environment, row[0], precision, cell)
                cells += 1
                failed += wrong is not None
                if wrong:
                    print("%s with %s\n  %s" % (row[0], precision, wrong))
    print("%d cells, %d failed" % (cells, failed))
    return 1 if failed or cells < 27 else 0


sys.exit(main())
