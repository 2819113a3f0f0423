"""Where encodings lie, who reads them, and when they go."""

import os
import shutil
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.callbacks import EMAWeightAveraging

from ltr.checkpoint import read_checkpoint
from ltr.data.cache_contents import Cache
from ltr.data.collection import open_collection
from ltr.data.files import cache_root
from ltr.data.layouts import SingleTexts
from ltr.data.tokens import TokenStore
from ltr.data.windows import Windows
from ltr.datamodules import GroupDataModule
from ltr.errors import InputError
from ltr.in_batch import OtherQueries
from ltr.losses import SoftmaxLoss
from ltr.models.encoder.loading.pretrained import load_encoder, load_tokenizer
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.run.checkpoint_options import BestOptions
from ltr.run.checkpoints import Checkpoints
from ltr.search import encoding_places
from ltr.search import encoding_worker as room
from ltr.search.embedder import Embedder
from ltr.search.encoding_places import (
    EncodingsInCache,
    EncodingsOfRun,
    TemporaryEncodings,
    texts_of_store,
    texts_of_table,
)
from ltr.use.retriever import table_of_texts
from tests.child_processes import fork
from tests.world.rankers import data_for, dual_encoder, trainer


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def corpus(collection_folder):
    return open_collection(str(collection_folder)).corpus


@pytest.fixture
def weights(backbone):
    """Makes an embedder of other weights."""
    tokenizer = load_tokenizer(backbone)
    encoder = TextEncoder(load_encoder(backbone)[0])
    form = SingleTexts(tokenizer, 12)
    return lambda name: Embedder(encoder, form, [name], nullcontext, "32-true")


@pytest.fixture
def encoded(monkeypatch) -> list[int]:
    """How many texts each shard had to encode."""
    counts = []
    encode_batches = room.encode_batches

    def counting(*args):
        parts = list(encode_batches(*args))
        if parts:
            counts.append(sum(len(places) for places, _ in parts))
        return parts

    monkeypatch.setattr(room, "encode_batches", counting)
    return counts


def use(place, embedder: Embedder, corpus, numbers="float32") -> np.ndarray:
    texts = texts_of_table(corpus, embedder)
    with place.encoding_of(embedder, texts, numbers) as encoding:
        return encoding.embeddings()[: texts.count]


def kept(run: Path) -> int:
    """How many encodings lie in a run folder."""
    return len([each for each in (run / "encodings").iterdir() if each.is_dir()])


def test_of_a_run_the_last_encoding_of_each_user_stays(tmp_path, corpus, weights, encoded):
    run = tmp_path / "run"
    validation = EncodingsOfRun(run, "evaluation")
    mining = EncodingsOfRun(run, "mining")
    first = use(validation, weights("step 1"), corpus)
    assert sum(encoded) == 720
    np.testing.assert_array_equal(use(mining, weights("step 1"), corpus), first)
    assert sum(encoded) == 720 and kept(run) == 1, "the same weights are not encoded again"
    use(validation, weights("step 2"), corpus)
    assert kept(run) == 2, "the miner may still read the first"
    use(mining, weights("step 2"), corpus)
    assert kept(run) == 1 and sum(encoded) == 2 * 720
    mining.remove_all()
    assert not (run / "encodings").exists()
    mining.remove_all()


def test_a_killed_run_goes_on_with_its_shards(tmp_path, corpus, weights, encoded):
    run = tmp_path / "run"
    place = EncodingsOfRun(run, "evaluation")

    def killed_at_the_third_shard() -> None:
        room.write_shard = _written_until(2)
        use(place, weights("step 1"), corpus)

    assert os.waitpid(fork(killed_at_the_third_shard), 0)[1] == signal.SIGKILL
    use(place, weights("step 1"), corpus)
    assert encoded == [208]
    # Another start in this folder, of other weights, leaves nothing of it.
    use(place, weights("other"), corpus)
    assert kept(run) == 1


def test_temporary_ones_go(tmp_path, corpus, weights):
    use(TemporaryEncodings(tmp_path / "run"), weights("a"), corpus)
    assert list((tmp_path / "run").iterdir()) == []


def test_the_cache_has_one_store_for_tokens_and_texts(tmp_path, corpus, weights, backbone, encoded):
    """A validation, which has its corpus tokenised, and a search, which has not, find the same."""
    place = EncodingsInCache(corpus.folder, "a model")
    store = TokenStore.open(corpus, load_tokenizer(backbone))
    with place.encoding_of(weights("a"), texts_of_store(store), "float32") as encoding:
        first = encoding.embeddings()[0:720]
    np.testing.assert_array_equal(use(place, weights("a"), corpus, "float16"), first)
    assert sum(encoded) == 720, "float32 serves where halves are asked for"
    use(place, weights("b"), corpus, "float16")
    use(place, weights("b"), corpus, "float32")
    assert sum(encoded) == 3 * 720, "halves do not serve where float32 is asked for"
    entries = [entry for entry in Cache().entries if entry.kind == "encodings"]
    assert len(entries) == 3
    assert {Cache().first_origins(entry)[0].model for entry in entries} == {"a model"}


def test_an_encoding_that_is_open_is_not_removed(corpus, weights):
    place = EncodingsInCache(corpus.folder, "a model")
    texts = texts_of_table(corpus, weights("a"))
    with place.encoding_of(weights("a"), texts, "float16") as encoding:
        (entry,) = [entry for entry in Cache().entries if entry.kind == "encodings"]
        assert not entry.try_remove()
        assert encoding.missing() == []
    del encoding
    assert entry.try_remove()


def test_a_killed_search_goes_on_in_the_cache_and_is_told_by_it(corpus, weights, encoded):
    place = EncodingsInCache(corpus.folder, "a model")

    def killed() -> None:
        room.write_shard = _written_until(1)
        use(place, weights("a"), corpus, "float16")

    assert os.waitpid(fork(killed), 0)[1] == signal.SIGKILL
    (left,) = [entry for entry in Cache().entries if entry.last_used is None]
    assert Cache().why_unused(left, None) == "left by a killed command"
    use(place, weights("a"), corpus, "float16")
    assert encoded == [256, 208]
    assert [entry for entry in Cache().entries if entry.last_used is None] == []
    assert not list((cache_root() / "encodings").glob(".*"))


def _written_until(last: int):
    """Writes shards, and kills the process at one."""
    write = room.write_shard

    def write_shard(file, stored, key, number, device):
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)
        write(file, stored, key, number, device)

    return write_shard


def test_known_rows_are_of_the_whole_encoding_that_was_used_last(corpus, weights, encoded):
    """Of two other corpora: 20 texts of this one stand in the first, 10 in the second, which was
    written later. A damaged one is left out.
    """
    place = EncodingsInCache(corpus.folder, "a model")
    texts = list(corpus.texts)
    own = [f"w{number} w{number}" for number in range(20)]
    first = table_of_texts([*texts[:20], *own])
    second = table_of_texts([*texts[:10], *own])
    use(place, weights("a"), first)
    use(place, weights("a"), second)
    entries = {entry.folder: entry.last_used for entry in encodings_in_cache()}
    of_first, of_second = sorted(entries, key=entries.__getitem__)
    use(place, weights("a"), first)
    os.utime(of_first / "seal", (2e9, 2e9))
    encoded.clear()
    use(place, weights("a"), table_of_texts(texts[:20]))
    assert encoded == [], "all 20 are known of the first, which was used last"
    (of_last,) = {entry.folder for entry in encodings_in_cache()} - {of_first, of_second}
    shutil.rmtree(of_last)
    (of_first / "000000.npy").write_bytes(b"")
    use(place, weights("a"), table_of_texts(texts[:20]))
    assert encoded == [10], "the second knows the others"


def test_a_folder_that_is_shown_late_is_waited_for(tmp_path, monkeypatch):
    """As on a network file system; one that never shows it is told."""
    file = tmp_path / "plan.json"
    threading.Timer(0.3, file.touch).start()
    start = time.monotonic()
    encoding_places._wait_for(file)
    assert time.monotonic() - start > 0.2
    monkeypatch.setattr(encoding_places, "SECONDS_UNTIL_SEEN", 0.2)
    with pytest.raises(
        InputError, match="must be reached by every process, and process 0 does not"
    ):
        encoding_places._wait_for(tmp_path / "never")


class Score(Callback):
    """Says how good the weights of each validation are."""

    def __init__(self, scores):
        self.scores = iter(scores)

    def on_validation_epoch_end(self, trainer, module):
        module.log("val/score", next(self.scores))


class Fitted:
    """A dual encoder that was trained, with a validation by search at each score."""

    def __init__(self, folder, collection, backbone, scores, callbacks=(), **options):
        seed_everything(0)
        self.folder = folder
        in_batch = OtherQueries()
        self.module = dual_encoder(backbone, SoftmaxLoss(), in_batch=in_batch, lr=0.01, **options)
        searched = {"candidates": "corpus", "depth": 100}
        groups = {"groups": 8, "docs_per_group": 1}
        self.data = data_for(self.module, GroupDataModule, collection, **groups, **searched)
        checkpoints = Checkpoints(BestOptions("val/score"))
        callbacks = [*callbacks, Score(scores), checkpoints]
        fit = trainer(
            folder,
            max_epochs=len(scores),
            limit_train_batches=2,
            callbacks=callbacks,
            enable_checkpointing=True,
        )
        fit.fit(self.module, self.data)
        self.validated = fit.callback_metrics["val/nDCG@10"].item()

    def test(self, which="best", folder=None):
        """nDCG@10 of a test of the weights in a checkpoint."""
        checkpoint = read_checkpoint(self.folder / f"checkpoints/{which}.ckpt")
        self.module.load_state_dict(checkpoint["state_dict"])
        metrics = trainer(folder or self.folder).test(self.module, self.data, verbose=False)[0]
        return metrics["test/nDCG@10"]


def encodings_in_cache() -> list:
    return [entry for entry in Cache().entries if entry.kind == "encodings"]


@pytest.mark.parametrize("case", ["plain", "averaged", "windows", "another folder"])
def test_a_test_reads_what_the_last_validation_has_encoded_of_the_best_weights(
    tmp_path, collection_folder, backbone, encoded, case
):
    """The corpus is encoded for each of two validations, and no third time; nDCG is that of a test
    that encodes it anew.
    """
    options = {}
    callbacks = []
    if case == "averaged":
        callbacks.append(EMAWeightAveraging(decay=0.5))
    if case == "windows":
        options = {"windows": Windows(size=6, stride=6)}
    run = Fitted(tmp_path / "run", collection_folder, backbone, [0.1, 0.2], callbacks, **options)
    after_fit = sum(encoded)
    (entry,) = encodings_in_cache()
    assert not (tmp_path / "run/encodings").exists()
    ndcg = run.test(folder=tmp_path / "other" if case == "another folder" else None)
    validated = trainer(tmp_path).validate(run.module, run.data, verbose=False)[0]
    assert validated["val/nDCG@10"] == run.validated > 0, "of the weights that are kept"
    assert sum(encoded) == after_fit and after_fit >= 2 * 720
    assert {source.model for source in Cache().first_origins(entry)} == {str(tmp_path / "run")}
    assert len(encodings_in_cache()) == 1
    assert encodings_in_cache()[0].try_remove()
    assert run.test() == ndcg > 0
    assert sum(encoded) == after_fit * 3 // 2


def test_of_weights_that_were_best_before_the_test_encodes(
    tmp_path, collection_folder, backbone, encoded
):
    """Neither the best of before nor an equal score later: the earlier weights stay the best."""
    for name, scores in (("worse", [0.2, 0.1]), ("equal", [0.2, 0.2])):
        encoded.clear()
        run = Fitted(tmp_path / name, collection_folder, backbone, scores)
        assert sum(encoded) == 2 * 720
        assert not (tmp_path / name / "encodings").exists()
        run.test()
        run.test("last")
        run.test("best")
        assert sum(encoded) == 4 * 720, "each of its own weights"
        for entry in encodings_in_cache():
            entry.try_remove()


def test_a_cache_that_takes_nothing_does_not_end_a_training(
    tmp_path, collection_folder, backbone, monkeypatch, caplog
):
    def put(place, encoding):
        raise InputError("nothing can be in /cache")

    monkeypatch.setattr(EncodingsInCache, "put", put)
    Fitted(tmp_path / "run", collection_folder, backbone, [0.1])
    assert "encodes the corpus again: nothing can be in /cache" in caplog.text
    assert encodings_in_cache() == [] and not (tmp_path / "run/encodings").exists()
