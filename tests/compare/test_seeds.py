"""Which runs are seeds of one experiment: real runs, as ``ltr fit`` and ``ltr test`` leave them."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from ltr.__main__ import main
from ltr.compare.comparison import compare
from ltr.compare.experiment import read_experiments
from ltr.compare.query_groups import grouped
from ltr.errors import InputError
from ltr.run.training_recipe import TrainingRecipe
from tests.run.resumes import BASE
from tests.world.features import write_letor
from tests.world.tested_runs import refuses_to_compare


def callback(name: str, **options: object) -> dict:
    return {"class_path": name, "init_args": options}


EARLY = callback("lightning.pytorch.callbacks.EarlyStopping", monitor="train/loss", patience=3)
AVERAGE = callback("lightning.pytorch.callbacks.EMAWeightAveraging", decay=0.999)
HEALTH = callback("ltr.callbacks.Health", every_n_steps=50)
OWN = callback("my_callbacks.Health")

# An option, and its values in the first and in the second run: both are told.
REFUSED = [
    ("trainer.gradient_clip_val", None, 0.5),
    ("trainer.gradient_clip_algorithm", None, "value"),
    ("trainer.limit_train_batches", None, 2),
    ("trainer.limit_val_batches", None, 1),
    ("trainer.max_time", None, "00:00:01:00"),
    ("trainer.min_epochs", None, 2),
    ("trainer.min_steps", None, 9),
    ("trainer.val_check_interval", None, 3),
    ("trainer.check_val_every_n_epoch", 1, 2),
    ("trainer.max_epochs", 1, 2),
    ("trainer.max_steps", -1, 5),
    ("trainer.precision", "32-true", "bf16-mixed"),
    ("trainer.accumulate_grad_batches", 1, 2),
    ("trainer.surprise", None, 0.1),  # an option of a later Lightning
    ("best.monitor", "val/nDCG_exp@10", "val/swapped_pairs"),
    ("data.init_args.evaluation.index", None, "IVF8,Flat"),
    ("data.init_args.evaluation.depth", None, 5),
    ("data.init_args.batch_size", 4, 8),
    ("data.init_args.list_size", None, 3),
    ("model.lr", 0.1, 0.2),
    ("model.warmup", 0.1, 0.3),
    ("model.loss.class_path", "ltr.losses.RankNetLoss", "ltr.losses.ListNetLoss"),
]
FIRST = "trainer.callbacks[0]"
# An option, its value in the second run, and what is told.
CASES = [
    ("best.save_top_k", 0, "best.monitor ('val/nDCG_exp@10', None)"),
    (
        "trainer.callbacks",
        [EARLY],
        f"{FIRST}.class_path (None, 'lightning.pytorch.callbacks.EarlyStopping')",
    ),
    (
        "trainer.callbacks",
        [HEALTH, AVERAGE],
        f"{FIRST}.class_path (None, 'lightning.pytorch.callbacks.EMAWeightAveraging'), "
        f"{FIRST}.decay (None, 0.999)",
    ),
    ("trainer.callbacks", EARLY, f"{FIRST}.monitor (None, 'train/loss')"),  # a single one
    ("trainer.callbacks", [OWN], f"{FIRST}.class_path (None, 'my_callbacks.Health')"),
]
CASES += [
    (path, second, f"{path.replace('init_args.', '')} ({first!r}, {second!r})")
    for path, first, second in REFUSED
]
# Where it runs, what it measures and what it shows: seeds may differ in these.
TAKEN = [
    ("data.init_args.path", "/elsewhere/letor"),
    ("trainer.accelerator", "gpu"),
    ("trainer.devices", 2),
    ("trainer.strategy", "ddp"),
    ("trainer.precision", None),  # another name of 32-true
    ("trainer.precision", 32),
    ("trainer.callbacks", [HEALTH]),
    ("trainer.callbacks", []),
    ("trainer.enable_progress_bar", True),
    ("trainer.num_sanity_val_steps", 0),  # the start is not measured
    ("model.metrics", ["nDCG_exp@10", "swapped_pairs", "AP"]),
    ("best.save_top_k", 3),
    ("last.every_n_steps", 7),
    ("data.init_args.loading", {"num_workers": 2}),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with ``letor``, ``c.yaml``, and two seeds of it in ``x``."""
    folder = tmp_path_factory.mktemp("seeds")
    write_letor(folder / "letor")
    init_args = {"path": str(folder / "letor"), "batch_size": 4}
    data = {"class_path": "ltr.datamodules.FeatureDataModule", "init_args": init_args}
    trainer = BASE["trainer"] | {"max_epochs": 1}
    (folder / "c.yaml").write_text(yaml.safe_dump(BASE | {"data": data, "trainer": trainer}))
    for seed in (0, 1):
        fit(folder, folder / f"x/seed={seed}", seed)
        assert main(["test", str(folder / f"x/seed={seed}")]) == 0
    return folder


def fit(trained: Path, run_folder: Path, seed: int, *options: str) -> None:
    """Train with ``c.yaml``."""
    place = ["--trainer.default_root_dir", str(run_folder), "--seed_everything", str(seed)]
    assert main(["fit", "--config", str(trained / "c.yaml"), *place, *options]) == 0


def results(run_folder: Path) -> dict:
    return json.loads((run_folder / "metrics.json").read_text())


def recipe(run_folder: Path) -> TrainingRecipe:
    config = yaml.safe_load((run_folder / "config.yaml").read_text())
    return TrainingRecipe.of(config, results(run_folder)["trained_with"])


@pytest.fixture
def two(trained, tmp_path) -> Path:
    """A copy of the two seeds, to be changed."""
    shutil.copytree(trained / "x", tmp_path / "x")
    return tmp_path / "x"


def set_option(run_folder: Path, path: str, value: object) -> None:
    """Change an option in the config.yaml of a run."""
    file = run_folder / "config.yaml"
    config = yaml.safe_load(file.read_text())
    options = config
    *parents, name = path.split(".")
    for parent in parents:
        options[parent] = options.get(parent) or {}
        options = options[parent]
    if isinstance(options.get(name), dict):
        value = options[name] | value
    options[name] = value
    file.write_text(yaml.safe_dump(config))


@pytest.mark.parametrize(("path", "value", "told"), CASES)
def test_runs_that_were_trained_otherwise_are_no_seeds_of_one_experiment(
    two, path, value, told, capsys
):
    set_option(two / "seed=1", path, value)
    line = refuses_to_compare(capsys, [str(two)], told)
    assert f"{two}/seed=0 and {two}/seed=1 are no seeds of one experiment" in line


@pytest.mark.parametrize(("path", "value"), TAKEN)
def test_seeds_may_differ_in_what_trains_the_same(two, path, value):
    set_option(two / "seed=1", path, value)
    (experiment,) = read_experiments([str(two)])
    assert len(experiment.runs) == 2 and compare(grouped([experiment]))[0].main.notes == []


def test_other_training_data_is_refused_by_its_content(trained, tmp_path):
    """Of one name and elsewhere. The test data is the same."""
    shutil.copytree(trained / "x/seed=0", tmp_path / "x/seed=0")
    shutil.copytree(trained / "letor", tmp_path / "letor")
    train = tmp_path / "letor/train.txt"
    train.write_text(train.read_text().replace("2 qid", "1 qid"))
    fit(trained, tmp_path / "x/seed=1", 1, "--data.path", str(tmp_path / "letor"))
    assert main(["test", str(tmp_path / "x/seed=1")]) == 0
    message = f"data.path ('{trained}/letor', '{tmp_path}/letor': other data)"
    with pytest.raises(InputError, match=re.escape(message)):
        read_experiments([str(tmp_path / "x")])


@pytest.mark.long
def test_seeds_may_each_start_from_their_own_seed_of_one_experiment(trained, tmp_path):
    """Or all from the same weights, but not from those of two ways to train. A resume keeps what a
    run started from.
    """
    first, second = trained / "x/seed=0", trained / "x/seed=1"
    fit(trained, tmp_path / "own/seed=0", 0, "--init_from", str(first))
    fit(trained, tmp_path / "own/seed=1", 1, "--init_from", str(second))
    own = recipe(tmp_path / "own/seed=0")
    starts = own.trained_with["init_from"]
    other_starts = recipe(tmp_path / "own/seed=1").trained_with["init_from"]
    assert starts["weights"] != other_starts["weights"]
    assert own.differences(recipe(tmp_path / "own/seed=1")) == []
    message = f"init_from (None, '{first}': other weights)"
    assert recipe(first).differences(own) == [message]

    fit(trained, tmp_path / "longer", 1, "--model.lr", "0.05")
    fit(trained, tmp_path / "other", 1, "--init_from", str(tmp_path / "longer"))
    message = f"init_from ('{first}', '{tmp_path}/longer': other weights)"
    assert own.differences(recipe(tmp_path / "other")) == [message]

    last = str(second / "checkpoints/last.ckpt")  # not the best weights of that run
    fit(trained, tmp_path / "last", 1, "--init_from", last)
    assert len(own.differences(recipe(tmp_path / "last"))) == 1

    # A checkpoint alone has no recipe: its weights are compared.
    for name in ("first", "second"):
        weights = trained / f"x/seed={int(name == 'second')}/checkpoints/best.ckpt"
        shutil.copy(weights, tmp_path / f"{name}.ckpt")
        fit(trained, tmp_path / name, 1, "--init_from", str(tmp_path / f"{name}.ckpt"))
    assert own.differences(recipe(tmp_path / "first")) == []
    assert len(own.differences(recipe(tmp_path / "second"))) == 1

    assert main(["fit", str(tmp_path / "own/seed=0"), "--trainer.max_epochs", "2"]) == 0
    assert recipe(tmp_path / "own/seed=0").trained_with == own.trained_with


def test_a_run_whose_results_were_lost_is_no_seed(two, capsys):
    """Tested again it has numbers, and does not say what it was trained with."""
    found = results(two / "seed=1")
    del found["trained_with"]
    (two / "seed=1/metrics.json").write_text(json.dumps(found))
    refuses_to_compare(capsys, [str(two)], "seed=1/metrics.json: trained_with must say what")


def test_best_weights_of_one_seed_are_not_pooled_with_the_last_of_another(two):
    assert main(["test", str(two / "seed=1"), "--ckpt_path", "last"]) == 0
    with pytest.raises(InputError, match=r"the tested weights \(best\.ckpt, last\.ckpt\)"):
        read_experiments([str(two)])


def test_a_lost_configuration_is_no_proof_of_equal_options(two):
    (two / "seed=1/config.yaml").unlink()
    with pytest.raises(InputError, match=r"config\.yaml \(there, missing\)"):
        read_experiments([str(two)])
