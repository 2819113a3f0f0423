"""What a run is trained with is told by its content, wherever it lies."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ltr.errors import InputError
from ltr.run.content_digests import digest_of_weights, digests_of_training
from ltr.run.training_recipe import TrainingRecipe
from tests.run.test_identity import CONFIG

TRAINER = SimpleNamespace(datamodule=None, world_size=1)


def config_with(backbone: Path | str) -> dict:
    init_args = {"backbone": str(backbone), "encoder": {"pooling": "mean"}}
    ranker = {"class_path": "ltr.models.DualEncoder", "init_args": init_args}
    return CONFIG | {"model": CONFIG["model"] | {"ranker": ranker}}


def recipe_with(backbone: Path | str) -> TrainingRecipe:
    config = config_with(backbone)
    return TrainingRecipe.of(config, digests_of_training(config, TRAINER))


@pytest.fixture
def bert(tmp_path) -> Path:
    folder = tmp_path / "a/bert"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "1_Pooling/config.json").write_text("{}")
    (folder / "README.md").write_text("a card")
    return folder


def test_two_backbones_are_told_apart_where_their_folders_share_a_name(bert, tmp_path):
    """A copy elsewhere is the same backbone, whatever its card says."""
    first = recipe_with(bert)
    copy = Path(shutil.copytree(bert, tmp_path / "b/bert"))
    (copy / "README.md").write_text("another card")
    other_name = Path(shutil.copytree(bert, tmp_path / "b/roberta"))
    for same in (copy, other_name):
        assert first.differences(recipe_with(same)) == []
        assert first.digest() == recipe_with(same).digest()
    for file in ("model.safetensors", "1_Pooling/config.json"):
        other = Path(shutil.copytree(bert, tmp_path / f"{file[0]}/bert"))
        (other / file).write_bytes(b"[]")
        message = f"model.ranker.backbone ('{bert}', '{other}': other content)"
        assert first.differences(recipe_with(other)) == [message]
        assert first.digest() != recipe_with(other).digest()


def test_a_backbone_of_the_hub_has_its_name_alone(bert):
    hub = recipe_with("owner/bert")
    assert hub.trained_with["models"] == {}
    assert hub.differences(recipe_with("owner/bert")) == []
    message = "model.ranker.backbone ('owner/bert', 'other/bert')"
    assert hub.differences(recipe_with("other/bert")) == [message]
    message = f"model.ranker.backbone ('bert', '{bert}': other content)"
    assert recipe_with("bert").differences(recipe_with(bert)) == [message]


def test_a_run_that_is_named_as_a_judge_is_told_by_its_best_weights(tmp_path):
    for name, weights in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name / "run/checkpoints").mkdir(parents=True)
        (tmp_path / name / "run/checkpoints/best.ckpt").write_bytes(weights)

    def recipe_judged_by(name: str) -> TrainingRecipe:
        judge = {"judge": str(tmp_path / name / "run")}
        mining = {"class_path": "ltr.callbacks.HardNegativeMining", "init_args": judge}
        config = CONFIG | {"trainer": CONFIG["trainer"] | {"callbacks": [mining]}}
        return TrainingRecipe.of(config, digests_of_training(config, TRAINER))

    first = recipe_judged_by("a")
    assert list(first.trained_with["models"]) == ["trainer.callbacks[0].judge"]
    assert first.differences(recipe_judged_by("b")) == []
    assert len(first.differences(recipe_judged_by("c"))) == 1


def test_weights_are_told_by_names_types_shapes_and_values():
    weights = {"a": torch.arange(4.0), "b": torch.tensor(1, dtype=torch.bfloat16)}
    same = {"b": weights["b"].clone(), "a": torch.arange(8.0)[:4]}
    assert digest_of_weights(weights) == digest_of_weights(same)
    changes = [
        {"a": torch.arange(4.0) + 1},
        {"a": torch.arange(4.0).reshape(2, 2)},
        {"a": torch.arange(4.0).view(torch.int32)},
        {"c": torch.zeros(0)},
    ]
    for change in changes:
        assert digest_of_weights(weights | change) != digest_of_weights(weights)


def test_a_run_without_its_best_weights_is_told_by_the_option_that_names_it(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints/step=3.ckpt").touch()
    with pytest.raises(InputError, match="^model.ranker.backbone best: there is no "):
        recipe_with(run)
