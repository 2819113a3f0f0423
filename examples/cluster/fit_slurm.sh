#!/usr/bin/env bash
# Train by a job of SLURM. Each of its starts begins the run or goes on with it.
#
#   sbatch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 --time=24:00:00 examples/cluster/fit_slurm.sh --config FILE
#
# The words behind it are options of ltr fit. Two minutes before its time is up the run is saved, and puts its job into
# the queue again; SLURM does so itself where it takes the nodes for another job.
#SBATCH --job-name=fit
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=fit-%j.log
srun --kill-on-bad-exit=1 python -m ltr fit "$@" --ckpt_path last
