#!/usr/bin/env python3
"""joint.py SOURCE BUILD PREFIX FAKES - examples/joint-bf16: where the flag initializes_jointly is refused and where it is legal, and that
it trains there. The reference of the cast is apex_amp:O5, which stores the same numbers in two steps (bf16 weights, fp32 norms and masters) and
computes by the same rules, so the first loss must be the same in every digit."""
import sys

from outside import Outside, check, losses, summary

source, build, prefix, fakes = sys.argv[1:]
with Outside(source, build, prefix) as outside:
    outside.example("joint-bf16")
    joint, fake = [outside.paths[-1]], [outside.paths[-1], fakes]

    for strategy, others in (("fsdp1", ["strategy.wrap", "optimizer.create"]), ("fsdp2", ["strategy.prepare_joint"])):
        text = outside.steps(strategy, "joint_bf16")
        check(isinstance(text, str) and "E-PLAN-CYCLE" in text, f"{strategy} is not refused: {text}")
        for word in others + ["precision.initialize(joint_bf16)", "initializes_jointly"]:
            check(word in text, f"the refusal of {strategy} does not name {word}:\n{text}")
        check(not outside.train(strategy, "joint_bf16", ranks=2), f"{strategy} trains although the plan is refused")
    text = outside.steps("tp", "joint_bf16", paths=fake)
    check("strategy.partition(tp)" in text and "precision.initialize(joint_bf16)" in text, f"tp: {text}")
    steps = outside.steps("tp", "joint_bf16:after_partition=true", paths=fake)
    check(isinstance(steps, list) and steps.index("strategy.partition") < steps.index("precision.initialize"), f"accepts_partitioned: {steps}")

    order = ["weights.load", "weights.sync", "optimizer.create", "precision.initialize", "strategy.wrap"]
    steps = outside.steps("ddp", "joint_bf16")
    check([s for s in steps if s in order] == order, f"ddp: {steps}")
    steps = outside.steps("fsdp2", "joint_bf16", "--eval")
    check(isinstance(steps, list) and steps.index("precision.initialize") < steps.index("strategy.prepare_joint"), f"fsdp2 --eval: {steps}")

    one = outside.must_train("none", "joint_bf16")
    two = outside.must_train("ddp", "joint_bf16", ranks=2)
    plain = outside.must_train("none", None)
    outside.paths.append(f"{build}/plugins/apex_amp")
    amp = outside.must_train("none", "apex_amp:O5")
    check(losses(one)[0] == losses(amp)[0] != losses(plain)[0],
          f"first loss {losses(one)[0]}, of apex_amp {losses(amp)[0]}, of fp32 {losses(plain)[0]}")
    check(losses(one)[-1] < 0.8 * losses(one)[0], f"it does not learn: {losses(one)}")
    # bf16 rounds to 2^-9, and a gradient that differs in its last bits may move a weight by one such step: 1 % holds them all
    for name, other in (("two ranks", two), ("fp32", plain), ("apex_amp", amp)):
        worst = max(abs(a - b) / b for a, b in zip(losses(one), losses(other)))
        check(worst < 0.01, f"losses differ from those of {name} by {worst}")
    # fp32 masters with their gradients beside the moments of AdamW: 2 more numbers for each cast element
    more = summary(one)["peak_bytes"]["optimizer"] - summary(plain)["peak_bytes"]["optimizer"]
    check(more > 0.9 * summary(plain)["peak_bytes"]["optimizer"], f"masters take {more} bytes")
print("joint_bf16: refused with fsdp1, fsdp2 and tp with its cycle; trains alone and with ddp")
