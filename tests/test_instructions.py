"""Two collections in one data folder train together, each query with its own instruction, with every
ranker of texts.
"""

import json
import shutil

import numpy as np
import pytest

from ltr.callbacks import HardNegativeMining
from ltr.data.collection import open_collection
from ltr.data.layouts import ApartTexts
from ltr.data.template import Template
from ltr.datamodules import TripletDataModule
from ltr.in_batch import AllTexts, OtherQueries, OwnLists
from ltr.losses import SoftmaxLoss
from ltr.mining.filters import Recipe
from ltr.mining.miner import Miner
from ltr.models import DecoderRanker, DualEncoder, PairWiseBertRanker
from ltr.module import RankerModule
from ltr.search.scores import pair_scores
from tests.world.collections import write_collection
from tests.world.data_modules import data_module
from tests.world.decoders import save_decoder
from tests.world.rankers import trainer

POOLS = {"candidates": "bm25", "depth": 4}
INSTRUCTIONS = {"a": "w1 w2 w3", "b": "w4 w5"}
SIDES = Template("{instruction} a {query}", "{document}", instruction="w9")
PAIR = Template("{instruction} a {query}", "{document}", "{query} | {document} ?", "w9")
RANKERS = {
    "cross": lambda bert, decoder: PairWiseBertRanker(bert, 40, template=SIDES),
    "one text": lambda bert, decoder: PairWiseBertRanker(bert, 40, template=PAIR),
    "dual": lambda bert, decoder: DualEncoder(bert, template=SIDES, max_length=40),
    "decoder": lambda bert, decoder: DecoderRanker(decoder, PAIR, max_length=60),
}


def put_together(folder, *sources):
    """One data folder of several, whose ids begin with the name of each; as docs/sources.md says."""
    (folder / "qrels").mkdir(parents=True)
    for name in ("queries", "corpus"):
        with open(folder / f"{name}.jsonl", "w") as together:
            for source in sources:
                for line in (source / f"{name}.jsonl").read_text().splitlines():
                    record = json.loads(line)
                    record["_id"] = f"{source.name}-{record['_id']}"
                    if name == "queries":
                        record["instruction"] = INSTRUCTIONS[source.name]
                    together.write(json.dumps(record) + "\n")
    for split in ("train", "dev"):
        with open(folder / "qrels" / f"{split}.tsv", "w") as together:
            together.write("query-id\tcorpus-id\tscore\n")
            for source in sources:
                lines = (source / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]
                for query, document, grade in (line.split("\t") for line in lines):
                    together.write(f"{source.name}-{query}\t{source.name}-{document}\t{grade}\n")
    return folder


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collections")
    a = write_collection(folder / "a", n_queries=5, n_docs=4)
    b = write_collection(folder / "b", n_queries=5, n_docs=4, seed=1)
    return put_together(folder / "together", a, b)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return save_decoder(tmp_path_factory.mktemp("decoder") / "qwen3")


def query_texts(reads, collection):
    """What is read of each query, with a document where it is read with it."""
    queries = reads.store(collection.queries, "query")
    docs = reads.store(collection.corpus, "document")
    rows = np.arange(len(collection.queries))
    if isinstance(reads, ApartTexts):
        tokenizer = reads.queries.tokenizer
        texts = reads.queries.lay_out(queries, rows)
    else:
        tokenizer = reads.tokenizer
        texts = reads.lay_out(queries, rows, docs, np.zeros_like(rows))
    return [tokenizer.decode(ids) for ids in texts.ids.split(texts.lengths.tolist())]


@pytest.mark.parametrize("kind", RANKERS)
def test_each_query_is_read_with_its_own_instruction(kind, together, backbone, decoder, tmp_path):
    ranker = RANKERS[kind](backbone, decoder)
    collection = open_collection(str(together))
    texts = query_texts(ranker.reads, collection)
    assert len(texts) == 30
    queries = collection.queries
    for id_, query, text in zip(queries.ids, queries.texts, texts, strict=True):
        assert f"{INSTRUCTIONS[id_[0]]} a {query}" in text
    # Another instruction of one query changes what is read of that query, and its scores, alone.
    changed = tmp_path / "changed"
    shutil.copytree(together, changed)
    own = '"_id": "b-train-q0"'
    lines = (changed / "queries.jsonl").read_text().splitlines()
    lines = [line.replace("w4 w5", "w6") if own in line else line for line in lines]
    (changed / "queries.jsonl").write_text("\n".join(lines) + "\n")
    other = open_collection(str(changed))
    row = other.queries.row("b-train-q0")
    differs = [a != b for a, b in zip(texts, query_texts(ranker.reads, other), strict=True)]
    assert np.flatnonzero(differs).tolist() == [row]
    rows = np.arange(30)
    scores = []
    for each in (collection, other):
        queries = ranker.reads.store(each.queries, "query")
        docs = ranker.reads.store(each.corpus, "document")
        scores.append(pair_scores(ranker, queries, docs, rows, np.zeros_like(rows)))
    assert np.flatnonzero(np.abs(scores[0] - scores[1]) > 1e-6).tolist() == [row]


@pytest.mark.parametrize("kind", ["cross", "one text", "decoder"])
def test_lists_are_as_long_as_they_are_planned(kind, together, backbone, decoder):
    """Instructions of queries count: batches are planned by these lengths."""
    reads = RANKERS[kind](backbone, decoder).reads
    collection = open_collection(str(together))
    queries = reads.store(collection.queries, "query")
    docs = reads.store(collection.corpus, "document")
    rows = np.arange(len(queries))
    planned = reads.lengths(queries.lengths(rows), docs.lengths(rows))
    lengths = reads.lay_out(queries, rows, docs, rows).lengths.numpy()
    # But for words that share a token with what stands beside them.
    assert np.abs(planned - lengths).max() <= (2 if kind == "decoder" else 0)


@pytest.mark.parametrize(
    ("kind", "in_batch"),
    [*((kind, OwnLists) for kind in RANKERS), ("dual", OtherQueries), ("dual", AllTexts)],
)
def test_they_train_together(kind, in_batch, together, backbone, decoder, tmp_path):
    module = RankerModule(RANKERS[kind](backbone, decoder), SoftmaxLoss(), in_batch=in_batch())
    options = {"negatives": "random", "negatives_per_query": 1, "batch_size": 5} | POOLS
    data = data_module(TripletDataModule, str(together), reads=module.ranker.reads, **options)
    before = module.ranker.key
    fit = trainer(tmp_path, max_epochs=1, limit_val_batches=0)
    fit.fit(module, data)
    assert fit.global_step == 2 and module.ranker.key != before


def test_mined_negatives_are_those_of_queries_with_their_instructions(together, backbone, tmp_path):
    ranker = RANKERS["dual"](backbone, None)
    module = RankerModule(ranker, SoftmaxLoss())
    options = {"negatives": "mined", "negatives_per_query": 1, "batch_size": 5} | POOLS
    data = data_module(TripletDataModule, str(together), reads=ranker.reads, **options)
    recipe = Recipe(depth=6, n=3, relative=None)
    mining = HardNegativeMining(recipe=recipe)
    fit = trainer(tmp_path, max_epochs=2, limit_val_batches=0, callbacks=[mining])
    fit.fit(module, data)
    assert len(list((tmp_path / "negatives").glob("step=*"))) == 2
    collection = open_collection(str(together))
    judged = collection.judgements("train")
    keys = [
        Miner(DualEncoder(backbone, max_length=40, **own), collection, judged, recipe).key
        for own in ({}, {"template": SIDES}, {"template": Template("{instruction} {query}")})
    ]
    assert len(set(keys)) == 3
