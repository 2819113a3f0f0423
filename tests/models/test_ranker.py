"""What all rankers share: the base, places in lists, and options as the command line reads them."""

import copy
import json

import pytest
import torch
from jsonargparse import ArgumentParser
from tokenizers.normalizers import BertNormalizer
from torch import nn

from ltr.data.layouts import ApartTexts, FeatureVectors, JoinedPairs
from ltr.models import DualEncoder, FeatureRanker, PairWiseBertRanker, Ranker
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.ranker import all_finite, digest_of_weights


@pytest.mark.parametrize(
    ("build", "reads", "lr"),
    [
        (lambda backbone: PairWiseBertRanker(backbone, max_length=32), JoinedPairs, 2e-5),
        (DualEncoder, ApartTexts, 2e-5),
        (lambda backbone: FeatureRanker(4), FeatureVectors, 1e-3),
    ],
)
def test_a_ranker_says_what_it_reads_and_its_usual_rate(backbone, build, reads, lr):
    ranker = build(backbone)
    assert isinstance(ranker, Ranker) and isinstance(ranker.reads, reads)
    assert ranker.usual_lr == lr and ranker.gives_embeddings


def test_the_key_of_a_cross_encoder_tells_all_that_decides_its_scores(backbone):
    def key(change=lambda ranker: None, **options):
        torch.manual_seed(0)  # the head is new
        ranker = PairWiseBertRanker(backbone, **{"max_length": 24} | options)
        change(ranker)
        return ranker.key

    def cut_left(ranker):
        ranker.tokenizer.truncation_side = "left"

    def read_letters(ranker):
        ranker.tokenizer.backend_tokenizer.normalizer = BertNormalizer(lowercase=False)

    def train(ranker):
        ranker.head.bias.data += 1e-6

    assert key() == key()
    keys = [
        key(),
        key(max_length=23),
        key(encoder=TextEncoder.Options(pooling="cls")),
        key(cut_left),
        key(read_letters),
        key(train),
    ]
    assert len({json.dumps(one) for one in keys}) == 6


def test_the_key_of_a_dual_encoder_tells_all_that_decides_its_scores(backbone):
    def key(**options):
        return json.dumps(DualEncoder(backbone, **{"max_length": 24} | options).key)

    others = {
        "max_length": 23,
        "query_prompt": "w1 ",
        "doc_prompt": "w1 ",
        "similarity": "dot",
        "temperature": 0.5,
        "normalise": True,
        "encoder": TextEncoder.Options(pooling="cls"),
    }
    assert key() == key()
    assert len({key(), *(key(**{name: value}) for name, value in others.items())}) == 8
    assert key(doc_backbone=backbone) == key(), "two towers of equal weights give equal scores"


@pytest.mark.parametrize(
    ("kind", "options"), [("PairWiseBertRanker", {"max_length": 32}), ("DualEncoder", {})]
)
def test_encoder_options_are_nested_once_in_a_configuration(backbone, tmp_path, kind, options):
    """By file, overridden on the command line; the configuration builds what it says."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Ranker, "ranker")
    parser.add_argument("--config", action="config")
    init = options | {"backbone": backbone, "encoder": {"max_tokens": 64, "pooling": "cls"}}
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"ranker": {"class_path": f"ltr.models.{kind}", "init_args": init}}))
    on_the_line = ["--ranker.init_args.encoder.max_tokens", "4096"]
    config = parser.parse_args(["--config", str(file), *on_the_line])
    expected = {"max_tokens": 4096, "keep_tokens": None, "dropout": "hidden", "kernels": "auto"}
    expected |= {"compile": False, "pooling": "cls", "layers": None, "new_weights": False}
    expected |= {"lora": None, "dtype": None}
    assert config.as_dict()["ranker"]["init_args"]["encoder"] == expected
    ranker = parser.instantiate(config).ranker
    encoder = ranker.encoder if kind == "PairWiseBertRanker" else ranker.doc_tower.encoder
    assert encoder.options == TextEncoder.Options(**expected)


def test_only_a_weight_that_is_not_trained_may_be_infinite():
    layer = nn.Linear(2, 1)
    assert all_finite(layer)
    layer.bias.data.fill_(float("-inf"))
    assert not all_finite(layer)
    layer.bias.requires_grad_(False)
    assert all_finite(layer)
    layer.bias.data.fill_(float("nan"))
    assert not all_finite(layer)


def test_a_digest_tells_values_names_and_precisions_apart():
    layer = nn.Linear(2, 1)
    digest = digest_of_weights(layer)
    assert digest == digest_of_weights(copy.deepcopy(layer)) and len(digest) == 32
    other_value = copy.deepcopy(layer)
    other_value.bias.data += 1
    others = [other_value, nn.Sequential(layer), copy.deepcopy(layer).bfloat16()]
    assert len({digest, *map(digest_of_weights, others)}) == 4
