"""Recipes: the configurations that ship, by their names in place of a file."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from jsonargparse import Namespace

from ltr.cli.parsed import ParsedCommand
from ltr.datamodules import FeatureDataModule
from ltr.errors import InputError
from ltr.grid.definition import Grid
from ltr.models import FeatureRanker
from ltr.run import shipped_recipes as recipes
from tests.world.commands import refusal, run_ltr
from tests.world.decoders import save_decoder

NAMES = ["cross_encoder", "decoder", "demo", "dual_encoder", "lambdarank", "mined"]
UNKNOWN = (
    f"a recipe must be one of {', '.join(NAMES)}, got 'cross'; ltr recipes says what each is for"
)
ONE_STEP = "--trainer.max_steps 1 --trainer.accelerator cpu --trainer.limit_val_batches 1"


def test_the_list_has_a_line_for_each(capsys):
    assert run_ltr("recipes") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert lines[-1] == (
        "mined          A dual encoder whose hard negatives are mined anew before each epoch"
    )


@pytest.mark.parametrize("name", NAMES)
def test_one_is_printed_as_it_stands_and_says_the_same_as_a_file(name, here, capsys):
    assert run_ltr(f"recipes {name}") == 0
    text = capsys.readouterr().out
    assert text.startswith("# ") and yaml.safe_load(text)["seed_everything"] == 0
    Path("mine.yaml").write_text(text)
    printed = []
    n_features = " --model.ranker.n_features 5" if name == "lambdarank" else ""
    for config in ("mine.yaml", f"recipe:{name}"):
        with pytest.raises(SystemExit):
            run_ltr(f"fit --config {config}{n_features} --print_config")
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""


def test_a_run_of_a_recipe_is_called_after_it(
    tmp_path, backbone, collection_folder, monkeypatch, capsys
):
    """Also where ltr is installed below a folder ``experiments``."""
    installed = tmp_path / "experiments/lib/recipes"
    shutil.copytree(recipes.SHIPPED, installed)
    monkeypatch.setattr(recipes, "SHIPPED", installed)
    monkeypatch.chdir(tmp_path)
    options = f"--data.path {collection_folder} --model.ranker.backbone {backbone} {ONE_STEP}"
    assert run_ltr(f"fit --config recipe:cross_encoder --model.ranker.max_length 24 {options}") == 0
    assert "all of it lies in runs/cross_encoder/seed=0" in capsys.readouterr().out
    written = Path("runs/cross_encoder/seed=0/config.yaml").read_text()
    assert "recipe" not in written and str(installed) not in written
    assert run_ltr("test runs/cross_encoder/seed=0") == 0


@pytest.mark.long
def test_a_decoder_is_trained(tmp_path, collection_folder):
    decoder = tmp_path / "decoder"
    save_decoder(decoder, "qwen3", "causal")
    options = f"--data.path {collection_folder} --model.ranker.backbone {decoder} {ONE_STEP}"
    run = tmp_path / "run"
    assert run_ltr(f"fit --config recipe:decoder --trainer.default_root_dir {run} {options}") == 0
    assert (run / "checkpoints/last.ckpt").is_file()


def test_a_grid_may_stand_on_a_recipe(tmp_path):
    file = tmp_path / "grid.yaml"
    file.write_text("base: [recipe:cross_encoder, mine.yaml]\naxes: {model.lr: [0.1, 0.2]}\n")
    (tmp_path / "mine.yaml").write_text("data: {init_args: {path: mine}}\n")
    assert Grid.read(file).base == (
        recipes.SHIPPED / "cross_encoder.yaml",
        tmp_path / "mine.yaml",
    )


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("fit --config recipe:cross", "--config"),
        ("check --config=recipe:cross", "--config"),
        ("test -c recipe:cross", "-c"),
        ("grid grid.yaml", "grid.yaml: base"),
        ("recipes cross", "name"),
    ],
)
def test_another_name_is_one_line(line, option, here, capsys):
    Path("grid.yaml").write_text("base: recipe:cross\naxes: {model.lr: [0.1, 0.2]}\n")
    assert refusal(capsys, line) == f"ltr: {option}: {UNKNOWN}"
    assert [file.name for file in here.iterdir()] == ["grid.yaml"]


def test_a_recipe_is_no_run(capsys):
    told = refusal(capsys, "fit recipe:mined")
    assert told.endswith("name a configuration by --config recipe:mined")


class OwnRanker(FeatureRanker):
    """Knows how many features it has."""

    def __init__(self) -> None:
        super().__init__(5)


class OwnData(FeatureDataModule):
    """Has no folds."""

    def __init__(self, path: str) -> None:
        super().__init__(path)


def test_classes_of_a_user_need_not_have_our_options(letor_folder):
    """The data has five features."""
    path = Namespace(path=str(letor_folder))
    data = Namespace(class_path=f"{__name__}.OwnData", init_args=path)
    taken = []
    options = (None, Namespace(), Namespace(n_features=None))
    for name, own in zip(("OwnRanker", "OwnRanker", "FeatureRanker"), options, strict=True):
        kind = f"{__name__}.{name}"
        ranker = Namespace(class_path=kind, init_args=own)
        config = Namespace(model=Namespace(ranker=ranker), data=data)
        ParsedCommand._take_n_features_of_data(SimpleNamespace(options=config))
        taken.append(config.model.ranker.init_args)
    assert taken == [None, Namespace(), Namespace(n_features=5)]


def test_features_are_counted_in_the_data(tmp_path, letor_folder, collection_folder, capsys):
    """The tiny set has five in each of its three splits; with a sixth in test, six are read."""
    data = shutil.copytree(letor_folder, tmp_path / "letor")
    lines = (data / "test.txt").read_text()
    (data / "test.txt").write_text(lines.replace(" #docid", " 6:1.0 #docid", 1))
    for source, n_features in ((letor_folder, 5), (data, 6)):
        run = tmp_path / f"run{n_features}"
        words = f"--data.path {source} --trainer.default_root_dir {run} {ONE_STEP}"
        assert run_ltr(f"fit --config recipe:lambdarank {words}") == 0
        config = yaml.safe_load((run / "config.yaml").read_text())
        assert config["model"]["ranker"]["init_args"]["n_features"] == n_features
        assert run_ltr(f"test {run}") == 0
        assert run_ltr(f"fit {run} --trainer.max_steps 2") == 0
    told = refusal(capsys, f"fit --config recipe:lambdarank --data.path {collection_folder}")
    assert str(collection_folder) in told
    with pytest.raises(InputError, match="n_features must be the number of features"):
        FeatureRanker(None)
