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
from contextlib import contextmanager
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

# 24 lists of features, 4 a step: 6 steps an epoch. The other variants change this.
BASE = {
    "seed_everything": 3,
    "model": {
        "ranker": {
            "class_path": "ltr.models.FeatureRanker",
            "init_args": {"n_features": 5, "preset": "two_layer"},
        },
        "loss": {"class_path": "ltr.losses.RankNetLoss"},
        "lr": 0.1,
        "metrics": ["nDCG_exp@10", "swapped_pairs"],
    },
    "data": {
        "class_path": "ltr.datamodules.FeatureDataModule",
        "init_args": {"path": "letor", "batch_size": 4},
    },
    "trainer": {"max_epochs": 3, **QUIET, "logger": False},
    "best": {"monitor": "val/nDCG_exp@10"},
    "last": {"every_n_steps": 4},
}
TEXTS = {
    "model.ranker": {
        "class_path": "ltr.models.PairWiseBertRanker",
        "init_args": {"backbone": "backbone", "max_length": 24},
    },
    "model.loss": {"class_path": "ltr.losses.SoftmaxLoss"},
    "data": {
        "class_path": "ltr.datamodules.TripletDataModule",
        "init_args": {
            "path": "collection",
            "negatives_per_query": 3,
            "batch_size": 8,
            "evaluation": {"batch_size": 15},
        },
    },
    "trainer.max_epochs": 2,
}
GROUPS = TEXTS | {
    "model.ranker": {
        "class_path": "ltr.models.DualEncoder",
        "init_args": {"backbone": "backbone", "max_length": 24},
    },
    "model.in_batch": {"class_path": "ltr.in_batch.OtherQueries"},
    "data": {
        "class_path": "ltr.datamodules.GroupDataModule",
        "init_args": {"path": "collection", "groups": 8},
    },
}
ADAPTERS = {"model.ranker.init_args.encoder": {"lora": {"r": 4, "dropout": 0.2}}}
MINED = GROUPS | {
    "model.margin": {"class_path": "ltr.margins.FromDistance"},
    "model.loss": {"class_path": "ltr.losses.MarginRankingLoss"},
    "data": {
        "class_path": "ltr.datamodules.TripletDataModule",
        "init_args": {
            "path": "collection",
            "negatives": "mined",
            "negatives_per_query": 3,
            "batch_size": 8,
            "loading": {"bucket_window": 3},
        },
    },
}


SEVERAL = TEXTS | {
    "data.init_args.path": [
        {"path": "collection", "weight": 3, "negatives": {"candidates": 2, "random": 1}},
        {"path": "other", "weight": 1},
    ],
    "trainer.val_check_interval": 3,
}
SEVERAL_MIXED = GROUPS | {
    "data.init_args.path": ["collection", "other", "without-dev"],
    "data.init_args.mixture": {"batches": "mixed", "temperature": 2.0},
}


def mining(**options: object) -> dict:
    """The callback, refreshing when the options say so."""
    recipe = {"depth": 20, "n": 6, "relative": None, "sampling": "softmax"}
    return {
        "trainer.callbacks": [
            {
                "class_path": "ltr.callbacks.HardNegativeMining",
                "init_args": {"recipe": recipe, **options},
            }
        ]
    }


EARLY = {
    "class_path": "lightning.pytorch.callbacks.EarlyStopping",
    "init_args": {"monitor": "val/nDCG_exp@10", "mode": "max"},
}
STOP = {"class_path": "tests.run.interrupted.StopAt", "init_args": {"step": 4}}
AVERAGE = {
    "class_path": "lightning.pytorch.callbacks.EMAWeightAveraging",
    "init_args": {"decay": 0.9},
}
SCHEDULE = {
    "class_path": "ltr.callbacks.LossSchedule",
    "init_args": {
        "changes": [
            {"step": 5, "loss": {"class_path": "ltr.losses.LambdaRankLoss"}},
            {"epoch": 2, "options": {"sigma": 2.0}},
        ]
    },
}
VARIANTS = {
    "plain": {},
    "no validation": {"trainer.limit_val_batches": 0},
    "no dev split": {"data.init_args.path": "letor-without-dev"},
    "validation every second epoch": {
        "trainer.check_val_every_n_epoch": 2,
        "trainer.max_epochs": 4,
    },
    "validation every 3 steps": {"trainer.val_check_interval": 3},
    "validation every 4 steps": {"trainer.val_check_interval": 4},
    "validation after 0.4 of an epoch": {"trainer.val_check_interval": 0.4},
    "validation every 5 steps, over epochs": {
        "trainer.val_check_interval": 5,
        "trainer.check_val_every_n_epoch": None,
    },
    "validation every 6 steps, over epochs": {
        "trainer.val_check_interval": 6,
        "trainer.check_val_every_n_epoch": None,
    },
    "accumulation of 2": {"trainer.accumulate_grad_batches": 2, "last.every_n_steps": 2},
    "accumulation of 4, 6 batches": {"trainer.accumulate_grad_batches": 4, "last.every_n_steps": 1},
    "accumulation of 2, validation every 3": {
        "trainer.accumulate_grad_batches": 2,
        "trainer.val_check_interval": 3,
    },
    "accumulation of 4, validation every 2": {
        "trainer.accumulate_grad_batches": 4,
        "trainer.val_check_interval": 2,
    },
    "every step": {"last.every_n_steps": 1},
    "8 steps at most": {"trainer.max_steps": 8, "trainer.max_epochs": -1},
    "12 steps at most": {"trainer.max_steps": 12, "trainer.max_epochs": -1},
    "5 batches an epoch": {"trainer.limit_train_batches": 5},
    "half an epoch": {"trainer.limit_train_batches": 0.5},
    "the three best": {"best.save_top_k": 3, "trainer.val_check_interval": 3},
    "all of the best": {"best.save_top_k": -1},
    "the fewest swapped pairs": {
        "best.monitor": "val/swapped_pairs",
        "trainer.val_check_interval": 3,
    },
    "early stopping": {"trainer.callbacks": [EARLY], "trainer.max_epochs": 8},
    "early stopping within epochs": {
        "trainer.callbacks": [EARLY],
        "trainer.val_check_interval": 2,
        "trainer.max_epochs": 8,
    },
    "early stopping within epochs, not before the sixth": {
        "trainer.callbacks": [EARLY],
        "trainer.val_check_interval": 2,
        "trainer.min_epochs": 6,
        "trainer.max_epochs": 8,
    },
    "asked to stop at step 4, not before the second epoch": {
        "trainer.callbacks": [STOP],
        "trainer.min_epochs": 2,
    },
    "early stopping, accumulation": {
        "trainer.callbacks": [EARLY],
        "trainer.val_check_interval": 3,
        "trainer.accumulate_grad_batches": 2,
        "trainer.max_epochs": 8,
    },
    "averaged weights": {"trainer.callbacks": [AVERAGE], "trainer.val_check_interval": 3},
    "another loss from step 5": {"trainer.callbacks": [SCHEDULE], "trainer.max_epochs": 4},
    "clipped gradients": {"trainer.gradient_clip_val": 0.1},
    "sanity check": {"trainer.num_sanity_val_steps": 2},
    "a cross-encoder with dropout": TEXTS,
    "a cross-encoder with dropout over windows": TEXTS
    | {"model.ranker.init_args.windows": {"size": 4, "stride": 3}},
    "a dual encoder over groups": GROUPS | {"trainer.val_check_interval": 2},
    "negatives mined every epoch": MINED | mining(),
    "negatives mined every 3 steps": MINED | mining(every_n_steps=3),
    "negatives mined every 2 steps, accumulation": MINED
    | mining(every_n_steps=2)
    | {"trainer.accumulate_grad_batches": 2},
    "negatives of BM25, then mined": MINED
    | mining(every_n_steps=3)
    | {"data.init_args.negatives": "bm25"},
    "negatives mined every step, accumulation of 2, validation every 3": MINED
    | mining(every_n_steps=1)
    | {
        "trainer.accumulate_grad_batches": 2,
        "trainer.val_check_interval": 3,
        "data.init_args.batch_size": 4,
    },
    "negatives mined every 2 steps, the newest kept": MINED
    | mining(every_n_steps=2, keep=1)
    | {"last.every_n_steps": 3},
    "a miner trained beside a cross-encoder that scores anew": MINED
    | mining(rescore=True)
    | {
        "model.ranker": TEXTS["model.ranker"],
        "model.miner": {
            **GROUPS["model.ranker"],
            "init_args": {"backbone": "backbone", "max_length": 20},
        },
        "model.in_batch": None,
    },
    "a dual encoder, accumulation": GROUPS | {"trainer.accumulate_grad_batches": 2},
    "several sources": SEVERAL,
    "several sources, mixed": SEVERAL_MIXED,
    "several sources, negatives of two mined every 3 steps": MINED
    | mining(every_n_steps=3)
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
    "adapters, negatives mined every 3 steps": MINED | mining(every_n_steps=3) | ADAPTERS,
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
    named = [
        (config["data"], "path"),
        *((config["model"].get(part, {}), "backbone") for part in ("ranker", "miner")),
    ]
    for options, name in ((part.get("init_args", {}), name) for part, name in named):
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
    copies = []
    replace = os.replace

    def watched(source: object, destination: object) -> None:
        replace(source, destination)
        if str(destination).endswith(".ckpt"):
            copies.append(target / f"copy{len(copies)}")
            shutil.copytree(run, copies[-1])

    with (
        mock.patch("os.replace", watched),
        mock.patch("ltr.run.checkpoints.MAX_SHARE_OF_TIME", math.inf),
    ):  # each epoch is written
        yield copies


def check(run: Path, expected: dict, levels: int, where: str) -> tuple[int, list[str]]:
    """Resume a run from everything that it writes meanwhile: how many resumes there were, and what
    was wrong.
    """
    with tempfile.TemporaryDirectory(dir=run.parent) as folder:
        with copying(run, Path(folder)) as copies:
            code = ltr(["fit", str(run)])
        found = (
            [f"{where}: exit {code}"]
            if code
            else [f"{where}: {one}" for one in differences(expected, outcome(run))][:3]
        )
        if levels == 0:
            return 1, found
        n_resumes = 1
        for number, copy in enumerate(copies):
            more, wrong = check(copy, expected, levels - 1, f"{where} > {number}")
            n_resumes = n_resumes + more
            found = found + wrong
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
        most: resume from about so many of the copies, the first and others as far apart.
    """
    run = folder / "run"
    folder.mkdir()
    (folder / "variant.yaml").write_text(yaml.safe_dump(configured(VARIANTS[name], world)))
    with copying(run, folder) as copies:
        code = ltr(
            [
                "fit",
                "--config",
                str(folder / "variant.yaml"),
                "--trainer.default_root_dir",
                str(run),
            ]
        )
    if code:
        return 0, [f"the run itself: exit {code}"]
    expected = outcome(run)
    n_resumes = 0
    found = []
    every = 1 if most is None else math.ceil(len(copies) / most)
    for number, copy in enumerate(copies[::every]):
        more, wrong = check(copy, expected, levels - 1, f"{number * every}")
        n_resumes = n_resumes + more
        found = found + wrong
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
            with (
                open(os.devnull, "w") as nowhere,
                mock.patch("sys.stdout", nowhere),
                mock.patch("sys.stderr", nowhere),
            ):
                n_resumes, wrong = try_variant(
                    name, world, Path(folder, f"variant{number}"), options.levels
                )
            total = total + n_resumes
            failed = failed + len({one.partition(":")[0] for one in wrong})
            print(
                f"{name}: {n_resumes} resumes, {len(wrong)} differences",
                *wrong[:6],
                sep="\n    ",
                flush=True,
            )
    print(f"{total} resumes, {failed} wrong")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
