"""``ltr encode``: the embeddings of a corpus, for searches and miners of one machine or of many."""

import os

import torch

from ltr.data.console import say, speech_on_stderr
from ltr.data.outputs import check_folder
from ltr.run.precision import Precision
from ltr.search.encoding import PLAN
from ltr.search.numbers import Numbers
from ltr.use.corpus_encoding import open_encoding


def encode(
    ranker: str,
    *,
    corpus: str,
    output: str,
    numbers: Numbers = "float16",
    precision: Precision | None = None,
    device: str | None = None,
) -> None:
    """Encode a corpus into a folder of shards, which ltr search and ltr mine read: --encoded OUTPUT.

    Started again, it goes on where it was, or checks what is finished and mends what is damaged. Started by torchrun, by
    srun, by a SLURM array, or on several machines at once, all of them share the work.

    Args:
        ranker: A dual encoder: a run folder, a checkpoint, an exported folder, or a model of the
            hub.
        corpus: A data folder, or a file of texts: .jsonl with _id and text, .tsv with id<TAB>text,
            or .txt with one text a line.
        output: The folder; all workers must reach it.
        numbers: In which embeddings are stored: float32, float16, or int8 with a scale for each.
        precision: Of the encoder; None: that of the run.
        device: Where it runs, such as cpu or cuda:1; None: a GPU if there is one, each process of
            torchrun or srun on its own.
    """
    check_folder(output, "--output", PLAN)
    if device is None and torch.cuda.is_available():
        device = f"cuda:{_gpu_of_process()}"
    with speech_on_stderr():
        job = open_encoding(ranker, corpus, output, numbers, precision, device)
    is_whole = job.check()
    job.encode_missing(*_place_among_workers())
    manifest = job.finish()
    if job.overlap is not None:
        say(
            f"{numbers}: of the 100 nearest texts of a sample {100 * job.overlap:.1f} % stay the same"
        )
    n_shards = job.encoding.plan.n_shards
    say(
        f"{output}: {manifest['count']:,} texts in {n_shards:,} shards, {manifest['dim']} dimensions in {manifest['numbers']}"
        f"{', all checked' if is_whole else ''}; digest {manifest['digest']}"
    )


def _place_among_workers() -> tuple[int, int]:
    """The number of this process among those that torchrun, srun or SLURM started, and theirs."""
    number, count = 0, 1
    for number_name, count_name in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if number_name in os.environ and count_name in os.environ:
            number = int(os.environ[number_name])
            count = int(os.environ[count_name])
            break
    element, n_elements = _place_in_array()
    return (element * count + number) % (n_elements * count), n_elements * count


def _place_in_array() -> tuple[int, int]:
    """The number of this element of an array of SLURM, and how many there are: 0 of 1 where there is no
    array, and where its elements are a list with gaps, such as 3,5,17, in which none knows its number.
    """
    names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "STEP", "COUNT")]
    if not all(name in os.environ for name in names):
        return 0, 1
    own, least, most, step, count = (int(os.environ[name]) for name in names)
    step = max(1, step)
    if (most - least) // step + 1 != count:
        return 0, 1
    return (own - least) // step, count


def _gpu_of_process() -> int:
    """The number of the GPU that this process takes, by its number on its node, which torchrun or
    srun has given it. Where srun shows each process its own GPU alone, that is number 0.
    """
    number = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID", "0")
    return int(number) % torch.cuda.device_count()
