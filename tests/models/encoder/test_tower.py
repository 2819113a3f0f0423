"""Towers of a dual encoder: which models of sentence-transformers are refused, and what heads get."""

import copy
import shutil

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as parts
from transformers import AlbertConfig, AlbertModel

from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.models.encoder.text_encoder import TextEncoder
from tests.models.test_dual_encoder import CLOSE, PROMPTS, built, embeddings, ready, with_settings  # noqa: F401
from tests.world.backbones import wordpiece_tokenizer


@pytest.mark.parametrize("setting", [
    {"processing_kwargs": {"text": {"max_length": 6}}},
    {"processing_kwargs": {"text": {"add_special_tokens": False}}},
    {"query_expansion": {"strategy": "fixed", "length": 16, "token": "[MASK]"}},
    {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}, "module_output_name": "x"},
])  # fmt: skip
def test_what_would_be_read_otherwise_when_it_is_served_is_refused(backbone, tmp_path, setting):
    modules = [parts.Transformer(backbone, **setting), parts.Pooling(16, "mean")]
    folder = saved(tmp_path / "m", *modules)
    rule = rf"sentence-transformers reads its texts with {next(iter(setting))} .*\(option doc_backbone\)"
    with pytest.raises(InputError, match=rule) as refused:
        DualEncoder(backbone, folder)
    assert "\n" not in str(refused.value)


def saved(folder, *modules):
    model = SentenceTransformer(modules=modules, device="cpu")
    model.save(str(folder), create_model_card=False)
    return str(folder)


def test_a_chat_template_is_refused_where_a_saved_model_reads_by_it(backbone, tmp_path):
    """sentence-transformers puts every text into it. A plain model is read without it."""
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
    (linear,) = (
        part.linear for part in model.doc_tower.head if getattr(part, "out_features", 0) == 3
    )
    expected = plain @ linear.weight.T + linear.bias
    if normalise:
        expected = expected / expected.norm(dim=1, keepdim=True)
    torch.testing.assert_close(docs, expected, **CLOSE)


def test_normalising_is_added_to_a_model_without_and_not_twice(backbone, ready):
    head = DualEncoder(backbone, normalise=True).doc_tower.head
    assert [type(part) for part in head] == [parts.Normalize]
    head = DualEncoder(ready, normalise=True).doc_tower.head
    assert [type(part) for part in head].count(parts.Normalize) == 1
    assert len(DualEncoder(backbone).doc_tower.head) == 0


def test_a_pooler_whose_output_the_model_reads_stays(tmp_path):
    """ALBERT's is a linear layer, to whose output the model applies its activation."""
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_size": 16, "num_attention_heads": 2}
    config = AlbertConfig(vocab_size=200, intermediate_size=24, num_hidden_layers=2, **sizes)
    AlbertModel(config).save_pretrained(tmp_path / "albert")
    wordpiece_tokenizer().save_pretrained(tmp_path / "albert")
    model = DualEncoder(str(tmp_path / "albert"))
    _, docs = embeddings(model, tmp_path)
    assert docs.shape == (6, 16) and len(docs.unique(dim=0)) > 1
    assert not any(p.requires_grad for p in model.doc_tower.encoder.model.pooler.parameters())


MEAN = TextEncoder.Options(pooling="mean")
PIECES = "a tower must be an encoder, a pooling, and what follows them, got Transformer, Pooling, P"
OUT_OF_POOLING = {"pool": {"include_prompt": False}, "prompts": PROMPTS}
CANT_READ = "the modules behind the model's pooling can't read 16 dimensions"
TWO = {"pooling": ("mean", "max")}
REFUSED = {  # what stands behind the encoder, how it is built and opened, by what is told
    r"the model's own is 'weightedmean'; choose one \(option pooling\)": (
        (),
        {"pooling": "weightedmean"},
        {},
    ),
    r"the model's own is \('mean', 'max'\)": ((parts.Dense(32, 8),), TWO, {}),
    CANT_READ: ((parts.Dense(32, 8),), TWO, {"encoder": MEAN}),
    f"{CANT_READ}.*": ((parts.LSTM(16, 8),), {}, {}),
    "leaves the prompt 'w50: ' out of its pooling": ((), OUT_OF_POOLING, {}),
    "cuts its embeddings to 4 dimensions": ((), {"truncate_dim": 4}, {}),
    PIECES: ((parts.Pooling(16, "mean"),), {}, {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_models_that_cannot_be_read_so_are_refused(backbone, tmp_path, message):
    behind, how, options = REFUSED[message]
    folder = built(tmp_path / "m", backbone, *behind, **copy.deepcopy(how))
    with pytest.raises(InputError, match=message):
        DualEncoder(folder, **options)


def test_what_is_refused_is_read_by_an_option(backbone, tmp_path):
    folder = built(tmp_path / "weighted", backbone, pooling="weightedmean")
    assert DualEncoder(folder, encoder=MEAN).dim == 16
    folder = built(tmp_path / "without", backbone, **copy.deepcopy(OUT_OF_POOLING))
    assert DualEncoder(folder, query_prompt="", doc_prompt="").reads.docs.prompt == ""


def test_a_prompt_that_is_no_text_and_towers_of_two_sizes_are_refused(backbone, ready, tmp_path):
    folder = built(tmp_path / "m", backbone)
    with_settings(folder, "config_sentence_transformers.json", prompts={"query": {"x": 1}})
    with pytest.raises(InputError, match="the prompt 'query' .* must be a text, got .*'x': 1"):
        DualEncoder(folder)
    rule = "both towers must give embeddings of one size, got 8 and 16 dimensions"
    with pytest.raises(InputError, match=rule):
        DualEncoder(ready, backbone)


def test_routes_that_share_weights_are_refused(backbone, tmp_path):
    shared = [parts.Transformer(backbone), parts.Pooling(16, "mean")]
    for routes, message in (
        ({"query": shared, "document": [*shared, parts.Dense(16, 16)]}, "its routes share weights"),
        ({"image": shared}, "a router must have the routes query and document, got image"),
    ):
        folder = saved(tmp_path / next(iter(routes)), parts.Router(routes))
        with pytest.raises(InputError, match=message):
            DualEncoder(folder)


def test_a_layer_stands_behind_a_router_and_not_in_the_place_of_a_pooling(backbone, tmp_path):
    routes = [[parts.Transformer(backbone), parts.Pooling(16, "cls")] for _ in range(2)]
    router = parts.Router.for_query_document(*routes)
    model = DualEncoder(saved(tmp_path / "routed", router, parts.Normalize()))
    for tower in (model.query_tower, model.doc_tower):
        assert tower.encoder.pooling == "cls"
    folder = saved(tmp_path / "pooled", parts.Transformer(backbone), parts.Normalize())
    with pytest.raises(InputError, match="a tower must be .*, got Transformer, Normalize; take"):
        DualEncoder(folder)
