"""A job of SLURM that was warned of its end goes into the queue again."""

import os
import signal
import subprocess
import sys

from ltr.data.console import say
from ltr.run.signals import CLUSTER_SIGNALS, WARN_OF_END

CODES_OF_WARNED = {128 + number for number in WARN_OF_END}
SECONDS = 60  # until an answer of SLURM is given up


def requeue_if_warned(code: int) -> None:
    """Put the job of this program into the queue again where it ends by a warning. The same commands
    then go on with it. A line says so, or why SLURM does not: the job may have forbidden it.

    The program is the place for it, and not the job script: ``srun`` tells a script the code of
    whichever process ended first, and the number of an array's last element is that of the array.

    Args:
        code: the exit code of the command, which has saved.
    """
    if code not in CODES_OF_WARNED or "SLURM_JOB_ID" not in os.environ:
        return
    # SLURM ends a job that it puts into the queue, and first of all the process that asks for it.
    # Programs that it starts ignore these signals, too.
    for each in CLUSTER_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    job = _job()
    try:
        asked = subprocess.run(
            ["scontrol", "requeue", job],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        refusal = " ".join(asked.stderr.split()) if asked.returncode else None
    except (OSError, subprocess.SubprocessError) as error:
        refusal = str(error)
    name = signal.Signals(code - 128).name
    end = f"ltr: {name}, and SLURM puts job {job} into the queue again"
    if refusal is not None:
        end = f"ltr: {name}, and job {job} is not put into the queue again ({refusal}); submit it once more, and it goes on where it is"
    say(end, to=sys.stderr)


def _job() -> str:
    """What SLURM calls this job. The plain number of an element may be that of its whole array."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]
