#!/bin/bash
# estimate.sh ORDO MEASURE - estimates against measurement on two and four ranks, and what the estimate of a very large job takes. Exit code 1 if one differs.
set -eu
ordo=$1 measure=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
measure() { # RANKS STRATEGY...
  local ranks=$1 strategy
  shift
  for strategy; do
    echo "$strategy on $ranks ranks"
    mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" "$measure" --strategy "$strategy" --print
  done
}
measure 2 ddp fsdp1 fsdp2 tp tp:sequence_parallel=true
measure 4 ddp=2+fsdp2 tp=2+ddp tp=2+fsdp1 tp=2+fsdp2
for strategy in ddp fsdp1 fsdp2 ddp=8+fsdp2 tp=8+ddp tp=8+fsdp1 tp=8+fsdp2 tp=8:sequence_parallel=true+fsdp2; do
  python3 - "$ordo" plan --estimate --world 1024 --strategy "$strategy" --model.layers 80 --model.hidden_size 8192 --model.heads 64 \
    --model.kv_heads 8 --model.intermediate_size 28672 --model.vocab_size 128256 --model.tie_embeddings=false --train.seq_len 4096 \
    --train.batch 1024 --ranks-shown 0 --json >"$work/json" <<'END'
import resource, subprocess, sys, time
started = time.monotonic()
done = subprocess.run(sys.argv[1:])
print("%.2f s, %.0f MiB resident" % (time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024), file=sys.stderr)
sys.exit(done.returncode)
END
  python3 -c 'import json, sys
rank = json.load(open(sys.argv[1]))["ranks"][0]
sent = sum(kind["bytes"] for axis in rank["later_step"].values() for kind in axis.values())
print("  70B, 1024 ranks of %-34s rank 0: peak %.1f GiB, payload of a step %.1f GiB" % (sys.argv[2], rank["peak_bytes"]["total"] / 2**30, sent / 2**30))' "$work/json" "$strategy"
done
