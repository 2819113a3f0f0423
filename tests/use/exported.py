"""Rankers that are exported."""

from pathlib import Path

import pytest
from transformers import BertForSequenceClassification, RobertaForSequenceClassification

import ltr
from ltr.__main__ import main
from ltr.models import PairWiseBertRanker
from ltr.models.encoder.text_encoder import TextEncoder
from tests.child_processes import ELSEWHERE, Elsewhere, without_ltr
from tests.world.backbones import make_backbone

# 12 tokens each: of 20, 3 are special, so 5 of the document are left, where cutting the longer one
# would leave 8 and 9.
LONG = (" ".join(f"w{n}" for n in range(12)), " ".join(f"w{n}" for n in range(20, 32)))


PAIRS = [("w1 w2", "w3 " * 40), ("w5", "w6"), LONG, ("w9", "w1 w2 w3")]


BY_OTHERS = """
folders, pairs = given
found = {}
for folder, to in folders.items():
    if to == "cross":
        from sentence_transformers import CrossEncoder
        found[folder] = CrossEncoder(folder, device="cpu").predict(pairs).tolist()
    elif to == "dual":
        from sentence_transformers import SentenceTransformer
        model = SentenceTransformer(folder, device="cpu")
        queries, documents = model.encode_query([q for q, _ in pairs]), model.encode_document([d for _, d in pairs])
        found[folder] = [float(model.similarity(q, d)) for q, d in zip(queries, documents)]
    else:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
        tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder)
        inputs = tokenizer(*map(list, zip(*pairs)), truncation="only_second", padding=True, return_tensors="pt")
        found[folder] = model(**inputs).logits[:, 0].tolist()
"""


def elsewhere(folders: dict[Path, str], where: Elsewhere) -> dict[str, list[float]]:
    """What sentence-transformers (cross, dual) and transformers (plain) make of the pairs."""
    given = [{str(folder): to for folder, to in folders.items()}, PAIRS]
    found: dict[str, list[float]] = without_ltr(BY_OTHERS, given, where)
    return found


def classifier(folder: Path, kind: str = "bert") -> Path:
    """A ready cross-encoder with one score."""
    sizes = {"num_hidden_layers": 1, "num_labels": 1, "initializer_range": 0.5}
    if kind == "bert":
        return make_backbone(folder, None, BertForSequenceClassification, seed=1, **sizes)
    sizes |= {"pad_token_id": 0, "type_vocab_size": 2}
    return make_backbone(folder, None, RobertaForSequenceClassification, seed=1, **sizes)


@pytest.fixture(scope="session")
def exported(tmp_path_factory, backbone, copied_run):
    """Runs and models, exported in every form that they have; their own scores; and what each
    exported folder is.
    """
    folder = tmp_path_factory.mktemp("exported")
    sources = {
        "cross": copied_run(folder / "run-cross", "cross"),
        "dual": copied_run(folder / "run-dual", "dual"),
        "bert": classifier(folder / "bert"),
        "roberta": classifier(folder / "roberta", "roberta"),
    }
    for pooling in ("cls", "max"):
        sources[pooling] = folder / f"own-{pooling}"
        options = TextEncoder.Options(pooling=pooling)
        PairWiseBertRanker(backbone, max_length=20, encoder=options).save(sources[pooling])
    made = {}
    for name, source in sources.items():
        out = folder / f"to-{name}"
        assert main(["export", str(source), str(out)]) == 0
        made[out] = "dual" if name == "dual" else "cross"
    for name in ("bert", "roberta"):
        out = folder / f"plain-{name}"
        assert main(["export", str(sources[name]), str(out), "--to", "transformers"]) == 0
        made[out] = "plain"
    own = {name: ltr.load(source, "32-true").score(PAIRS) for name, source in sources.items()}
    return folder, own, made


@pytest.fixture(scope="session", params=ELSEWHERE)
def scores_of_others(request, exported) -> dict[str, list[float]]:
    """The scores of other libraries, by exported folder."""
    return elsewhere(exported[2], request.param)
