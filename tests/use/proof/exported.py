"""A tiny cross-encoder and a tiny dual encoder, exported with their proofs."""

from pathlib import Path

import pytest
import torch
from tokenizers import processors
from transformers import BertForSequenceClassification, PreTrainedTokenizerFast

from ltr.__main__ import main
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use.proof.shipped_texts import DOCUMENTS, QUERIES
from tests.world.backbones import make_backbone
from tests.world.tokenizers import trained_bpe

MAX_LENGTH = 600


def cased_tokenizer() -> PreTrainedTokenizerFast:
    """[CLS] query [SEP] document [SEP] with types 0 and 1, of bytes, so that capitals count."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    tokenizer = trained_bpe([*QUERIES, *DOCUMENTS], special, 600)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


# One layer, whose numbers differ much from text to text.
SIZES = {"num_hidden_layers": 1, "max_position_embeddings": 640, "initializer_range": 0.5}


def make_cased_backbone(folder: Path, cut: str = "right") -> Path:
    tokenizer = cased_tokenizer()
    tokenizer.truncation_side = cut
    return make_backbone(folder, tokenizer, **SIZES)


@pytest.fixture(scope="session")
def proofs(tmp_path_factory) -> dict[str, Path]:
    """Exported folders: ``cross`` and ``dual``, for sentence-transformers."""
    folder = tmp_path_factory.mktemp("proofs")
    backbone = str(make_cased_backbone(folder / "backbone"))
    torch.manual_seed(1)
    cross = PairWiseBertRanker(backbone, max_length=MAX_LENGTH)
    torch.nn.init.normal_(cross.head.weight)
    cross.save(folder / "own-cross")
    prompts = {"query_prompt": "Question: ", "doc_prompt": "Passage: "}
    dual = DualEncoder(backbone, projection=8, max_length=MAX_LENGTH, **prompts)
    torch.nn.init.normal_(dual.query_tower.head[0].linear.weight)
    dual.save(folder / "own-dual")
    for name in ("cross", "dual"):
        assert main(["export", str(folder / f"own-{name}"), str(folder / name)]) == 0
    return {name: folder / name for name in ("cross", "dual")}


def classifier_folder(folder: Path) -> Path:
    """A ready cross-encoder with a head of its own."""
    tokenizer = cased_tokenizer()
    tokenizer.model_max_length = MAX_LENGTH
    model = BertForSequenceClassification
    return make_backbone(folder, tokenizer, model, seed=2, num_labels=1, **SIZES)
