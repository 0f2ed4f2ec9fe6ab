#!/bin/bash
# peer_torch.sh BENCH_STEP - peer_torch.py against PyTorch on the same BLAS core, and as Debian ships it; says so and stops without PyTorch.
set -eu
python=/usr/bin/python3
"$python" -c 'import torch' 2>/dev/null || { echo "skipped: python3-torch is not installed (./dev setup --all)"; exit 77; }
script=$(dirname "$0")/peer_torch.py
"$python" "$script" --bench "$1" --rounds "${ORDO_BENCH_ROUNDS:-5}"
"$python" "$script" --bench "$1" --rounds 2 --as-shipped
