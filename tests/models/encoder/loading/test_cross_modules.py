"""Cross-encoders as folders of sentence-transformers: what is found in them, and what is refused."""

import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn

from ltr.errors import InputError
from ltr.models import PairWiseBertRanker
from ltr.models.encoder.loading.cross_modules import is_cross_encoder, saved_head


@pytest.fixture(scope="module")
def ranker(backbone):
    torch.manual_seed(3)
    return PairWiseBertRanker(backbone, max_length=20)


def test_the_saved_head_is_the_ranker_s_own(ranker, backbone, tmp_path):
    length_before = ranker.tokenizer.model_max_length
    ranker.save(tmp_path / "saved")
    head = saved_head(str(tmp_path / "saved"))
    assert head.pooling == "mean"
    assert torch.equal(head.weight, ranker.head.weight)
    assert torch.equal(head.bias, ranker.head.bias)
    assert is_cross_encoder(str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "plain").exists()
    assert ranker.tokenizer.model_max_length == length_before
    # A plain encoder is none.
    assert saved_head(backbone) is None and not is_cross_encoder(backbone)


@pytest.mark.parametrize(
    "out_features, settings, message",
    [
        (2, {}, "a cross-encoder's modules must be an encoder, .* got Transformer, Pooling, Dense"),
        (
            1,
            {"text": {"truncation": "longest_first"}},
            r"reads its pairs with processing_kwargs .*longest_first.* \(option backbone\)",
        ),
    ],
)
def test_modules_that_are_read_otherwise_are_refused(
    backbone, tmp_path, out_features, settings, message
):
    transformer = Transformer(
        backbone, transformer_task="feature-extraction", processing_kwargs=settings
    )
    dense = Dense(16, out_features, activation_function=nn.Identity(), module_output_name="scores")
    modules = [transformer, Pooling(16, "mean"), dense]
    cross_encoder = CrossEncoder(modules=modules, device="cpu")
    cross_encoder.save(str(tmp_path / "other"), create_model_card=False)
    with pytest.raises(InputError, match=message):
        saved_head(str(tmp_path / "other"))
