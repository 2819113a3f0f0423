"""Weights of another run are taken; what is a model, or is not there, is refused.

What they are for each kind of name is tested in tests/models/test_named.py.
"""

import re
from types import SimpleNamespace

import pytest

from ltr.errors import InputError
from ltr.run.init_from import take_weights

MODULE = SimpleNamespace()  # nothing of it is touched before the path is known to be right


@pytest.mark.parametrize("file", ["config.json", "modules.json"])
def test_a_model_is_named_as_a_backbone_instead(tmp_path, file):
    (tmp_path / file).write_text("{}")
    message = f"--init_from {tmp_path}: this is a model, and weights are taken from a run folder"
    with pytest.raises(InputError, match=re.escape(message)):
        take_weights(MODULE, tmp_path, "--init_from")


def test_a_run_folder_that_holds_a_model_too_is_a_run(tmp_path):
    """The name of its best checkpoint is what is wrong then."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/step=3.ckpt").write_text("")
    with pytest.raises(InputError, match=r"--init_from best: there is no .*best\.ckpt"):
        take_weights(MODULE, tmp_path, "--init_from")


def test_what_is_not_there_is_said(tmp_path):
    message = f"--init_from {tmp_path}/none: there is no such file or run folder"
    with pytest.raises(InputError, match=re.escape(message)):
        take_weights(MODULE, tmp_path / "none", "--init_from")
