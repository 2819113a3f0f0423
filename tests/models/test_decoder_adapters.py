"""Adapters in decoders: what learns, what is read packed, and what an export computes."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import ltr
from ltr.batch import Texts
from ltr.data.template import Template
from ltr.losses import SoftmaxLoss
from ltr.models import DecoderRanker, DualEncoder
from ltr.models.encoder import text_encoder
from ltr.models.encoder.lora import Lora
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.module import RankerModule
from ltr.use.merging import merged_and_compared
from ltr.use.rankers import TextRanker
from tests.decoders import CONFIGS, decoder, save_decoder
from tests.rankers import losses_of_repeated_batch

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


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_texts_give_the_outputs_and_the_gradients_of_padded_ones(name, dropout, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 400, (sum(LENGTHS),), generator=generator)
    texts = Texts(ids, torch.tensor(LENGTHS), keys=torch.arange(len(LENGTHS)))
    weights = torch.randn(len(LENGTHS), 16, generator=generator)

    def read(options):
        encoder = learnt(TextEncoder(decoder(name), 3, options)).train()
        outputs = encoder(texts)
        (outputs * weights).sum().backward()
        gradients = {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}
        return encoder, outputs, gradients

    options = TextEncoder.Options(pooling="last", max_tokens=250, lora=Lora(r=4, dropout=dropout))
    encoder, packed, packed_gradients = read(options)
    assert encoder.reads_packed and all("lora_" in name for name in packed_gradients)
    _, recomputed, recomputed_gradients = read(replace(options, keep_tokens=0))
    monkeypatch.setattr(text_encoder, "enable_packing", lambda *_: False)
    encoder, padded, padded_gradients = read(options)
    assert not encoder.reads_packed
    for outputs, gradients in (
        (padded, padded_gradients),
        (recomputed, recomputed_gradients),
    ):
        torch.testing.assert_close(outputs, packed, atol=1e-5, rtol=1e-5)
        assert gradients.keys() == packed_gradients.keys()
        for name_of_weight, gradient in gradients.items():
            largest = packed_gradients[name_of_weight].abs().max().clamp(min=1)
            difference = (gradient - packed_gradients[name_of_weight]) / largest
            assert difference.abs().max() < 1e-5, name_of_weight


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["reranker", "embedder"])
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


@pytest.mark.parametrize("form", ["sentence-transformers", "transformers"])
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_an_export_is_merged_and_scores_alike_in_a_new_process(name, form, tmp_path):
    """By sentence-transformers and transformers alone, of the texts of the chat template."""
    folder = save_decoder(tmp_path / "m", name)
    ranker = learnt(DecoderRanker(folder, encoder=ADAPTERS)).eval()
    use = TextRanker(ranker)
    scores = use.score(PAIRS)
    plain = TextRanker(DecoderRanker(folder)).score(PAIRS)
    assert np.abs(scores - plain).max() > 1e-3, "the adapters do something"
    with merged_and_compared(use) as comparison:
        assert comparison.difference < 1e-5 * max(1, np.abs(scores).max())
    assert (use.score(PAIRS) == scores).all(), "the adapters are back"
    if form == "transformers":
        ranker.save_plain(tmp_path / "saved")
    else:
        ranker.save(tmp_path / "saved")
    code = SCORED_BY[form].format(folder=str(tmp_path / "saved"), pairs=PAIRS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    elsewhere = np.array(eval(done.stdout.splitlines()[-1]), np.float32)
    np.testing.assert_allclose(elsewhere, scores, atol=1e-5 * max(1, np.abs(scores).max()))
    again = ltr.load(tmp_path / "saved").score(PAIRS)
    np.testing.assert_allclose(again, scores, atol=1e-5 * max(1, np.abs(scores).max()))


SCORED_BY = {
    "sentence-transformers": """
import sys
from sentence_transformers import CrossEncoder
assert "ltr" not in sys.modules
print(CrossEncoder({folder!r}, device="cpu").predict({pairs!r}).tolist())
""",
    "transformers": """
import sys
from transformers import AutoModelForSequenceClassification, AutoTokenizer
model = AutoModelForSequenceClassification.from_pretrained({folder!r}).eval()
tokenizer = AutoTokenizer.from_pretrained({folder!r})
scores = []
for query, document in {pairs!r}:
    messages = [{{"role": "query", "content": query}}, {{"role": "document", "content": document}}]
    inputs = tokenizer.apply_chat_template(messages, return_dict=True, return_tensors="pt")
    scores.append(model(**inputs).logits[0, 0].item())
assert "ltr" not in sys.modules
print(scores)
""",
}
