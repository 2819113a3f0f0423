#!/usr/bin/env bash
# A grid by an array of SLURM. An element is a seed: it trains and tests the cells of that seed, one after the other.
#
#   sbatch --array=0-4 --gpus-per-task=1 --time=24:00:00 examples/cluster/grid_slurm.sh experiments/grids/FILE.yaml
#
# Further words are options of ltr grid: --runs FOLDER, or --only NAME for some of the cells. Two minutes before its time
# is up an element saves, and goes into the queue again. When all have ended: ltr grid experiments/grids/FILE.yaml --table
#SBATCH --job-name=grid
#SBATCH --ntasks=1
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=grid-%A_%a.log
exec python -m ltr grid "$@" --seeds "$SLURM_ARRAY_TASK_ID"
