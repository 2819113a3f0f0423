"""What a run says of its results: where it started, what was evaluated, and the ceiling of its
candidates."""

import json

import pandas as pd
import pytest
import torch

from ltr.__main__ import main
from ltr.checkpoint import FORMAT
from ltr.datamodules import FeatureDataModule, TripletDataModule
from ltr.models import DualEncoder
from ltr.run.checkpoint_options import BestOptions
from ltr.run.run_folder import RunFolder
from ltr.run.summary import made_worse_warning
from tests.run.interrupted import last_of
from tests.run.measured import results
from tests.world.collections import write_collection
from tests.world.data_modules import data_module
from tests.world.features import write_letor
from tests.world.runs import metrics

NDCG = "nDCG_exp@10"


def ltr(words: str) -> int:
    return main(words.split())


def test_the_start_is_measured_once_and_is_that_of_the_untrained_weights(config, tmp_path, capsys):
    run = tmp_path / "run"
    assert ltr(f"fit --config {config} --trainer.max_epochs 1 --trainer.logger true") == 0
    first = results(tmp_path)
    told = capsys.readouterr().out
    elsewhere = f"--trainer.default_root_dir {tmp_path / 'untrained'}"
    assert ltr(f"validate --config {config} {elsewhere}") == 0
    untrained = metrics(tmp_path / "untrained")["validate"]
    names = (NDCG, "swapped_pairs")
    assert first["start"] == {name: pytest.approx(untrained[name]) for name in names}
    (validation,) = first["validations"]
    assert validation["step"] == 6 and validation[NDCG] > first["start"][NDCG]
    assert f"({first['start'][NDCG]:.4f} before training)" in told
    header, row, *_ = (run / "logs/version_0/metrics.csv").read_text().splitlines()
    at = header.split(",").index(f"val/{NDCG}")
    assert float(row.split(",")[at]) == pytest.approx(first["start"][NDCG])
    capsys.readouterr()
    assert ltr(f"fit {run} --trainer.max_epochs 2") == 0
    assert results(tmp_path)["start"] == first["start"]
    assert "before training, all of dev" not in capsys.readouterr().out
    curves = pd.read_csv(run / "logs/version_1/metrics.csv").dropna(subset=f"val/{NDCG}")
    assert curves["step"].to_list() == [11], "of the second epoch, and none at step 0"


def test_where_nothing_is_trained_no_next_command_is_told(config, tmp_path, capsys):
    assert ltr(f"fit --config {config} --trainer.limit_train_batches 0") == 0
    assert capsys.readouterr().out.endswith("\nnothing was trained\n")
    assert ltr(f"test {tmp_path / 'run'}") == 2


def test_a_validation_has_the_seconds_of_training_until_then_over_all_resumes(config, tmp_path):
    """What is trained after the last validation is nothing, so its seconds are those of the fit."""
    assert ltr(f"fit --config {config}") == 0
    before = results(tmp_path)["validations"]
    assert ltr(f"fit {tmp_path / 'run'} --trainer.max_epochs 4") == 0
    after = results(tmp_path)
    assert after["validations"][: len(before)] == before
    seconds = [validation["seconds"] for validation in after["validations"]]
    assert seconds == sorted(set(seconds)) and seconds[0] > 0 and len(seconds) > len(before)
    # The checkpoint is written after the validation, so a little later.
    assert seconds[-1] == pytest.approx(after["fit"]["seconds"], rel=0.5)


def test_the_start_changes_nothing_and_may_be_left_out(config, tmp_path):
    outcomes = []
    for steps in ("-1", "0", "2"):  # 2: a sanity check of a part is no measurement
        run = tmp_path / f"run{steps}"
        options = f"--trainer.num_sanity_val_steps {steps} --trainer.default_root_dir {run}"
        assert ltr(f"fit --config {config} {options}") == 0
        found = metrics(run)
        assert ("start" in found) == (steps == "-1")
        for validation in found["validations"]:
            validation.pop("seconds")
        outcomes.append((found["validations"], [*last_of(run)["state_dict"].values()]))
    for validations, weights in outcomes[1:]:
        assert validations == outcomes[0][0]
        assert all(torch.equal(a, b) for a, b in zip(weights, outcomes[0][1], strict=True))


def test_a_run_that_begins_again_forgets_the_start_of_the_one_before(config, tmp_path):
    (tmp_path / "run").mkdir()
    before = {"format": FORMAT, "start": {NDCG: 0.99}}
    (tmp_path / "run/metrics.json").write_text(json.dumps(before))
    assert ltr(f"fit --config {config} --trainer.num_sanity_val_steps 0") == 0
    assert "start" not in results(tmp_path)


@pytest.mark.parametrize(
    ("monitor", "starts"),
    [(NDCG, {0.99: "worse", 0.1: "better"}), ("swapped_pairs", {0.0: "worse", 90.0: "better"})],
)
def test_a_training_that_made_it_worse_says_so(config, tmp_path, monitor, starts):
    """The best of the validations is compared with the start, in the direction of the metric."""
    options = f"--best.monitor val/{monitor} --trainer.max_epochs 1"
    assert ltr(f"fit --config {config} {options}") == 0
    run = RunFolder(tmp_path / "run")
    found = results(tmp_path)
    value = found["validations"][0][monitor]
    for start, expected in starts.items():
        run.metrics.write_text(json.dumps(found | {"start": {monitor: start}}))
        told = made_worse_warning(run, BestOptions(f"val/{monitor}"))
        if expected == "better":
            assert told is None
        else:
            line = f"the best val/{monitor} is {value:.4f}, and it started from {start:.4f}"
            assert line in told and "a third of model.lr" in told


def test_the_warning_is_seen(config, tmp_path, capsys):
    """Trained towards the opposite order, from weights that were trained before."""
    assert ltr(f"fit --config {config}") == 0
    file = tmp_path / "letor/train.txt"
    lines = [line.split(" ", 1) for line in file.read_text().splitlines()]
    file.write_text("".join(f"{2 - int(grade)} {rest}\n" for grade, rest in lines))
    capsys.readouterr()
    again = f"--trainer.default_root_dir {tmp_path / 'again'} --init_from {tmp_path / 'run'}"
    assert ltr(f"fit --config {config} {again}") == 0
    told = capsys.readouterr()
    assert f"training made the ranker worse: the best val/{NDCG}" in told.out + told.err


def digests(folder, backbone, split="test", **options):
    reads = DualEncoder(backbone, max_length=24).reads
    data = data_module(TripletDataModule, str(folder), reads=reads, **options)
    data.setup("test" if split == "test" else "validate")
    return data.evaluation_digests(split)


def test_what_was_evaluated_is_told_by_its_content(tmp_path, backbone):
    folder = write_collection(tmp_path / "one")
    base = digests(folder, backbone)
    assert digests(write_collection(tmp_path / "copy"), backbone, eval_batch_size=3) == base

    def changed(*args, **options):
        other = digests(*args, **options)
        assert other.keys() == base.keys()
        return {name for name in base if other[name] != base[name]}

    assert changed(folder, backbone, "dev") == {"judgements", "candidates"}
    assert changed(folder, backbone, depth=5) == {"candidates"}
    assert changed(folder, backbone, candidates="corpus", depth=5) == {"candidates"}
    other = write_collection(tmp_path / "judged")
    qrels = other / "qrels/test.tsv"
    qrels.write_text(qrels.read_text().replace("test-q4-d0\t1", "test-q4-d0\t2"))
    assert changed(other, backbone) == {"judgements"}
    other = write_collection(tmp_path / "text")
    corpus = other / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace("w4 w4 w4", "w4 w4 w5", 1))
    assert changed(other, backbone) == {"documents"}


def test_features_that_were_evaluated(tmp_path):
    def digest(folder, **options):
        data = data_module(FeatureDataModule, str(folder), **options)
        data.setup("test")
        return data.evaluation_digests("test")

    base = digest(write_letor(tmp_path / "one"))
    assert digest(write_letor(tmp_path / "copy"), eval_batch_size=2) == base
    assert digest(write_letor(tmp_path / "other", seed=1)) != base
