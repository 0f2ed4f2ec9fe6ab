#!/usr/bin/python3
"""Writes tiny_llama.json: losses and gradients of small random Llamas in double precision, from PyTorch's autograd.

Weights, ids and probe vectors come from a linear congruential sequence that the test repeats in C, so the file holds results
only. Odd sizes on purpose: 3 heads on 1 key/value head, 6 on 2 with heads * head_dim unlike hidden, intermediate 19, sequences that do
not fill or that exceed a block of attention rows. Run: make_tiny_llama.py > tiny_llama.json   (needs python3-torch)
"""
import json
import math

import torch

CASES = [
    {"name": "untied", "tied": False, "batch": 2, "seq": 17, "masked": True},
    {"name": "tied", "tied": True, "batch": 3, "seq": 5, "masked": False},
    {"name": "long", "tied": True, "batch": 1, "seq": 131, "masked": True},
    {"name": "grouped", "tied": False, "batch": 2, "seq": 9, "masked": True, "heads": 6, "kv_heads": 2, "head_dim": 6},
]
DEFAULTS = {"vocab": 37, "hidden": 24, "intermediate": 19, "layers": 2, "heads": 3, "kv_heads": 1, "head_dim": 8, "max_positions": 160, "rms_eps": 1e-5, "rope_theta": 500.0}
SIZES = dict(DEFAULTS)  # of the case that is running


class Sequence:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state * 1664525 + 1013904223) % 2**32
        return self.state

    def uniform(self):
        value = self.next()
        # The C side rounds the 32-bit integer to float before dividing.
        signed = value - 2**32 if value >= 2**31 else value
        return torch.tensor(signed, dtype=torch.int64).to(torch.float32).item() / 2147483648.0


def shapes(tied):
    hidden, inter = SIZES["hidden"], SIZES["intermediate"]
    q, kv = SIZES["heads"] * SIZES["head_dim"], SIZES["kv_heads"] * SIZES["head_dim"]
    table = [("model.embed_tokens.weight", (SIZES["vocab"], hidden))]
    for layer in range(SIZES["layers"]):
        for name, shape in (("self_attn.q_proj", (q, hidden)), ("self_attn.k_proj", (kv, hidden)), ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, q)), ("mlp.gate_proj", (inter, hidden)), ("mlp.up_proj", (inter, hidden)), ("mlp.down_proj", (hidden, inter)), ("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,))):
            table.append(("model.layers.%d.%s.weight" % (layer, name), shape))
    table.append(("model.norm.weight", (hidden,)))
    if not tied:
        table.append(("lm_head.weight", (SIZES["vocab"], hidden)))
    return table


def make_weights(tied, sequence):
    """2-D weights uniform in [-0.4, 0.4), norms 1 + 0.2 u, rounded to fp32 as C holds them."""
    weights = {}
    for name, shape in shapes(tied):
        values = torch.tensor([sequence.uniform() for _ in range(math.prod(shape))], dtype=torch.float32)
        values = values * 0.4 if len(shape) == 2 else 1 + values * 0.2
        weights[name] = values.reshape(shape).double().requires_grad_()
    return weights


def rms(x, w):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + SIZES["rms_eps"]) * w


def rotate(x):
    half = SIZES["head_dim"] // 2
    inv = SIZES["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), inv)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def token_losses(w, ids, targets):
    batch, seq = ids.shape
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(SIZES["layers"]):
        get = lambda name: w["model.layers.%d.%s.weight" % (layer, name)]
        h = rms(x, get("input_layernorm"))
        split = lambda y: y.reshape(batch, seq, -1, SIZES["head_dim"]).transpose(1, 2)
        q, k, v = (split(h @ get("self_attn." + n).T) for n in ("q_proj", "k_proj", "v_proj"))
        k, v = (y.repeat_interleave(SIZES["heads"] // SIZES["kv_heads"], 1) for y in (rotate(k), v))
        scores = rotate(q) @ k.transpose(-1, -2) / math.sqrt(SIZES["head_dim"])
        scores = scores.masked_fill(torch.ones(seq, seq).triu(1).bool(), -math.inf)
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, seq, -1) @ get("self_attn.o_proj").T
        h = rms(x, get("post_attention_layernorm"))
        gate = h @ get("mlp.gate_proj").T
        x = x + (gate * torch.sigmoid(gate) * (h @ get("mlp.up_proj").T)) @ get("mlp.down_proj").T
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    logits = rms(x, w["model.norm.weight"]) @ head.T
    return torch.nn.functional.cross_entropy(logits.reshape(-1, SIZES["vocab"]), targets.reshape(-1), ignore_index=-100, reduction="none")


def run(case):
    SIZES.update(DEFAULTS)
    SIZES.update({key: value for key, value in case.items() if key in DEFAULTS})
    sequence = Sequence(20240101)
    w = make_weights(case["tied"], sequence)
    n = case["batch"] * case["seq"]
    ids = [(sequence.next() >> 8) % SIZES["vocab"] for _ in range(n)]
    targets = [(sequence.next() >> 8) % SIZES["vocab"] for _ in range(n)]
    if case["masked"]:
        targets = [-100 if i % 3 == 1 else t for i, t in enumerate(targets)]
    shape = (case["batch"], case["seq"])
    losses = token_losses(w, torch.tensor(ids).reshape(shape), torch.tensor(targets).reshape(shape))
    losses.sum().backward()
    gradients = {}
    for name, weight in w.items():
        g = weight.grad.flatten()
        probe = Sequence(7)
        gradients[name] = {"l2": g.norm().item(), "probe": sum(probe.uniform() * x for x in g.tolist()), "first": g[0].item(), "last": g[-1].item()}
    return {**case, "sizes": dict(SIZES), "loss_sum": losses.sum().item(), "nll": losses.tolist(), "count": sum(t != -100 for t in targets), "gradients": gradients}


print(json.dumps({"made_by": "make_tiny_llama.py", "torch": torch.__version__, "cases": [run(case) for case in CASES]}, indent=1))
