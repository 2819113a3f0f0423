"""An exported folder gives the same scores in the libraries it is made for, in processes that know nothing of ltr."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import pytrec_eval
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, RobertaConfig, RobertaForSequenceClassification

import ltr
from ltr.__main__ import main
from ltr.data.collection import open_collection
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.use.export import export
from ltr.use.rankers import TextRanker
from tests.conftest import wordpiece_tokenizer
from tests.use.runs import trained_on_texts

# 12 tokens each: of 20, 3 are special, so 5 of the document are left, where cutting the longer one would leave 8 and 9.
LONG = (" ".join(f"w{n}" for n in range(12)), " ".join(f"w{n}" for n in range(20, 32)))
PAIRS = [("w1 w2", "w3 " * 40), ("w5", "w6"), LONG, ("w9", "w1 w2 w3")]
ELSEWHERE = """
import json, sys, importlib.util
sys.path = [path for path in sys.path if path not in ("", {root!r})]
sys.meta_path = [one for one in sys.meta_path if "__editable__" not in str(one)]
assert importlib.util.find_spec("ltr") is None, "the process must not know ltr"
folders, pairs = json.load(sys.stdin)
found = {{}}
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
print("FOUND" + json.dumps(found))
"""


def elsewhere(folders: dict[Path, str]) -> dict[str, list[float]]:
    """What sentence-transformers (cross, dual) and transformers (plain) make of the pairs."""
    code = ELSEWHERE.format(root=str(Path(ltr.__file__).parents[1]))
    given = json.dumps([{str(folder): to for folder, to in folders.items()}, PAIRS])
    done = subprocess.run([sys.executable, "-P", "-c", code], input=given, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.partition("FOUND")[2])


def classifier(folder: Path, kind: str = "bert") -> Path:
    """A ready cross-encoder with one score."""
    tokenizer = wordpiece_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 64, "num_labels": 1, "initializer_range": 0.5}
    torch.manual_seed(1)
    if kind == "bert":
        model = BertForSequenceClassification(BertConfig(**sizes))
    else:
        model = RobertaForSequenceClassification(RobertaConfig(**sizes, pad_token_id=0, type_vocab_size=2))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory, backbone, collection_folder):
    """Runs and models, exported in every form that they have; their own scores; those of the other libraries."""
    folder = tmp_path_factory.mktemp("exported")
    runs = {kind: trained_on_texts(folder / f"run-{kind}", kind, collection_folder, backbone) for kind in ("cross", "dual")}
    sources = {
        "cross": runs["cross"],
        "dual": runs["dual"],
        "bert": classifier(folder / "bert"),
        "roberta": classifier(folder / "roberta", "roberta"),
    }
    for pooling in ("cls", "max"):
        PairWiseBertRanker(backbone, max_length=20, encoder=TextEncoder.Options(pooling=pooling)).save(folder / f"own-{pooling}")
        sources[pooling] = folder / f"own-{pooling}"
    made = {}
    for name, source in sources.items():
        out = folder / f"to-{name}"
        assert main(["export", str(source), str(out)]) == 0
        made[out] = "dual" if name == "dual" else "cross"
        if name in ("bert", "roberta"):
            assert main(["export", str(source), str(folder / f"plain-{name}"), "--to", "transformers"]) == 0
            made[folder / f"plain-{name}"] = "plain"
    own = {name: ltr.load(source, "32-true").score(PAIRS) for name, source in sources.items()}
    return folder, own, elsewhere(made)


@pytest.mark.parametrize("name", ["cross", "bert", "roberta", "cls", "max"])
def test_sentence_transformers_scores_pairs_alike(exported, name):
    folder, own, found = exported
    assert np.ptp(own[name]) > 1e-3
    assert found[str(folder / f"to-{name}")] == pytest.approx(own[name].tolist(), abs=1e-5)


def test_sentence_transformers_compares_embeddings_alike(exported):
    folder, own, found = exported
    assert found[str(folder / "to-dual")] == pytest.approx((own["dual"] * 0.1).tolist(), abs=1e-5), "without the temperature"


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_transformers_scores_pairs_alike(exported, name):
    folder, own, found = exported
    assert found[str(folder / f"plain-{name}")] == pytest.approx(own[name].tolist(), abs=1e-5)


@pytest.mark.parametrize("name", ["cross", "dual", "bert", "roberta", "cls", "max"])
def test_an_exported_folder_is_a_backbone_again(exported, name):
    """Its length, pooling and head come back with it."""
    folder, own, _ = exported
    ranker = ltr.load(folder / f"to-{name}", "32-true")
    scale = 0.1 if name == "dual" else 1
    assert ranker.score(PAIRS) == pytest.approx(own[name] * scale, abs=1e-5)


def test_a_card_says_what_it_is(exported):
    folder, _, _ = exported
    text = (folder / "to-cross/README.md").read_text()
    for part in (
        "ltr.losses.SoftmaxLoss",
        "| negatives | candidates |",
        "| seed | 0 |",
        "95 % interval",
        "nDCG@10",
        "@software{ltr",
    ):
        assert part in text
    code = text.partition("```python\n")[2].partition("```")[0].replace("FOLDER", str(folder / "to-cross"))
    found: dict = {}
    exec(code, found)  # noqa: S102  # the card's own
    assert len(found["scores"]) == 2
    assert "Training" not in (folder / "to-bert/README.md").read_text(), "nothing is known of it"


def test_a_crossencoder_of_sentence_transformers_is_measured_and_trained(tmp_path, exported, collection_folder):
    """Its pooling and linear layer are the start, and the document alone is cut."""
    folder, own, _ = exported
    ranker = {"class_path": "ltr.models.PairWiseBertRanker", "init_args": {"backbone": str(folder / "to-max"), "max_length": 20}}
    model = PairWiseBertRanker(**ranker["init_args"])
    assert model.encoder.pooling == "max" and not model.has_own_head
    assert TextRanker(model).score(PAIRS) == pytest.approx(own["max"], abs=1e-5)
    own_pooling = PairWiseBertRanker(**ranker["init_args"], encoder=TextEncoder.Options(pooling="cls"))
    assert own_pooling.encoder.pooling == "cls"


def test_one_trained_there_is_read_as_there(tmp_path, backbone):
    """A folder that sentence-transformers itself has made, without our truncation: short pairs, equal logits."""
    theirs = CrossEncoder(str(classifier(tmp_path / "plain")), device="cpu", max_length=32)
    theirs.save(str(tmp_path / "ce"))
    expected = theirs.predict(PAIRS[1:2] + PAIRS[3:], activation_fn=torch.nn.Identity())
    assert ltr.load(tmp_path / "ce", "32-true").score(PAIRS[1:2] + PAIRS[3:]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["cross", "dual", "bert", "cls", "max"])
def test_onnx(exported, name, tmp_path):
    folder, own, _ = exported
    source = folder / f"run-{name}/run" if name in ("cross", "dual") else folder / f"to-{name}"
    out = tmp_path / "onnx"
    assert main(["export", str(source), str(out), "--to", "onnx"]) == 0
    settings = json.loads((out / "ltr.json").read_text())
    session, tokenizer = onnxruntime.InferenceSession(str(out / "model.onnx")), AutoTokenizer.from_pretrained(out)

    def output(*texts, **options):
        given = tokenizer(
            *map(list, texts), padding=True, return_tensors="np", max_length=settings["model"]["max_length"], **options
        )
        return session.run(None, {one.name: given[one.name] for one in session.get_inputs()})[0]

    if name == "dual":
        queries, documents = (output(side, truncation=True) for side in zip(*PAIRS, strict=True))
        lengths = np.linalg.norm(queries, axis=1) * np.linalg.norm(documents, axis=1)
        found = (queries * documents).sum(axis=1) / lengths / 0.1
    else:
        found = output(*zip(*PAIRS, strict=True), truncation="only_second")
    assert found == pytest.approx(own[name], abs=1e-4)


def test_two_towers_make_two_graphs(tmp_path, backbone):
    DualEncoder(backbone, doc_backbone=backbone, projection=8, max_length=12).save(tmp_path / "two")
    assert main(["export", str(tmp_path / "two"), str(tmp_path / "out"), "--to", "onnx"]) == 0
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"query.onnx", "document.onnx", "query", "document"} <= names and "model.onnx" not in names
    for side in ("query", "document"):
        assert onnxruntime.InferenceSession(str(tmp_path / f"out/{side}.onnx")).get_outputs()[0].shape[-1] == 8


@pytest.mark.parametrize("kind", ["cross", pytest.param("dual", marks=pytest.mark.long)])
def test_int8_is_measured_beside_float32(exported, collection_folder, tmp_path, capsys, kind):
    folder, _, _ = exported
    source, out = folder / f"run-{kind}/run", tmp_path / "out"
    assert main(["export", str(source), str(out), "--to", "onnx", "--int8", str(collection_folder)]) == 0
    told = capsys.readouterr().out
    # float32's value, by the run itself and trec_eval
    collection, ranker = open_collection(str(collection_folder)), ltr.load(source, "32-true")
    judged, pools, qrels, run = collection.learnable("dev"), collection.candidates["dev"], {}, {}
    for row in judged.query_rows.tolist():
        documents, asked = pools.of(row)[0].tolist(), collection.queries.texts[row]
        scores = ranker.score([(asked, collection.corpus.texts[doc]) for doc in documents]).tolist()
        run[str(row)] = {f"{doc:04}": score for doc, score in zip(documents, scores, strict=True)}
        qrels[str(row)] = {f"{doc:04}": int(grade) for doc, grade in zip(*judged.of(row), strict=True)}
    by_query = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut_10"}).evaluate(run).values()
    expected = np.mean([one["ndcg_cut_10"] for one in by_query])
    assert 0.1 < expected < 1 and f"float32: nDCG@10 {expected:.4f} on dev" in told
    table = (out / "README.md").read_text().partition("## Int8")[2]
    assert f"| float32 | {expected:.4f} |" in table and "| int8 |" in table
    # The weights of int8 are int8, and its outputs are near those of float32, not equal.
    weights = {one.data_type for one in onnx.load(out / "model_int8.onnx").graph.initializer if len(one.dims) == 2}
    assert onnx.TensorProto.INT8 in weights and onnx.TensorProto.FLOAT not in weights
    texts = dict(AutoTokenizer.from_pretrained(out)([f"w{n} w{n + 3}" for n in range(30)], return_tensors="np"))
    both = (onnxruntime.InferenceSession(str(out / name)) for name in ("model.onnx", "model_int8.onnx"))
    plain, small = (one.run(None, {part.name: texts[part.name] for part in one.get_inputs()})[0] for one in both)
    assert 0 < np.abs(plain - small).max() < 0.1 * np.ptp(plain)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["to-cross", "out", "--int8", "DATA"], "int8 is for ONNX graphs, got --to sentence-transformers"),
        (["to-cross", "out", "--to", "onnx", "--int8", "nowhere"], "nowhere"),
        (["to-cross", "out", "--to", "transformers"], "transformers has no head for this ranker, a linear layer behind the mean"),
        (["to-dual", "out", "--to", "transformers"], "a dual encoder is no sequence classifier"),
        (["to-cross", "to-dual"], "must not exist yet"),
        (["to-cross", "out", "--to", "tflite"], "tflite"),
        (["nothing/at/all", "out"], "there is no run, checkpoint or model"),
    ],
)
def test_what_cannot_be_exported_leaves_no_folder(exported, tmp_path, monkeypatch, capsys, args, said):
    folder, _, _ = exported
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    assert main(["export", *args]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1 and sorted(folder.iterdir()) == before


def test_a_missing_package_is_named(exported, tmp_path, monkeypatch):
    folder, _, _ = exported
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match="needs the package onnxruntime: pip install"):
        export(folder / "to-cross", tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()
