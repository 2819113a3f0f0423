#!/usr/bin/env bash
# Encode a corpus by an array of SLURM. Each element is a worker; they need not run at the same time.
#
#   sbatch --array=0-7 examples/cluster/encode_slurm.sh RANKER CORPUS OUTPUT
#
# With GPUs: sbatch --gpus-per-task=1 … SLURM starts an element again whose machine was lost or taken away. One that
# was killed leaves its shards to the others; where none is left, submit the array again.
#SBATCH --job-name=encode
#SBATCH --ntasks=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=encode-%A_%a.log
set -euo pipefail

if [ $# != 3 ]; then
  echo "usage: sbatch --array=0-7 $0 RANKER CORPUS OUTPUT" >&2
  exit 2
fi
# Halves may round otherwise where another number of threads has added: the same for all elements.
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

exec python -m ltr encode "$1" --corpus "$2" --output "$3"
