"""Small worlds for the tests: a collection on disk, a tiny encoder in a folder. Nothing here needs
a network.
"""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import yaml
from filelock import FileLock
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from tests.child_processes import (
    MARK,
    kill_processes,
    left_by_workers,
    seconds_since_boot,
    started_processes,
)
from tests.use.runs import copied_run

__all__ = ["copied_run"]

os.environ.update(
    HF_HUB_OFFLINE="1", WANDB_MODE="offline", TOKENIZERS_PARALLELISM="false", WANDB_SILENT="true"
)

# A worker of pytest finds the number of the first process there.
os.environ[MARK] = f"{os.environ.get(MARK, str(os.getpid())).partition('.')[0]}.{os.getpid()}"
REPORTS = pytest.StashKey[list[pytest.TestReport]]()

# Options of the trainer that keep a test quiet.
QUIET = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "log_every_n_steps": 1,
}
WORDS = [f"w{i}" for i in range(60)]


@pytest.fixture(autouse=True, scope="session")
def sighup_is_heard():
    """Also where the tests themselves run under nohup."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def common_folder(tmp_path_factory) -> Path:
    """A folder that all workers of these tests share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def warm_python(common_folder) -> str:
    """The path of a Python that has imported everything: for tests that start several programs. One
    serves all workers.
    """
    from tests.run import warm

    place = common_folder / "warm"
    with FileLock(common_folder / "warm.lock"):
        if not place.exists():
            folder = Path(tempfile.mkdtemp())  # a socket needs a short path
            # Without the mark of this worker: it would end with a test of it that fails.
            environment = {name: value for name, value in os.environ.items() if name != MARK}
            warm.start_server(folder, environment, owner=int(os.environ[MARK].partition(".")[0]))
            place.symlink_to(folder)
    return str(place.resolve() / "python")


@pytest.fixture
def programs_begin_warm(warm_python, monkeypatch) -> None:
    """Whatever a test starts by ``sys.executable``, and what that starts in turn, imports nothing."""
    monkeypatch.setattr(sys, "executable", warm_python)


@pytest.fixture(autouse=True)
def nothing_is_left_by_a_test_that_fails(request):
    """The processes that it has started would go on for hours."""
    begun = seconds_since_boot()
    yield
    if any(report.failed for report in request.node.stash.get(REPORTS, ())):
        kill_processes(started_processes(since=begun))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    item.stash.setdefault(REPORTS, []).append(report)
    return report


def pytest_unconfigure(config):
    """Also what a worker has left that was ended for a test that hangs."""
    if not hasattr(config, "workerinput"):
        kill_processes(left_by_workers())


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Derived data of a test session lies apart from the user's."""
    monkeypatch.setenv("LTR_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def every_test_begins_alike(monkeypatch):
    """Whichever came before it in this process: Lightning keeps the seed of the last ``fit`` in the
    environment.
    """
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def no_run_of_wandb_is_left():
    """The next test of the process would log into it."""
    yield
    assert "wandb" not in sys.modules or sys.modules["wandb"].run is None


def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_collection(folder: Path, n_queries: int = 30, n_docs: int = 8, seed: int = 0) -> Path:
    """Queries ``w{q} …`` whose relevant document repeats their word: learnable, with pools of
    ``n_docs`` and three splits.
    """
    generator = torch.Generator().manual_seed(seed)

    def words(n: int) -> list[str]:
        return [WORDS[i] for i in torch.randint(0, len(WORDS), (n,), generator=generator).tolist()]

    (folder / "qrels").mkdir(parents=True)
    (folder / "candidates").mkdir()
    queries = []
    docs = []
    for split in ("train", "dev", "test"):
        qrels = ["query-id\tcorpus-id\tscore\n"]
        run = []
        for q in range(n_queries):
            query = f"{split}-q{q}"
            queries.append({"_id": query, "text": " ".join([WORDS[q % len(WORDS)], *words(2)])})
            for d in range(n_docs):
                doc = f"{query}-d{d}"
                length = 3 + int(torch.randint(0, 12, (1,), generator=generator))
                docs.append(
                    {
                        "_id": doc,
                        "text": " ".join(
                            ([WORDS[q % len(WORDS)]] * 3 if d == 0 else []) + words(length)
                        ),
                    }
                )
                run.append(f"{query} Q0 {doc} {d + 1} {n_docs - d} pool\n")
                if d < 2:
                    qrels.append(f"{query}\t{doc}\t{int(d == 0)}\n")
        (folder / "qrels" / f"{split}.tsv").write_text("".join(qrels))
        (folder / "candidates" / f"{split}.trec").write_text("".join(run))
    write_jsonl(folder / "corpus.jsonl", docs)
    write_jsonl(folder / "queries.jsonl", queries)
    return folder


@pytest.fixture(scope="session")
def collection_folder(tmp_path_factory) -> Path:
    return write_collection(tmp_path_factory.mktemp("collection") / "tiny")


def wordpiece_tokenizer() -> PreTrainedTokenizerFast:
    """BERT's kind: [CLS] query [SEP] document [SEP], types 0 and 1."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {t: i for i, t in enumerate([*special, "a", *WORDS, "##x"])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def make_backbone(folder: Path) -> Path:
    """A two-layer BERT of 16 dimensions with its tokenizer, as a folder."""
    tokenizer = wordpiece_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def backbone(tmp_path_factory) -> str:
    return str(make_backbone(tmp_path_factory.mktemp("backbone") / "tiny-bert"))


def write_letor(
    folder: Path, *splits: str, n_queries: int = 24, n_features: int = 5, seed: int = 0
) -> Path:
    """``train.txt`` … of 3 to 9 documents a query, grades 0 to 2 by a hidden linear score:
    learnable. Query ids run on.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(n_features, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    for number, split in enumerate(splits or ("train", "vali", "test")):
        lines = []
        for query in range(number * n_queries, (number + 1) * n_queries):
            for doc in range(3 + int(torch.randint(7, (1,), generator=generator))):
                x = torch.randn(n_features, generator=generator)
                grade = int(torch.bucketize(x @ weights, torch.tensor([0.0, 2.0])))
                values = " ".join(f"{i}:{v:.6f}" for i, v in enumerate(x.tolist(), 1))
                lines.append(f"{grade} qid:{query} {values} #docid = d{query}-{9 - doc}\n")
        (folder / f"{split}.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="session")
def letor_folder(tmp_path_factory) -> Path:
    return write_letor(tmp_path_factory.mktemp("letor") / "tiny")


def write_cheap_grid(folder: Path, backbone: str) -> None:
    """A configuration ``a.yaml`` and a grid ``grid.yaml`` of it. The data is nowhere, so nothing is
    trained.
    """
    config = {
        "model": {
            "ranker": {"class_path": "DualEncoder", "init_args": {"backbone": backbone}},
            "loss": "SoftmaxLoss",
        },
        "data": {"class_path": "TripletDataModule", "init_args": {"path": "data"}},
        "trainer": QUIET,
    }
    (folder / "a.yaml").write_text(yaml.safe_dump(config))
    grid = {"base": "a.yaml", "axes": {"lr": {"low": {"model.lr": 0.1}}}}
    (folder / "grid.yaml").write_text(yaml.safe_dump(grid))
