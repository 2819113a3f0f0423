#!/usr/bin/env bash
# Encode a corpus by the processes of torchrun, on one machine or on several.
#
#   WORKERS=8 examples/cluster/encode_torchrun.sh RANKER CORPUS OUTPUT
#
# WORKERS: processes of this machine, one for each of its GPUs. RESTARTS: how often dead ones are started again, and
# with them the others of this machine. On several machines: the same on each; they need not know one another.
# As one job of several machines, on each of them:
#
#   NODES=2 ENDPOINT=first-machine:29400 examples/cluster/encode_torchrun.sh RANKER CORPUS OUTPUT
set -euo pipefail

if [ $# != 3 ]; then
  echo "usage: $0 RANKER CORPUS OUTPUT" >&2
  exit 2
fi
# Halves may round otherwise where another number of threads has added: the same on all machines.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

if [ -n "${ENDPOINT:-}" ]; then
  # From one machine on: those that are there go on where others are lost, or come late. Without this variable a late one
  # waits in vain for an address that the first has told once (torch 2.13).
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
  rendezvous=(--nnodes "1:${NODES:-2}" --rdzv-backend c10d --rdzv-endpoint "$ENDPOINT" --rdzv-id encode)
else
  rendezvous=(--standalone)
fi
exec torchrun "${rendezvous[@]}" --nproc-per-node "${WORKERS:-1}" --max-restarts "${RESTARTS:-3}" \
  -m ltr encode "$1" --corpus "$2" --output "$3"
