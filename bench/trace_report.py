#!/usr/bin/env python3
"""trace_report.py TRACE [--step N] [--bytes BYTES] - when a strategy's communication starts, read from a trace of `ordo train --log.trace`.

Prints in which unit's backward the first collective of the last micro-batch started, and what the collectives of backward moved. Exit code 1
unless that was before the backward of the first block, and unless the moved bytes are BYTES where they are given. Every pair of a
collective's begin and end, and the nesting of the spans, is checked on the way.
"""
import argparse
import json
import sys


def fail(text):
    print("trace_report: " + text, file=sys.stderr)
    sys.exit(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    parser.add_argument("--step", type=int, default=2, help="the first step may differ: buckets are rebuilt after it")
    parser.add_argument("--bytes", type=int)
    options = parser.parse_args()
    with open(options.trace, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]

    begun = {e["id"]: e for e in events if e["ph"] == "b"}
    ended = {e["id"]: e for e in events if e["ph"] == "e"}
    in_step = [e for e in begun.values() if e["args"]["step"] == options.step]
    for e in in_step:
        if e["id"] not in ended or ended[e["id"]]["ts"] < e["ts"]:
            fail("collective %s '%s' has no end after its begin" % (e["id"], e["name"]))
    spans = [e for e in events if e["ph"] == "X" and e["args"]["step"] == options.step]
    step = [e for e in spans if e["cat"] == "step"]
    if len(step) != 1:
        fail("%d spans of step %d" % (len(step), options.step))
    if any(e["ts"] < step[0]["ts"] or e["ts"] + e["dur"] > step[0]["ts"] + step[0]["dur"] for e in spans):
        fail("a span lies outside its step")

    # The last micro-batch: the last backward of each unit, in the order they ran (spans are written as they end).
    backward = [e for e in spans if e["cat"] == "backward"]
    names = [e["name"].split(" ", 1)[1] for e in backward]
    if not names:
        fail("no backward in step %d" % options.step)
    last = names[len(names) - len(set(names)):]
    backward = backward[len(names) - len(last):]
    # Times have microseconds; the order in the trace is exact, so a span's own counter says what had started before it.
    order = sorted(in_step, key=lambda e: e["id"])
    during = [e for e in order if e["id"] > backward[0]["args"]["calls"] and e["ts"] <= backward[-1]["ts"] + backward[-1]["dur"]]
    if not during:
        fail("no collective started during backward")
    first = during[0]["id"]
    place = max(i for i, e in enumerate(backward) if e["args"]["calls"] < first)
    blocks = [i for i, name in enumerate(last) if name == "model.layers.0"]
    if not blocks:
        fail("the model has no unit model.layers.0")
    kind = during[0]["args"]["kind"].replace("_", "-")
    ahead = blocks[0] - place
    print("first %s started during backward of %s (%d units before model.layers.0)" % (kind, last[place], ahead))
    moved = sum(e["args"]["bytes"] for e in during)
    print("%d collectives during backward moved %d bytes%s" % (len(during), moved, "" if options.bytes is None else ", the formula says %d" % options.bytes))
    if ahead < 1:
        fail("it started too late to overlap with the blocks")
    if options.bytes is not None and moved != options.bytes:
        fail("the bytes are not those of the formula")


main()
