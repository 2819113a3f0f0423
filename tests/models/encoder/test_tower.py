"""Towers of a dual encoder: which models of sentence-transformers are refused, and what heads get."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as parts

from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.models.encoder.text_encoder import TextEncoder
from tests.models.test_dual_encoder import CLOSE, PROMPTS, built, embeddings, ready  # noqa: F401
from tests.world.backbones import wordpiece_tokenizer


@pytest.mark.parametrize("setting", [
    {"processing_kwargs": {"text": {"max_length": 6}}},
    {"processing_kwargs": {"text": {"add_special_tokens": False}}},
    {"query_expansion": {"strategy": "fixed", "length": 16, "token": "[MASK]"}},
    {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}, "module_output_name": "x"},
])  # fmt: skip
def test_what_would_be_read_otherwise_when_it_is_served_is_refused(backbone, tmp_path, setting):
    modules = [parts.Transformer(backbone, **setting), parts.Pooling(16, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save(
        str(tmp_path / "m"), create_model_card=False
    )
    rule = rf"sentence-transformers reads its texts with {next(iter(setting))} .*\(option doc_backbone\)"
    with pytest.raises(InputError, match=rule) as refused:
        DualEncoder(backbone, str(tmp_path / "m"))
    assert "\n" not in str(refused.value)


def test_a_chat_template_is_refused_where_a_saved_model_reads_by_it(backbone, tmp_path):
    """sentence-transformers puts every text into it. A plain model is read without it, here and,
    once it is saved, there.
    """
    shutil.copytree(backbone, tmp_path / "chat")
    tokenizer = wordpiece_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ 'w9' + m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "chat")
    SentenceTransformer(str(tmp_path / "chat"), device="cpu").save(str(tmp_path / "messages"))
    with pytest.raises(InputError, match="reads its texts with modality_config .*'message'"):
        DualEncoder(str(tmp_path / "messages"))

    DualEncoder(str(tmp_path / "chat"), max_length=30).save(tmp_path / "saved")
    plain = SentenceTransformer(backbone, device="cpu").encode(["w1 w2"])
    there = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(["w1 w2"])
    torch.testing.assert_close(there, plain)


@pytest.mark.parametrize("normalise", [True, False])
def test_a_projection_stands_before_the_normalisation(ready, tmp_path, normalise):
    model = DualEncoder(ready, projection=3, normalise=normalise)
    _, docs = embeddings(model, tmp_path)
    assert docs.shape == (6, 3) and model.dim == 3
    plain = embeddings(DualEncoder(ready, normalise=False), tmp_path)[1]
    linear = next(
        module for module in model.doc_tower.head if getattr(module, "out_features", 0) == 3
    ).linear
    expected = plain @ linear.weight.T + linear.bias
    torch.testing.assert_close(
        docs, expected / expected.norm(dim=1, keepdim=True) if normalise else expected, **CLOSE
    )


def test_normalising_is_added_to_a_model_without_and_not_twice(backbone, ready):
    assert [type(m) for m in DualEncoder(backbone, normalise=True).doc_tower.head] == [
        parts.Normalize
    ]
    assert [type(m) for m in DualEncoder(ready, normalise=True).doc_tower.head].count(
        parts.Normalize
    ) == 1
    assert len(DualEncoder(backbone).doc_tower.head) == 0


def test_models_that_cannot_be_read_so_are_refused(backbone, ready, tmp_path):
    last = built(tmp_path / "last", backbone, pooling="weightedmean")
    with pytest.raises(
        InputError, match=r"the model's own is 'weightedmean'; choose one \(option pooling\)"
    ):
        DualEncoder(last)
    assert DualEncoder(last, encoder=TextEncoder.Options(pooling="mean")).dim == 16
    several = built(tmp_path / "several", backbone, parts.Dense(32, 8), pooling=("mean", "max"))
    with pytest.raises(InputError, match=r"the model's own is \('mean', 'max'\)"):
        DualEncoder(several)
    with pytest.raises(
        InputError, match="the modules behind the model's pooling can't read 16 dimensions"
    ):
        DualEncoder(several, encoder=TextEncoder.Options(pooling="mean"))
    without = built(tmp_path / "without", backbone, pool={"include_prompt": False}, prompts=PROMPTS)
    with pytest.raises(InputError, match="leaves the prompt 'w50: ' out of its pooling"):
        DualEncoder(without)
    assert DualEncoder(without, query_prompt="", doc_prompt="").reads.docs.prompt == ""
    settings = Path(without, "config_sentence_transformers.json")
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"prompts": {"query": {"x": 1}}})
    )
    with pytest.raises(InputError, match="the prompt 'query' .* must be a text, got .*'x': 1"):
        DualEncoder(without)
    with pytest.raises(
        InputError, match="both towers must give embeddings of one size, got 8 and 16 dimensions"
    ):
        DualEncoder(ready, backbone)
    cut = built(tmp_path / "cut", backbone, truncate_dim=4)
    with pytest.raises(InputError, match="cuts its embeddings to 4 dimensions"):
        DualEncoder(cut)
    behind = built(tmp_path / "behind", backbone, parts.LSTM(16, 8))
    with pytest.raises(
        InputError, match="the modules behind the model's pooling can't read 16 dimensions"
    ):
        DualEncoder(behind)
    twice = built(tmp_path / "twice", backbone, parts.Pooling(16, "mean"))
    with pytest.raises(
        InputError,
        match="a tower must be an encoder, a pooling, and what follows them, got Transformer, Pooling, P",
    ):
        DualEncoder(twice)


def test_routes_that_share_weights_are_refused(backbone, tmp_path):
    shared = [parts.Transformer(backbone), parts.Pooling(16, "mean")]
    for routes, message in (
        ({"query": shared, "document": [*shared, parts.Dense(16, 16)]}, "its routes share weights"),
        ({"image": shared}, "a router must have the routes query and document, got image"),
    ):
        folder = tmp_path / next(iter(routes))
        SentenceTransformer(modules=[parts.Router(routes)], device="cpu").save(
            str(folder), create_model_card=False
        )
        with pytest.raises(InputError, match=message):
            DualEncoder(str(folder))
