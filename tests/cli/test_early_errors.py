"""What options, headers of files and judgements tell is refused before any text is tokenised."""

import shutil

import pytest

from ltr.data.tokens import Tokens, TokenStore
from tests.world.collections import write_collection
from tests.world.commands import refusal, run_ltr
from tests.world.configurations import write_config


@pytest.fixture
def tokenised(monkeypatch) -> list[str]:
    """How texts were tokenised, or their tokens looked for."""
    calls: list[str] = []
    store = TokenStore.open
    from_texts = Tokens.from_texts
    monkeypatch.setattr(TokenStore, "open", lambda *a: calls.append("store") or store(*a))
    monkeypatch.setattr(Tokens, "from_texts", lambda *a: calls.append("texts") or from_texts(*a))
    return calls


@pytest.fixture(scope="module")
def world(tmp_path_factory, backbone):
    """A folder without pools, the scores of a teacher and negatives of another collection, and
    configurations.
    """
    place = tmp_path_factory.mktemp("early")
    data = write_collection(place / "data", n_queries=6)
    other = write_collection(place / "other", n_queries=5, seed=1)
    shutil.rmtree(data / "candidates")
    lines = (data / "qrels/train.tsv").read_text().replace("d0\t1", "d0\t0.7")
    (place / "soft").mkdir()
    shutil.copytree(data, place / "soft", dirs_exist_ok=True)
    (place / "soft/qrels/train.tsv").write_text(lines)
    shutil.copytree(data, place / "unjudged")
    (place / "unjudged/qrels/train.tsv").write_text("train-q0\ttrain-q0-d0\t0\n")
    write_config(place, backbone, data).rename(place / "cross.yaml")
    dual = {"class_path": "ltr.models.DualEncoder", "init_args": {"backbone": backbone}}
    write_config(place, backbone, data, **{"model.ranker": dual}).rename(place / "dual.yaml")
    groups = {"path": str(data), "groups": 4}
    groups_of = {"class_path": "ltr.datamodules.GroupDataModule", "init_args": groups}
    changes = {"model.ranker": dual, "data": groups_of}
    write_config(place, backbone, data, **changes).rename(place / "groups.yaml")
    lists = {"class_path": "ltr.datamodules.ListDataModule", "init_args": {"path": str(data)}}
    write_config(place, backbone, data, data=lists).rename(place / "lists.yaml")
    labelled = {"path": str(place / "labelled"), "groups": 2, "docs_per_group": 2}
    labels = {"class_path": "ltr.datamodules.LabelDataModule", "init_args": labelled}
    changes = {"model.ranker": dual, "data": labels, "model.in_batch": "AllTexts"}
    write_config(place, backbone, data, **changes).rename(place / "labels.yaml")
    (place / "labelled").mkdir()
    (place / "labelled/train.tsv").write_text("w1\ta\nw2\ta\nw3\tb\nw4\tb\n")
    for name, grades in (("one-grade", (1, 1)), ("relevant", (1, 2))):
        shutil.copytree(data, place / name)
        lines = [f"train-q0\ttrain-q0-d{number}\t{grade}\n" for number, grade in enumerate(grades)]
        (place / name / "qrels/train.tsv").write_text("".join(lines))
        (place / name / "qrels/dev.tsv").unlink()
    (place / "one-grade/candidates").mkdir()
    (place / "one-grade/candidates/train.trec").write_text("train-q0 Q0 train-q0-d0 1 1 pool\n")
    (place / "few.tsv").write_text("query-id\tdoc-id\tscore\ntrain-q0\ttrain-q0-d0\t0.5\n")
    run = [f"--trainer.default_root_dir {place / 'teacher'} --trainer.max_epochs 1"]
    assert run_ltr(f"fit --config {place / 'dual.yaml'} --data.path {other} {run[0]}") == 0
    teacher = place / "teacher"
    for folder, name in ((data, "scores"), (other, "other-scores")):
        assert run_ltr(f"score {teacher} --data {folder} --output {place / name}") == 0
    assert run_ltr(f"mine {teacher} --output {place / 'other-negatives'}") == 0
    return place


CASES = {
    "a loss that takes no scores": (
        "cross --model.loss SoftmaxLoss --data.labels.scores PLACE/scores",
        "SoftmaxLoss takes grades as labels, and they are scores",
    ),
    "a loss that takes no soft labels": (
        "cross --model.loss SoftmaxLoss --data.path PLACE/soft",
        "SoftmaxLoss takes every label above 0 for relevant",
    ),
    "a margin beyond the scores": (
        "cross --model.loss MarginRankingLoss --model.transform sigmoid",
        "asks for a gap of 1, which none can reach",
    ),
    "groups that are ranked alone": ("groups", "must be ranked against each other; set in_batch"),
    "groups for a cross-encoder": (
        "groups --model.ranker PairWiseBertRanker --model.ranker.max_length 24",
        "a cross-encoder can't learn from groups",
    ),
    "a search by a cross-encoder": (
        "cross --data.evaluation.candidates corpus --data.evaluation.depth 5",
        "only a dual encoder can search the corpus",
    ),
    "a search without a depth": (
        "dual --data.evaluation.candidates corpus",
        "candidates 'corpus' need a depth",
    ),
    "a depth of 0": ("cross --data.negatives_depth 0", "negatives_depth must be at least 1"),
    "negatives of pools": (
        "cross --data.negatives candidates",
        "there are no candidates for the split 'train'; add candidates/train.trec",
    ),
    "pools of dev": (
        "cross --data.evaluation.candidates candidates",
        "there are no candidates for the split 'dev'; add candidates/dev.trec",
    ),
    "negatives in no folder": (
        "cross --data.negatives PLACE/nowhere",
        "there is no manifest.json",
    ),
    "negatives of another collection": (
        "cross --data.negatives PLACE/other-negatives",
        "these negatives were made of another collection",
    ),
    "scores in no folder": (
        "cross --model.loss MSELoss --data.labels.scores PLACE/nowhere",
        "scores must be a folder",
    ),
    "scores of another collection": (
        "cross --model.loss MSELoss --data.labels.scores PLACE/other-scores",
        "these scores were made of another collection",
    ),
    "nothing relevant": (
        "cross --data.path PLACE/unjudged",
        "there is nothing to learn from",
    ),
    "another measure": (
        "cross --best.monitor val/nDCG@7",
        "best.monitor must be one of the measures val/nDCG@10",
    ),
    "a search that ends before a measure": (
        "dual --data.evaluation.candidates corpus --data.evaluation.depth 5",
        "the search must go as deep as the metrics look, got a depth of 5 for nDCG@10, RR@10",
    ),
    "an index of more clusters than documents": (
        "dual --data.evaluation.candidates corpus --data.evaluation.depth 20"
        " --data.evaluation.index IVF145,Flat",
        "the 145 clusters of 'IVF145,Flat' can't be more than the 144 documents",
    ),
    "documents of one grade": (
        "lists --data.path PLACE/one-grade --data.unjudged skip",
        "no query has two documents of different grades; there is nothing to rank",
    ),
    "lists without anything irrelevant": (
        "lists --data.path PLACE/relevant --data.unjudged skip",
        "none of the 1 training lists has both",
    ),
    "nothing to rank below": (
        "cross --data.path PLACE/one-grade --data.negatives candidates",
        "no query has a document to rank below its relevant ones",
    ),
    "scores of few": (
        "lists --model.loss MSELoss --data.labels.scores PLACE/few.tsv",
        "pairs have no score, first document",
    ),
    "a group that is alone": (
        "groups --data.path PLACE/relevant --model.in_batch OtherQueries",
        "a batch needs at least 2 queries, to be told from each other; got 1",
    ),
    "more groups than labels": (
        "labels --data.groups 3",
        "groups must be at most 2, the labels with two texts or more, got 3",
    ),
    "labels without queries": (
        "labels --model.in_batch OtherQueries",
        "groups of labelled texts have no queries; set in_batch to ltr.in_batch.AllTexts",
    ),
    "texts without queries under two prompts": (
        "labels --model.ranker.query_prompt ask",
        "texts without queries are read with one prompt, but the ranker has two",
    ),
    "distances of what was not mined": (
        "cross --model.loss MarginRankingLoss --model.margin FromDistance",
        "the margin needs the distances of mined negatives",
    ),
    "mining by what can't search": (
        "cross --trainer.callbacks HardNegativeMining",
        "HardNegativeMining searches with a dual encoder, and PairWiseBertRanker is none",
    ),
    "an index of mining that faiss has not": (
        "dual --trainer.callbacks HardNegativeMining --trainer.callbacks.recipe.index IVF145,Flat",
        "HardNegativeMining recipe.index: the 145 clusters of 'IVF145,Flat' can't be more",
    ),
    "a stage that changes nothing it knows": (
        "cross --trainer.callbacks LossSchedule"
        " --trainer.callbacks.changes '[{epoch: 1, options: {nothing: 1}}]'",
        "LossSchedule: changes[0]: options.nothing is unknown",
    ),
    "other data": ("cross --data.path PLACE/nowhere", "there is no such data folder or file"),
}


# One of options alone, of the rankers, of the files of a folder, of another collection, of the
# judgements, of a search, and of a callback.
EVERY_DAY = {
    "a depth of 0",
    "a search by a cross-encoder",
    "pools of dev",
    "negatives of another collection",
    "scores of few",
    "nothing relevant",
    "labels without queries",
    "an index of more clusters than documents",
    "mining by what can't search",
    "other data",
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.long] * (case not in EVERY_DAY)) for case in CASES],
)
def test_nothing_is_tokenised_before(case, world, capsys, tokenised, tmp_path):
    words, message = CASES[case]
    name, _, options = words.replace("PLACE", str(world)).partition(" ")
    run = f"--trainer.default_root_dir {tmp_path / 'run'}"
    assert run_ltr(f"fit --config {world / name}.yaml {options} {run}") == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert message in told, told
    assert tokenised == []


def test_what_fits_is_tokenised(world, tokenised, tmp_path):
    """That the counter counts."""
    run = f"--trainer.default_root_dir {tmp_path / 'run'} --trainer.max_steps 1"
    assert run_ltr(f"fit --config {world / 'cross.yaml'} {run}") == 0
    assert "store" in tokenised


def test_a_resume_with_other_data_is_refused_as_early(world, capsys, tokenised):
    words = f"fit {world / 'teacher'} --data.path {world / 'data'} --trainer.max_epochs 2"
    told = refusal(capsys, words)
    assert "the checkpoint was trained on other documents and other judgements and other n" in told
    assert "resume with the data of the run" in told
    assert tokenised == []


@pytest.mark.parametrize(
    "command",
    ["test", *(pytest.param(name, marks=pytest.mark.long) for name in ("validate", "predict"))],
)
def test_measuring_is_refused_as_early(command, world, capsys, tokenised):
    options = f"--data.path {world / 'data'} --data.evaluation.candidates candidates"
    told = refusal(capsys, f"{command} {world / 'teacher'} {options}")
    assert "there are no candidates for the split" in told
    search = "--data.evaluation.candidates corpus --data.evaluation.depth 5"
    told = refusal(capsys, f"{command} {world / 'teacher'} {search}")
    assert "the search must go as deep as the metrics look" in told
    assert tokenised == []


USES = {
    "validate PLACE/teacher --data.path PLACE/relevant": "no judgements for the split 'dev'",
    "mine PLACE/teacher --data.path PLACE/relevant --split dev": "no judgements for the split 'dev'",
    "mine PLACE/teacher --recipe.index IVF145,Flat": "recipe.index: the 145 clusters of",
    "mine PLACE/teacher --output PLACE/soft": "must be a new folder, and is there already",
    "check PLACE/teacher --run PLACE/nowhere.trec": "nowhere.trec",
    "check PLACE/teacher --trained_on PLACE/nowhere": "there is no such data folder or file",
    "score PLACE/teacher --data PLACE/relevant --output PLACE/new --split dev": "no judgements for",
    "rank PLACE/teacher --run PLACE/nowhere.trec --data PLACE/data --output PLACE/new": "nowhere.trec",
}


@pytest.mark.parametrize("line", USES)
def test_use_is_refused_as_early(line, world, capsys, tokenised):
    told = refusal(capsys, line.replace("PLACE", str(world)))
    assert USES[line] in told
    assert tokenised == []
    assert not (world / "new").exists()
