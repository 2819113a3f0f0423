"""Cross-encoders as folders of sentence-transformers: what is found in them, and what is refused."""

import json
import os
import sys
from functools import partial

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn

from ltr.data.template import Template
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.loading.model_folder import ModelFolder
from ltr.models.encoder.loading.modules import saved_head
from ltr.models.named import ranker_named
from ltr.use.rankers import TextRanker
from tests.child_processes import run_command
from tests.use.exported import classifier
from tests.world.backbones import make_classifier

CROSS = partial(PairWiseBertRanker, max_length=20)


@pytest.fixture(scope="module")
def ranker(backbone):
    torch.manual_seed(3)
    return PairWiseBertRanker(backbone, max_length=20)


def test_the_saved_head_is_the_ranker_s_own(ranker, backbone, tmp_path):
    length_before = ranker.tokenizer.model_max_length
    ranker.save(tmp_path / "saved")
    folder = ModelFolder(str(tmp_path / "saved"))
    pooling, head = saved_head(folder)
    assert pooling == "mean"
    assert torch.equal(head.weight, ranker.head.weight)
    assert torch.equal(head.bias, ranker.head.bias)
    assert folder.is_cross_encoder
    assert not (tmp_path / "saved" / "plain").exists()
    assert ranker.tokenizer.model_max_length == length_before
    # A plain encoder is none.
    plain = ModelFolder(backbone)
    assert saved_head(plain) is None and not plain.is_cross_encoder


LAID_OUT = {"text": {"truncation": "longest_first"}}
OTHER_LAYOUT = r"reads its pairs with processing_kwargs .*longest_first.* \(option backbone\)"


@pytest.mark.parametrize(
    ("out_features", "settings", "message"),
    [
        (2, {}, "a cross-encoder's modules must be an encoder, .* got Transformer, Pooling, Dense"),
        (1, LAID_OUT, OTHER_LAYOUT),
    ],
)
def test_modules_that_are_read_otherwise_are_refused(
    backbone, tmp_path, out_features, settings, message
):
    task = {"transformer_task": "feature-extraction", "processing_kwargs": settings}
    dense = Dense(16, out_features, activation_function=nn.Identity(), module_output_name="scores")
    modules = [Transformer(backbone, **task), Pooling(16, "mean"), dense]
    folder = str(tmp_path / "other")
    CrossEncoder(modules=modules, device="cpu").save(folder, create_model_card=False)
    with pytest.raises(InputError, match=message):
        saved_head(ModelFolder(folder))


def test_a_cross_encoder_with_a_default_prompt_has_it_in_its_template(tmp_path):
    """sentence-transformers puts it before every query. A prompt that nothing names is not read."""
    folder = str(tmp_path / "prompted")
    model = CrossEncoder(str(classifier(tmp_path / "plain")), device="cpu", prompts={"q": "w1: "})
    model.save(folder, create_model_card=False)
    assert PairWiseBertRanker(folder, max_length=20).template == Template()
    model.default_prompt_name = "q"
    model.save(folder, create_model_card=False)
    ranker = PairWiseBertRanker(folder, max_length=20)
    assert ranker.template == Template(query="w1: {query}")
    pairs = [("w2", "w3 w4"), ("w5 w6", "w7 w8 w9")]
    expected = model.predict(pairs, activation_fn=nn.Identity())
    assert TextRanker(ranker).score(pairs) == pytest.approx(expected, abs=1e-5)
    unprompted = model.predict(pairs, activation_fn=nn.Identity(), prompt="")
    assert np.abs(unprompted - expected).max() > 1e-3, "the prompt says something"


def test_a_cross_encoder_of_three_labels_is_refused(tmp_path):
    """As of natural language inference. A new head with random weights would score in its place."""
    model = CrossEncoder(make_classifier(tmp_path / "bert", n_labels=3), device="cpu")
    folder = str(tmp_path / "nli")
    model.save(folder, create_model_card=False)
    rule = r"must give a pair one score, and '.*nli' gives 3; take another backbone"
    for load in (lambda name: saved_head(ModelFolder(name)), CROSS):
        with pytest.raises(InputError, match=rule):
            load(folder)
    with pytest.raises(InputError, match=f"^--judge {folder}: a cross-encoder {rule}"):
        ranker_named(folder, "--judge")


SETTINGS = "config_sentence_transformers.json"
NO_KIND = "has the activation_fn of a CrossEncoder, and the model_"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules.json", "{", "saved': its modules.json must be JSON, .*; mend"),
        (SETTINGS, "{", f"saved': its {SETTINGS} must be JSON, .*; mend"),
        *((SETTINGS, {"model_type": kind}, NO_KIND) for kind in (None, [], "x")),
    ],
)
def test_a_damaged_folder_is_not_read_as_a_dual_encoder(ranker, tmp_path, name, content, message):
    ranker.save(tmp_path / "saved")
    file = tmp_path / "saved" / name
    if isinstance(content, dict):
        content = json.dumps(json.loads(file.read_text()) | content)
    file.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        ranker_named(tmp_path / "saved", "--judge")
    assert "\n" not in str(caught.value)


def test_a_configuration_that_is_a_list_is_no_cross_encoder_s(ranker, tmp_path):
    ranker.save(tmp_path / "saved")
    (tmp_path / "saved" / SETTINGS).write_text("[]")
    assert not ModelFolder(str(tmp_path / "saved")).is_cross_encoder


@pytest.mark.parametrize(
    "read",
    [
        lambda name: saved_head(ModelFolder(name)),
        CROSS,
        partial(ranker_named, option="judge"),
    ],
)
def test_a_cross_encoder_without_its_list_of_modules_is_not_read_as_a_dual_encoder(
    read, ranker, tmp_path
):
    ranker.save(tmp_path / "saved")
    (tmp_path / "saved/modules.json").unlink()
    with pytest.raises(InputError, match="without modules.json, so its head can't be found"):
        read(str(tmp_path / "saved"))


def test_a_tokenizer_with_several_chat_templates_is_saved(backbone, tmp_path):
    """transformers writes them into a folder of their own. Pairs are read without them."""
    ranker = PairWiseBertRanker(backbone, max_length=20)
    ranker.tokenizer.chat_template = {"default": "{{ messages }}", "other": "{{ messages }}"}
    ranker.save(tmp_path / "saved")
    assert not (tmp_path / "saved/plain").exists()
    assert PairWiseBertRanker(str(tmp_path / "saved"), max_length=20).reads.max_length == 20


def test_a_classifier_needs_no_list_of_modules(tmp_path):
    """Its head lies with the encoder, and the scores are the same."""
    classifier(tmp_path / "plain")
    expected = PairWiseBertRanker(str(tmp_path / "plain"), max_length=20)
    expected.save(tmp_path / "saved")
    (tmp_path / "saved/modules.json").unlink()
    found = ranker_named(str(tmp_path / "saved"), "judge")
    assert found.has_own_head
    weights = found.state_dict()
    for name, weight in expected.state_dict().items():
        assert torch.equal(weights[name], weight)


@pytest.mark.parametrize("kind", ["classifier", "modules"])
def test_a_cross_encoder_begins_a_dual_encoder_with_a_warning(
    ranker, backbone, tmp_path, caplog, kind
):
    """Its encoder is a start; nothing of its head is left, so its embeddings tell nothing yet."""
    caplog.set_level("WARNING", "ltr")  # a test before may have asked for more
    folder = str(tmp_path / "cross")
    if kind == "modules":
        ranker.save(folder)
    else:
        classifier(tmp_path / "cross")
    told = (
        f"backbone {folder!r} is a cross-encoder: its head is left out, and its encoder, with mean "
        "pooling, is only the start of a dual encoder"
    )
    for towers, messages in (((folder,), [told]), ((backbone, folder), [told]), ((backbone,), [])):
        caplog.clear()
        DualEncoder(*towers)
        assert caplog.messages == messages


@pytest.mark.long
def test_what_is_printed_at_an_import_is_no_result(backbone):
    """transformers prints where WANDB_MODE is offline, when sentence-transformers imports it."""
    program = "import sys; from ltr.models import DualEncoder; DualEncoder(sys.argv[1])"
    told = run_command(
        [sys.executable, "-c", program, backbone], env=os.environ | {"WANDB_MODE": "offline"}
    )
    assert (told.returncode, told.stdout) == (0, "")
    assert "offline" in told.stderr
