"""Is every resume exact?  python tests/run/resumes.py [VARIANT …] [--levels 2]

A variant is one run under other options of the trainer, data or ranker. Whenever the run has
written a checkpoint, its folder is copied: that is what ``kill -9`` would have left. From each
copy, moved to another place, the run is resumed to its end, and must have the weights, the state of
the optimiser and the validations of the run that was never interrupted. What the resumed runs write
is copied and resumed in turn, ``--levels`` deep.
"""

import argparse
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))
from ltr.__main__ import main as ltr
from tests.world.backbones import make_backbone
from tests.world.collections import write_collection
from tests.world.configurations import QUIET
from tests.world.features import write_letor


def kind(class_path: str, **init_args: object) -> dict:
    """An object of a configuration."""
    return {"class_path": class_path, "init_args": init_args}


# 24 lists of features, 4 a step: 6 steps an epoch. The other variants change this.
BASE = {
    "seed_everything": 3,
    "model": {
        "ranker": kind("ltr.models.FeatureRanker", n_features=5, preset="two_layer"),
        "loss": {"class_path": "ltr.losses.RankNetLoss"},
        "lr": 0.1,
        "metrics": ["nDCG_exp@10", "swapped_pairs"],
    },
    "data": kind("ltr.datamodules.FeatureDataModule", path="letor", batch_size=4),
    "trainer": {"max_epochs": 3, **QUIET, "logger": False},
    "best": {"monitor": "val/nDCG_exp@10"},
    "last": {"every_n_steps": 4},
}
CROSS_ENCODER = kind("ltr.models.PairWiseBertRanker", backbone="backbone", max_length=24)
DUAL_ENCODER = kind("ltr.models.DualEncoder", backbone="backbone", max_length=24)
TEXTS = {
    "model.ranker": CROSS_ENCODER,
    "model.loss": kind("ltr.losses.SoftmaxLoss"),
    "data": kind(
        "ltr.datamodules.TripletDataModule",
        path="collection",
        negatives_per_query=3,
        batch_size=8,
        evaluation={"batch_size": 15},
    ),
    "trainer.max_epochs": 2,
}
GROUPS = TEXTS | {
    "model.ranker": DUAL_ENCODER,
    "model.in_batch": kind("ltr.in_batch.OtherQueries"),
    "data": kind("ltr.datamodules.GroupDataModule", path="collection", groups=8),
}
MINED = GROUPS | {
    "model.margin": kind("ltr.margins.FromDistance"),
    "model.loss": kind("ltr.losses.MarginRankingLoss"),
    "data": kind(
        "ltr.datamodules.TripletDataModule",
        path="collection",
        negatives="mined",
        negatives_per_query=3,
        batch_size=8,
        loading={"bucket_window": 3},
    ),
}
ADAPTERS = {"model.ranker.init_args.encoder": {"lora": {"r": 4, "dropout": 0.2}}}
MIXED = {
    "data.init_args.path": ["collection", "other", "without-dev"],
    "data.init_args.mixture": {"batches": "mixed", "temperature": 2.0},
}


def mining(**options: object) -> dict:
    """Mined negatives, refreshed when the options say so."""
    recipe = {"depth": 20, "n": 6, "relative": None, "sampling": "softmax"}
    callback = kind("ltr.callbacks.HardNegativeMining", recipe=recipe, **options)
    return MINED | {"trainer.callbacks": [callback]}


EARLY = kind("lightning.pytorch.callbacks.EarlyStopping", monitor="val/nDCG_exp@10", mode="max")
STOP = kind("tests.run.interrupted.StopAt", step=4)
AVERAGE = kind("lightning.pytorch.callbacks.EMAWeightAveraging", decay=0.9)
SCHEDULE = kind(
    "ltr.callbacks.LossSchedule",
    changes=[
        {"step": 5, "loss": kind("ltr.losses.LambdaRankLoss")},
        {"epoch": 2, "options": {"sigma": 2.0}},
    ],
)


def variants_of(table: str, *callbacks: dict) -> dict[str, dict]:
    """Variants by name: a line of the table is a name and options of ``best``, ``last`` and, where
    neither is named, of the trainer.
    """
    variants = {}
    for line in table.strip().splitlines():
        name, _, words = line.partition(":")
        changes: dict = {"trainer.callbacks": [*callbacks]} if callbacks else {}
        for word in words.split():
            option, _, value = word.partition("=")
            option = option if option.startswith(("best.", "last.")) else f"trainer.{option}"
            changes[option] = yaml.safe_load(value)
        variants[name] = changes
    return variants


VARIANTS = {
    **variants_of("""
plain:
no validation: limit_val_batches=0
validation every second epoch: check_val_every_n_epoch=2 max_epochs=4
validation every 3 steps: val_check_interval=3
validation every 4 steps: val_check_interval=4
validation after 0.4 of an epoch: val_check_interval=0.4
validation every 5 steps, over epochs: val_check_interval=5 check_val_every_n_epoch=null
validation every 6 steps, over epochs: val_check_interval=6 check_val_every_n_epoch=null
accumulation of 2: accumulate_grad_batches=2 last.every_n_steps=2
accumulation of 4, 6 batches: accumulate_grad_batches=4 last.every_n_steps=1
accumulation of 4, validation every 2: accumulate_grad_batches=4 val_check_interval=2
every step: last.every_n_steps=1
8 steps at most: max_steps=8 max_epochs=-1
12 steps at most: max_steps=12 max_epochs=-1
5 batches an epoch: limit_train_batches=5
half an epoch: limit_train_batches=0.5
the three best: best.save_top_k=3 val_check_interval=3
all of the best: best.save_top_k=-1
the fewest swapped pairs: best.monitor=val/swapped_pairs val_check_interval=3
clipped gradients: gradient_clip_val=0.1
sanity check: num_sanity_val_steps=2
"""),
    **variants_of(
        """
early stopping: max_epochs=8
early stopping within epochs: val_check_interval=2 max_epochs=8
early stopping within epochs, not before the sixth: val_check_interval=2 min_epochs=6 max_epochs=8
early stopping, accumulation: val_check_interval=3 accumulate_grad_batches=2 max_epochs=8
""",
        EARLY,
    ),
    **variants_of("asked to stop at step 4, not before the second epoch: min_epochs=2", STOP),
    **variants_of("averaged weights: val_check_interval=3", AVERAGE),
    **variants_of("another loss from step 5: max_epochs=4", SCHEDULE),
    "no dev split": {"data.init_args.path": "letor-without-dev"},
    "accumulation of 2, validation every 3, the three best": {
        "trainer.accumulate_grad_batches": 2,
        "trainer.val_check_interval": 3,
        "best.save_top_k": 3,
    },
    "a cross-encoder with dropout": TEXTS,
    "a cross-encoder with dropout over windows": TEXTS
    | {"model.ranker.init_args.windows": {"size": 4, "stride": 3}},
    "a dual encoder over groups": GROUPS | {"trainer.val_check_interval": 2},
    "a dual encoder, accumulation": GROUPS | {"trainer.accumulate_grad_batches": 2},
    "negatives mined every epoch": mining(),
    "negatives mined every 3 steps": mining(every_n_steps=3),
    "negatives mined every 2 steps, accumulation": mining(every_n_steps=2)
    | {"trainer.accumulate_grad_batches": 2},
    "negatives of BM25, then mined": mining(every_n_steps=3) | {"data.init_args.negatives": "bm25"},
    "negatives mined every step, the newest kept, accumulation of 2, validation every 3": mining(
        every_n_steps=1, keep=1
    )
    | {
        "last.every_n_steps": 3,
        "trainer.accumulate_grad_batches": 2,
        "trainer.val_check_interval": 3,
        "data.init_args.batch_size": 4,
    },
    "negatives mined every 2 steps, the newest kept": mining(every_n_steps=2, keep=1)
    | {"last.every_n_steps": 3},
    "a miner trained beside a cross-encoder that scores anew": mining(rescore=True)
    | {
        "model.ranker": CROSS_ENCODER,
        "model.miner": kind("ltr.models.DualEncoder", backbone="backbone", max_length=20),
        "model.in_batch": None,
    },
    "several sources": TEXTS
    | {
        "data.init_args.path": [
            {"path": "collection", "weight": 3, "negatives": {"candidates": 2, "random": 1}},
            {"path": "other", "weight": 1},
        ],
        "trainer.val_check_interval": 3,
    },
    "several sources, mixed": GROUPS | MIXED,
    "several sources, negatives of two mined every 3 steps": mining(every_n_steps=3)
    | {
        "data.init_args.negatives": "candidates",
        "data.init_args.path": [
            {"path": "collection", "weight": 2, "negatives": {"mined": 2, "random": 1}},
            {"path": "other", "weight": 1, "negatives": "bm25"},
            {"path": "without-dev", "weight": 1, "negatives": "mined"},
        ],
    },
    "adapters with dropout": TEXTS | ADAPTERS,
    "adapters, averaged, on a base in bfloat16": TEXTS
    | ADAPTERS
    | {
        "model.ranker.init_args.encoder.dtype": "bfloat16",
        "trainer.callbacks": [AVERAGE],
        "trainer.val_check_interval": 2,
    },
    "adapters, negatives mined every 3 steps": mining(every_n_steps=3) | ADAPTERS,
}


def write_world(folder: Path) -> None:
    """The data and the backbone that the variants name."""
    write_collection(folder / "collection")
    write_collection(folder / "other", n_queries=11, seed=1)
    write_collection(folder / "without-dev", n_queries=7, seed=2)
    (folder / "without-dev/qrels/dev.tsv").unlink()
    make_backbone(folder / "backbone")
    write_letor(folder / "letor")
    shutil.copytree(folder / "letor", folder / "letor-without-dev")
    (folder / "letor-without-dev/vali.txt").unlink()


def configured(changes: dict, world: Path) -> dict:
    """The configuration of a variant."""
    config = yaml.safe_load(yaml.safe_dump(BASE))
    for key, value in changes.items():
        *path, name = key.split(".")
        where = config
        for part in path:
            where = where.setdefault(part, {})
        where[name] = yaml.safe_load(yaml.safe_dump(value))
    model = config["model"]
    for part, name in (
        (config["data"], "path"),
        (model["ranker"], "backbone"),
        (model.get("miner", {}), "backbone"),
    ):
        options = part.get("init_args", {})
        if name in options:
            options[name] = inside(world, options[name])
    return config


def inside(world: Path, path: object) -> object:
    """A path within the world; of several sources, each."""
    if isinstance(path, list):
        return [inside(world, source) for source in path]
    if isinstance(path, dict):
        return path | {"path": inside(world, path["path"])}
    return str(world / path)


def outcome(run: Path) -> dict:
    """What an interrupted run must end with too."""
    last = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    kept = {
        file.name: torch.load(file, weights_only=True)["state_dict"]
        for file in (run / "checkpoints").glob("*.ckpt")
    }
    results = yaml.safe_load((run / "metrics.json").read_text())
    # What it took, and only where it was not interrupted.
    results["fit"].pop("seconds")
    for validation in results.get("validations", []):
        validation.pop("seconds")
    results.pop("forecast", None)
    results.pop("took", None)
    names = ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "loops")
    mined = {
        str(file.relative_to(run)): torch.from_numpy(np.load(file))
        for file in (run / "negatives").rglob("*.npy")
    }
    return {name: last[name] for name in names} | {"kept": kept, "results": results, "mined": mined}


def differences(a: object, b: object, path: str = "") -> Iterator[str]:
    """Where two outcomes differ by a bit or more."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}, key=str):
            yield from differences(a.get(key), b.get(key), f"{path}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for at, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{path}[{at}]")
    elif not (
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
    ):
        yield path if isinstance(a, torch.Tensor) else f"{path} {a} != {b}"


@contextmanager
def copying(run: Path, target: Path) -> Iterator[list[Path]]:
    """Copy a run folder whenever a checkpoint was written into it."""
    copies: list[Path] = []
    replace = os.replace

    def watched(source: object, destination: object) -> None:
        replace(source, destination)
        if str(destination).endswith(".ckpt"):
            copies.append(target / f"copy{len(copies)}")
            shutil.copytree(run, copies[-1])

    each_epoch_is_written = mock.patch("ltr.run.checkpoints.MAX_SHARE_OF_TIME", math.inf)
    with mock.patch("os.replace", watched), each_epoch_is_written:
        yield copies


def check(run: Path, expected: dict, levels: int, where: str) -> tuple[int, list[str]]:
    """Resume a run from everything that it writes meanwhile: how many resumes there were, and what
    was wrong.
    """
    with tempfile.TemporaryDirectory(dir=run.parent) as folder:
        with copying(run, Path(folder)) as copies:
            code = ltr(["fit", str(run)])
        wrong = [f"exit {code}"] if code else list(differences(expected, outcome(run)))[:3]
        found = [f"{where}: {one}" for one in wrong]
        n_resumes = 1
        if levels > 0:
            for number, copy in enumerate(copies):
                more, wrong = check(copy, expected, levels - 1, f"{where} > {number}")
                n_resumes += more
                found += wrong
        return n_resumes, found


def try_variant(
    name: str, world: Path, folder: Path, levels: int, most: int | None = None
) -> tuple[int, list[str]]:
    """The number of resumes of a variant, and what was wrong.

    Args:
        name: of the variant.
        world: see :func:`write_world`.
        folder: a new one.
        levels: how deep resumes are resumed.
        most: resume from so many of the copies, the first and others as far apart.
    """
    run = folder / "run"
    folder.mkdir()
    file = folder / "variant.yaml"
    file.write_text(yaml.safe_dump(configured(VARIANTS[name], world)))
    with copying(run, folder) as copies:
        code = ltr(["fit", "--config", str(file), "--trainer.default_root_dir", str(run)])
    if code:
        return 0, [f"the run itself: exit {code}"]
    expected = outcome(run)
    n_resumes = 0
    found = []
    most = min(most or len(copies), len(copies))
    for number in (n * len(copies) // most for n in range(most)):
        more, wrong = check(copies[number], expected, levels - 1, f"{number}")
        n_resumes += more
        found += wrong
    shutil.rmtree(folder)
    return n_resumes, found


def main() -> int:
    """Print a line for each variant; 1 if something was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "variants", nargs="*", metavar="VARIANT", help=f"all, or some of: {'; '.join(VARIANTS)}"
    )
    parser.add_argument("--levels", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    total = 0
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LTR_CACHE"] = f"{folder}/cache"
        world = Path(folder, "world")
        world.mkdir()
        write_world(world)
        for number, name in enumerate(options.variants or VARIANTS):
            place = Path(folder, f"variant{number}")
            with open(os.devnull, "w") as out, redirect_stdout(out), redirect_stderr(out):
                n_resumes, wrong = try_variant(name, world, place, options.levels)
            total += n_resumes
            failed += len({one.partition(":")[0] for one in wrong})
            told = f"{name}: {n_resumes} resumes, {len(wrong)} differences"
            print(told, *wrong[:6], sep="\n    ", flush=True)
    print(f"{total} resumes, {failed} wrong")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
