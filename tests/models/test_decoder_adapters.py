"""Adapters in decoders: what learns, what is read packed, and what an export computes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ltr
from ltr.data.template import Template
from ltr.losses import SoftmaxLoss
from ltr.models import DecoderRanker, DualEncoder
from ltr.models.encoder import text_encoder
from ltr.models.encoder.lora import Lora
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.module import RankerModule
from ltr.use.merging import merged_and_compared
from ltr.use.rankers import TextRanker
from tests.child_processes import ELSEWHERE, without_ltr
from tests.world.decoders import CONFIGS, decoder, save_decoder
from tests.world.encoders import assert_same_gradients, gradients, reader, texts
from tests.world.rankers import losses_of_repeated_batch

pytest.importorskip("peft")
LENGTHS = [7, 1, 200, 3, 7, 12, 90, 1, 5]
ADAPTERS = TextEncoder.Options(lora=Lora(r=4))
PAIRS = [("w1 w2", "w3 " * 30), ("w5", "w6"), ("w9", "w1 w2 w3"), ("w1 w2", "w1 w4 w2")]
PLAIN = Template(pair="{query} | {document} ?")


def learnt(ranker, seed=0):
    """The same with adapters that are not 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in ranker.named_parameters():
        if "lora_B" in name:
            weight.data = torch.randn(weight.shape, generator=generator) * 0.1
    return ranker


# With dropout the same is read, and the masks beside it.
@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.long), 0.3])
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_texts_give_the_outputs_and_the_gradients_of_padded_ones(name, dropout, monkeypatch):
    of = texts(LENGTHS, seed=1, ids=(4, 400), keys=True)
    weights = torch.randn(len(LENGTHS), 16)

    def read(**options):
        lora = Lora(r=4, dropout=dropout)
        encoder = reader(decoder(name), 3, pooling="last", max_tokens=250, lora=lora, **options)
        outputs = learnt(encoder).train()(of)
        return encoder, outputs, gradients(encoder, (outputs * weights).sum())

    encoder, packed, expected = read()
    assert encoder.reads_packed and all("lora_" in name for name in expected)
    _, recomputed, of_recomputed = read(keep_tokens=0)
    monkeypatch.setattr(text_encoder, "enable_packing", lambda *_: False)
    encoder, padded, of_padded = read()
    assert not encoder.reads_packed
    for outputs, found in ((padded, of_padded), (recomputed, of_recomputed)):
        torch.testing.assert_close(outputs, packed, atol=1e-5, rtol=1e-5)
        assert_same_gradients(found, expected)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("reranker", "bfloat16"),
        ("embedder", "float32"),
        pytest.param("reranker", "float32", marks=pytest.mark.long),
        pytest.param("embedder", "bfloat16", marks=pytest.mark.long),
    ],
)
def test_the_loss_of_a_repeated_batch_falls_to_under_a_tenth(
    kind, dtype, tmp_path, collection_folder
):
    """50 steps of the adapters, and of the reranker's head. The base stays to the bit."""
    encoder = replace(ADAPTERS, dtype=dtype)
    if kind == "reranker":
        ranker = DecoderRanker(save_decoder(tmp_path / "m"), template=PLAIN, encoder=encoder)
    else:
        folder = save_decoder(tmp_path / "m", kind="base", chat=False)
        options = replace(encoder, pooling="last")
        ranker = DualEncoder(folder, max_length=48, temperature=0.05, encoder=options)
    module = RankerModule(ranker, SoftmaxLoss())
    frozen = {n: p.clone() for n, p in ranker.named_parameters() if not p.requires_grad}
    trained = [p for p in ranker.parameters() if p.requires_grad]
    assert frozen and all(weight.dtype == torch.float32 for weight in trained)
    losses = losses_of_repeated_batch(module, collection_folder, lr=1e-2)
    assert losses[-1] < losses[0] / 10
    for name, weight in ranker.named_parameters():
        assert name not in frozen or weight.equal(frozen[name])


FORMS = ("sentence-transformers", "transformers")
NAMES = ("qwen3", "gemma3")


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> dict[str, tuple[np.ndarray, dict[str, Path]]]:
    """By the name of a decoder: scores beside its adapters, and by form folders of merged ones."""
    found = {}
    for name in NAMES:
        place = tmp_path_factory.mktemp(name)
        folder = save_decoder(place / "m", name)
        ranker = learnt(DecoderRanker(folder, encoder=ADAPTERS)).eval()
        use = TextRanker(ranker)
        scores = use.score(PAIRS)
        plain = TextRanker(DecoderRanker(folder)).score(PAIRS)
        assert np.abs(scores - plain).max() > 1e-3, "the adapters do something"
        with merged_and_compared(use) as comparison:
            assert comparison.difference < 1e-5 * max(1, np.abs(scores).max())
        assert (use.score(PAIRS) == scores).all(), "the adapters are back"
        ranker.save(place / FORMS[0])
        ranker.save_plain(place / FORMS[1])
        found[name] = (scores, {form: place / form for form in FORMS})
    return found


@pytest.fixture(scope="module", params=ELSEWHERE)
def scores_elsewhere(request, exported) -> dict[str, list[float]]:
    """By the folder: scores in a process that does not know ltr."""
    folders = {form: [str(exported[name][1][form]) for name in NAMES] for form in FORMS}
    found: dict[str, list[float]] = without_ltr(SCORES, [folders, PAIRS], request.param)
    return found


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_merged_and_scores_alike_without_ltr(name, form, exported, scores_elsewhere):
    """By sentence-transformers and transformers alone, of the texts of the chat template."""
    scores, folders = exported[name]
    tolerance = 1e-5 * max(1, np.abs(scores).max())
    elsewhere = np.array(scores_elsewhere[str(folders[form])], np.float32)
    np.testing.assert_allclose(elsewhere, scores, atol=tolerance)
    np.testing.assert_allclose(ltr.load(folders[form]).score(PAIRS), scores, atol=tolerance)


SCORES = """
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folders, pairs = given
found = {}
for folder in folders["sentence-transformers"]:
    found[folder] = CrossEncoder(folder, device="cpu").predict(pairs).tolist()
for folder in folders["transformers"]:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found[folder] = []
    for query, document in pairs:
        roles = [("query", query), ("document", document)]
        messages = [{"role": role, "content": content} for role, content in roles]
        inputs = tokenizer.apply_chat_template(messages, return_dict=True, return_tensors="pt")
        found[folder].append(model(**inputs).logits[0, 0].item())
"""
