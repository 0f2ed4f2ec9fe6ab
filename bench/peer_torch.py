#!/usr/bin/python3
"""Eager PyTorch on the reference model, step by step in turn with bench_step.

The same work on both sides: forward, backward, global norm, clipping, AdamW; one thread; the same OpenBLAS core type (PyTorch uses the
system's BLAS). Steps alternate, because the machine's speed drifts; the medians of both and the median of the neighbours'
ratio are printed.

  peer_torch.py [--bench BUILD/bench/bench_step] [--rounds N] [--as-shipped]

--as-shipped leaves the core type to OpenBLAS in PyTorch's process only. Needs python3-torch.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

LAYERS, HIDDEN, INTER, HEADS, VOCAB, BATCH, SEQ = 8, 512, 1408, 8, 4096, 4, 256


def restart_with_environment(as_shipped):
    """BLAS and OpenMP read their settings when they load, before this script can change them."""
    wanted = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    if not as_shipped:
        wanted["OPENBLAS_CORETYPE"] = os.environ.get("OPENBLAS_CORETYPE", core_type())
    if all(os.environ.get(key) == value for key, value in wanted.items()):
        return
    os.environ.update(wanted)
    os.execv(sys.executable, [sys.executable] + sys.argv)


def core_type():
    with open("/proc/cpuinfo") as cpuinfo:
        flags = next((line for line in cpuinfo if line.startswith("flags")), "").split()
    return "SkylakeX" if "avx512f" in flags else "Haswell"


def make_model(torch):
    nn, functional = torch.nn, torch.nn.functional
    head_dim = HIDDEN // HEADS

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(HIDDEN))

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    inv = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(SEQ).float(), inv)
    cosine, sine = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
    mask = torch.full((SEQ, SEQ), float("-inf")).triu(1)

    def rotate(x):
        a, b = x.chunk(2, -1)
        return x * cosine + torch.cat((-b, a), -1) * sine

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
            self.gate, self.up = (nn.Linear(HIDDEN, INTER, bias=False) for _ in range(2))
            self.down = nn.Linear(INTER, HIDDEN, bias=False)
            self.norm_in, self.norm_post = Norm(), Norm()

        def forward(self, x):
            h = self.norm_in(x)
            q, k, v = (w(h).view(BATCH, SEQ, HEADS, head_dim).transpose(1, 2) for w in (self.q, self.k, self.v))
            q, k = rotate(q), rotate(k)
            p = torch.softmax(q @ k.transpose(-1, -2) / head_dim**0.5 + mask, -1)
            x = x + self.o((p @ v).transpose(1, 2).reshape(BATCH, SEQ, HIDDEN))
            h = self.norm_post(x)
            return x + self.down(functional.silu(self.gate(h)) * self.up(h))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCAB, HIDDEN)
            nn.init.normal_(self.embed.weight, std=0.02)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm = Norm()

        def forward(self, ids, targets):
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.norm(x), self.embed.weight)
            return functional.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))

    return Llama()


def peak_rss_mib():
    with open("/proc/self/status") as status:
        return next(float(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


class Ours:
    def __init__(self, program):
        self.process = subprocess.Popen([program, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline().split()
        if not ready:
            raise SystemExit("peer_torch.py: %s did not start" % program)
        self.rss = float(ready[1])

    def step(self):
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        seconds, rss = map(float, self.process.stdout.readline().split())
        self.rss = rss
        return seconds

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/bench/bench_step")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--as-shipped", action="store_true")
    options = parser.parse_args()
    restart_with_environment(options.as_shipped)
    ours = Ours(options.bench)
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = make_model(torch)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95))
    ids, targets = torch.randint(VOCAB, (BATCH, SEQ)), torch.randint(VOCAB, (BATCH, SEQ))

    def step():
        start = time.monotonic()
        optimizer.zero_grad(set_to_none=True)
        model(ids, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return time.monotonic() - start

    for _ in range(2):
        step()
    theirs_seconds, our_seconds = [], []
    for _ in range(options.rounds):
        theirs_seconds.append(step())
        our_seconds.append(ours.step())
    ours.close()
    tokens = BATCH * SEQ
    ratio = statistics.median(t / o for t, o in zip(theirs_seconds, our_seconds))
    print("torch %s, core type %s, 1 thread, %d rounds" % (torch.__version__, os.environ.get("OPENBLAS_CORETYPE", "as shipped"), options.rounds))
    print("torch  %7.0f tokens/s median, %7.0f best, peak RSS %5.0f MiB" % (tokens / statistics.median(theirs_seconds), tokens / min(theirs_seconds), peak_rss_mib()))
    print("ordo   %7.0f tokens/s median, %7.0f best, peak RSS %5.0f MiB" % (tokens / statistics.median(our_seconds), tokens / min(our_seconds), ours.rss))
    print("ratio  %.2f x the tokens/s, %.2f x the memory" % (ratio, ours.rss / peak_rss_mib()))


if __name__ == "__main__":
    main()
