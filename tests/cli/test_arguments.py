"""Configuration files and arguments, before the parser sees them."""

import pytest

from ltr.cli.arguments import _checked, expanded
from ltr.errors import InputError


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_a_layer_that_holds_nothing_is_left_out(tmp_path, text):
    (tmp_path / "layer.yaml").write_text(text)
    (tmp_path / "one.yaml").write_text("model: {lr: 0.1}\n")
    one, layer = str(tmp_path / "one.yaml"), str(tmp_path / "layer.yaml")
    assert list(_checked(["--config", one, f"--config={layer}", "--config", layer, "--x", "1"])) == ["--config", one, "--x", "1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"model:\n  lr: 0.1\n  lr: 0.2\n", "one.yaml:3: a key must be given once, got 'lr' again"),
        ("model: {lr: 0.1}".encode("utf-16"), "one.yaml: a configuration must be UTF-8, got byte 0xff"),
        (b"# caf\xe9\nmodel: {}\n", "one.yaml: a configuration must be UTF-8, got byte 0xe9"),
        (b"just words\n", "one.yaml: a configuration must be options with their values, got 'just words'"),
        (b"model: {lr: [0.1\n", "one.yaml:2: a configuration must be YAML"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, message):
    (tmp_path / "one.yaml").write_bytes(content)
    with pytest.raises(InputError) as error:
        list(_checked(["--config", str(tmp_path / "one.yaml")]))
    assert message in str(error.value)


def test_an_unknown_command():
    with pytest.raises(InputError, match="must be one of fit, validate, test, predict, mine, negatives, got 'fti'"):
        expanded(["fti"])


def test_a_key_that_is_no_option_and_holds_nothing(tmp_path, capsys, monkeypatch):
    from ltr.__main__ import main

    monkeypatch.delenv("LTR_DEBUG", raising=False)
    for text, key in (("modle: {}", "'modle'"), ("trainer: {max_epoch: {}}", "'trainer.max_epoch'")):
        (tmp_path / "one.yaml").write_text(text)
        common = [
            "--data",
            "FeatureDataModule",
            "--data.path",
            "x",
            "--model.ranker",
            "FeatureRanker",
            "--model.loss",
            "RankNetLoss",
        ]
        assert main(["fit", *common, "--model.ranker.n_features", "3", "--config", str(tmp_path / "one.yaml")]) == 2
        assert f"{key} is no option" in capsys.readouterr().err
