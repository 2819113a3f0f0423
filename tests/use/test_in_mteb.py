"""Rankers as models of mteb: what they answer to its calls, and the numbers that it measures."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import ltr
from ltr.__main__ import main
from ltr.data.trec import read_run
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use.rankers import Reranker
from ltr.use.retriever import Retriever
from tests.world.collections import write_collection
from tests.world.runs import trained_on_texts

# As mteb's loaders give them; of a document the text has the title, too.
BATCHES = [{"text": ["w1 w2", "w3"], "id": ["a", "b"]}, {"text": ["w4 w5 w6"], "id": ["c"]}]
TEXTS = ["w1 w2", "w3", "w4 w5 w6"]
OF_MTEB = {"task_metadata": None, "hf_split": "test", "hf_subset": "default", "batch_size": 2}


@pytest.fixture(scope="module")
def retriever(backbone) -> Retriever:
    torch.manual_seed(0)
    model = DualEncoder(backbone, max_length=20, query_prompt="w9 ", doc_prompt="w8 ")
    return Retriever(model, "32-true", "runs/dual/a b/seed=0")


@pytest.fixture(scope="module")
def reranker(backbone) -> Reranker:
    torch.manual_seed(0)
    return Reranker(PairWiseBertRanker(backbone, max_length=24))


def test_the_prompt_type_chooses_the_side(retriever):
    for prompt_type, side in (("query", "query"), ("document", "document"), (None, "document")):
        found = retriever.encode(BATCHES, prompt_type=prompt_type, **OF_MTEB)
        np.testing.assert_array_equal(found, retriever.encode(TEXTS, side))
    assert not np.allclose(retriever.encode(TEXTS, "query"), retriever.encode(TEXTS))


def test_similarities_are_those_of_the_ranker(retriever):
    embeddings = retriever.encode(TEXTS)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    found = retriever.similarity(embeddings[:2], torch.from_numpy(embeddings))
    np.testing.assert_allclose(found, unit[:2] @ unit.T, atol=1e-6)
    np.testing.assert_allclose(retriever.similarity(embeddings[0], embeddings[1])[0], [found[0, 1]])
    in_pairs = retriever.similarity_pairwise(embeddings, embeddings[::-1].copy())
    np.testing.assert_allclose(in_pairs, np.diag(unit @ unit[::-1].T), atol=1e-6)


def test_a_cross_encoder_scores_pairs(reranker):
    found = reranker.predict(BATCHES, [{"text": TEXTS[::-1]}], **OF_MTEB)
    expected = reranker.score(zip(TEXTS, TEXTS[::-1], strict=True))
    np.testing.assert_array_equal(found, expected)


def test_what_does_not_fit_is_refused(retriever):
    with pytest.raises(InputError, match="one of texts, got id, image"):
        retriever.encode([{"image": [], "id": []}], **OF_MTEB)
    with pytest.raises(TypeError, match="no argument 'sides'"):
        retriever.encode(TEXTS, sides="query")


# With mteb itself


def task_of(folder: Path, name: str, with_pools: bool):
    """The test split of a collection as a task of mteb, made on the spot."""
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    def rows(file: str) -> Dataset:
        lines = (folder / file).read_text().splitlines()
        read = [json.loads(line) for line in lines]
        return Dataset.from_list([{"id": row["_id"], "text": row["text"]} for row in read])

    relevant: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels/test.tsv").read_text().splitlines()[1:]:
        query, doc, grade = line.split("\t")
        relevant.setdefault(query, {})[doc] = int(grade)
    pools: dict[str, list[str]] = {}
    for _, (query, doc, _) in read_run(folder / "candidates/test.trec"):
        pools.setdefault(query, []).append(doc)

    class OwnTask(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=name,
            description="The data of a test.",
            type="Reranking" if with_pools else "Retrieval",
            dataset={"path": "none", "revision": "1"},
            eval_langs=["eng-Latn"],
            eval_splits=["test"],
            main_score="ndcg_at_10",
            category="t2t",
        )

        def load_data(self, **_) -> None:
            split = {
                "corpus": rows("corpus.jsonl"),
                "queries": rows("queries.jsonl").filter(lambda row: row["id"] in relevant),
                "relevant_docs": relevant,
                "top_ranked": pools if with_pools else None,
            }
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return OwnTask()


@pytest.mark.parametrize("kind", ["dual", "cross"])
def test_mteb_measures_what_ltr_test_does(tmp_path, backbone, monkeypatch, kind):
    """A run, loaded, on a task of the data that it was tested on: the dual encoder searches the
    corpus, the cross-encoder orders its pools.
    """
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path / "mteb"))
    mteb = pytest.importorskip("mteb")
    data = write_collection(tmp_path / "data", n_queries=12, seed=3)
    run = trained_on_texts(tmp_path, kind, data, backbone)
    if kind == "dual":
        searched = ["--data.evaluation.candidates", "corpus", "--data.evaluation.depth", "100"]
        assert main(["test", str(run), *searched]) == 0
    ours = json.loads((run / "metrics.json").read_text())["test"]["nDCG@10"]
    task = task_of(data, f"Own{kind}", with_pools=kind == "cross")
    ranker = ltr.load(run, device="cpu")
    result = mteb.evaluate(ranker, task, cache=None, show_progress_bar=False)
    assert result.task_results[0].get_score() == pytest.approx(ours, abs=1e-4)
    assert 0 < ours < 1, "else any ranking would do"


def test_mteb_tells_models_by_their_weights_and_how_they_read(retriever, backbone):
    pytest.importorskip("mteb")
    meta = retriever.mteb_model_meta
    assert meta.name == "ltr/dual-a-b-seed=0" and meta.embed_dim == 16
    others = [
        Retriever(retriever.model, "bf16-mixed"),
        Retriever(DualEncoder(backbone, max_length=20)),
        Retriever(DualEncoder(backbone, max_length=20, query_prompt="w9 ", projection=8)),
    ]
    revisions = {meta.revision, *(other.mteb_model_meta.revision for other in others)}
    assert len(revisions) == 4 and Retriever(retriever.model).mteb_model_meta.revision in revisions


def test_without_mteb_a_line_says_what_is_missing(retriever, monkeypatch):
    for name in ("mteb", "mteb.models"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="pip install mteb"):
        _ = retriever.mteb_model_meta
