"""The command line, in this process; what needs real processes is in test_checkpoints.py and
test_ranks.py.
"""

import csv
import math
import re
import shutil
import time

import pytest
import pytrec_eval
import torch
import yaml

from ltr.data.trec import read_qrels, read_run
from ltr.module import RankerModule
from ltr.run.wandb_place import has_wandb_key
from tests.run.kills import Child
from tests.world.commands import run_ltr
from tests.world.configurations import write_config
from tests.world.runs import losses, metrics


def test_fit_then_validate_and_test(config, tmp_path, collection_folder):
    run = tmp_path / "run"
    best_of_run = f"--config {run}/config.yaml --ckpt_path best"
    assert run_ltr(f"fit --config {config}") == 0
    fitted = metrics(run)
    assert [v["epoch"] for v in fitted["validations"]] == [0, 1]
    assert fitted["fit"]["steps"] == 16
    best = max(fitted["validations"], key=lambda v: v["nDCG@10"])
    assert best["nDCG@10"] > 0.6  # the tiny world can be learnt: chance is about 0.45
    assert (run / "train.log").read_text().count("tokenis") <= 2

    by_path = f"--config {run}/config.yaml --ckpt_path {run}/checkpoints/best.ckpt"
    assert run_ltr(f"validate {by_path}") == 0
    validated = metrics(run)["validate"]
    for name in ("nDCG@10", "RR@10", "AP", "swapped_pairs"):
        assert validated[name] == pytest.approx(best[name], abs=1e-6)
    assert "gain = grade" in validated["conventions"]["nDCG@10"]

    assert run_ltr(f"test {best_of_run}") == 0
    tested = metrics(run)["test"]
    qrels: dict = {}
    for _, j in read_qrels(collection_folder / "qrels/test.tsv"):
        qrels.setdefault(j.query, {})[j.doc] = int(j.grade)
    ranked: dict = {}
    for _, r in read_run(run / "test.run"):
        ranked.setdefault(r.query, {})[r.doc] = r.score
    oracle = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut_10", "map"}).evaluate(ranked)
    assert tested["queries"] == len(oracle) == 30
    for name, of_oracle in (("nDCG@10", "ndcg_cut_10"), ("AP", "map")):
        mean = sum(v[of_oracle] for v in oracle.values()) / 30
        assert tested[name] == pytest.approx(mean, abs=1e-6)
    per_query = {
        row["query"]: float(row["nDCG@10"])
        for row in csv.DictReader(open(run / "per_query.tsv"), delimiter="\t")
    }
    expected = {q: v["ndcg_cut_10"] for q, v in oracle.items()}
    assert per_query == pytest.approx(expected, abs=1e-6)

    assert run_ltr(f"predict {best_of_run}") == 0
    assert list(read_run(run / "predict.run")) == list(read_run(run / "test.run"))
    # A trial measures a part, and takes the place of nothing.
    names = ("metrics.json", "test.run", "per_query.tsv", "predict.run")
    results = {name: (run / name).read_bytes() for name in names}
    for command in ("test", "predict"):
        assert run_ltr(f"{command} {best_of_run} --trainer.fast_dev_run true") == 0
    assert results == {name: (run / name).read_bytes() for name in results}
    checkpoint = torch.load(run / "checkpoints/best.ckpt", weights_only=True)
    assert checkpoint["hyper_parameters"]["loss"]["class_path"] == "ltr.losses.SoftmaxLoss"
    module = RankerModule.load_from_checkpoint(run / "checkpoints/last.ckpt", weights_only=True)
    assert type(module.loss).__name__ == "SoftmaxLoss"
    assert module.lr == 0.01 and module.ranker.reads.max_length == 24


@pytest.mark.long
def test_one_seed_gives_one_loss_curve_and_another_seed_another(config, tmp_path):
    curves = []
    for number, seed in enumerate((3, 3, 4)):
        run = tmp_path / f"run{number}"
        options = ["--seed_everything", str(seed), "--trainer.default_root_dir", str(run)]
        assert run_ltr(f"fit --config {config}", *options) == 0
        curves.append(losses(run))
    assert len(curves[0]) == 16 and curves[0] == curves[1] != curves[2]


def test_config_files_layer_and_print_config_runs_nothing(config, tmp_path, capsys):
    layer = tmp_path / "layer.yaml"
    loss = {"class_path": "ltr.losses.RankNetLoss", "init_args": {"sigma": 2.0}}
    layer.write_text(yaml.safe_dump({"model": {"loss": loss}, "trainer": {"max_epochs": 7}}))
    layers = f"--config {config} --config {layer}"
    with pytest.raises(SystemExit) as stopped:
        run_ltr(f"fit {layers} --data.init_args.batch_size 5 --print_config")
    printed = yaml.safe_load(capsys.readouterr().out)
    assert stopped.value.code == 0 and not (tmp_path / "run").exists()
    assert printed["model"]["loss"]["init_args"]["sigma"] == 2.0 and printed["model"]["lr"] == 0.01
    assert printed["trainer"]["max_epochs"] == 7 and printed["data"]["init_args"]["batch_size"] == 5


def test_the_run_folder_is_named_by_experiment_and_seed(here, backbone, collection_folder):
    folder = here / "experiments/family"
    folder.mkdir(parents=True)
    changes = {"trainer.default_root_dir": None, "trainer.max_steps": 1}
    write_config(folder, backbone, collection_folder, **changes).rename(folder / "one.yaml")
    assert run_ltr("fit --config experiments/family/one.yaml --seed_everything 5") == 0
    run = here / "runs/family/one/seed=5"
    # A file of that name is no folder of experiments.
    (folder / "one.yaml").rename("experiments.yaml")
    assert run_ltr("fit --config experiments.yaml --seed_everything 5") == 0
    assert (here / "runs/experiments/seed=5/config.yaml").is_file()
    written = {"config.yaml", "checkpoints", "metrics.json", "logs", "train.log"}
    assert written <= {path.name for path in run.iterdir()}


@pytest.mark.long
def test_weights_and_biases_by_one_flag_and_offline_without_a_key(config, tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-such-netrc"))
    run = tmp_path / "run"
    assert run_ltr(f"fit --config {config} --trainer.max_steps 2 --wandb tests") == 0
    known = (run / "wandb/run-id").read_text()
    assert len(list((run / "wandb").glob(f"offline-run-*-{known}"))) == 1
    assert "no key found" in (run / "train.log").read_text()
    rows = csv.DictReader(open(run / "logs/version_0/metrics.csv"))
    (rate,) = [row["train/tokens_per_second"] for row in rows if row["train/tokens_per_second"]]
    assert float(rate) > 0
    logged = yaml.safe_load((run / "logs/version_0/hparams.yaml").read_text())
    assert logged["model"]["lr"] == 0.01 and logged["data"]["init_args"]["batch_size"] == 4

    time.sleep(1.1)  # folders are named by the second
    assert run_ltr(f"fit {run} --trainer.max_steps 4") == 0
    assert (run / "wandb/run-id").read_text() == known, "a resumed run is the same run there"
    assert len(list((run / "wandb").glob(f"offline-run-*-{known}"))) == 2


def test_a_key_is_found_where_wandb_keeps_it(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    file = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(file))
    assert not has_wandb_key()
    file.write_text("machine api.wandb.ai login user password abc\n")
    file.chmod(0o600)
    assert has_wandb_key()
    file.unlink()
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    assert has_wandb_key()


def test_training_without_a_dev_split(tmp_path, backbone, capsys):
    file = tmp_path / "train.tsv"
    file.write_text("".join(f"w{i} w5\tw{i} w{i}\tw{i + 1} w3\tw{i + 2} w4\n" for i in range(20)))
    config = write_config(tmp_path, backbone, file, **{"last.every_n_steps": 1000})
    run = tmp_path / "run"
    assert run_ltr(f"fit --config {config}") == 0
    last = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    assert last["global_step"] == metrics(run)["fit"]["steps"] == 10
    assert [file.name for file in (run / "checkpoints").iterdir()] == ["last.ckpt"]
    assert "last.ckpt has the weights" in capsys.readouterr().out
    (tmp_path / "test").mkdir()
    (tmp_path / "test/test.tsv").write_text(file.read_text())
    evaluation = "--data.evaluation.candidates bm25 --data.evaluation.depth 5"
    assert run_ltr(f"test {run} --data.path {tmp_path}/test {evaluation}") == 0
    assert "there is no best.ckpt; taking last.ckpt" in capsys.readouterr().err
    assert metrics(run)["test"]["checkpoint"].endswith("last.ckpt")


WITHOUT_VALIDATION = "--trainer.limit_val_batches 0"


def test_weights_that_diverged_pass_for_nothing(config, tmp_path, collection_folder, capsys):
    """Without a validation, nobody else sees it."""
    run = tmp_path / "run"
    output = tmp_path / "made"
    assert run_ltr(f"fit --config {config} --model.lr 1e30 {WITHOUT_VALIDATION}") == 2
    text = "the model has diverged; lower its learning rate (option model.lr)"
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line == f"ltr: training has made weights NaN or infinite: {text}"
    assert not list(run.rglob("*.ckpt"))
    assert run_ltr(f"fit --config {config} {WITHOUT_VALIDATION} --trainer.max_steps 3") == 0
    last = run / "checkpoints/last.ckpt"
    kept = torch.load(last, weights_only=True)
    kept["state_dict"]["ranker.head.weight"].fill_(math.nan)
    torch.save(kept, last)
    (tmp_path / "docs.txt").write_text("w1\nw2\n")
    for words in (
        f"predict {run}",
        f"rank {run} --query w1 --documents {tmp_path}/docs.txt",
        f"score {run} --data {collection_folder} --output {output}",
        f"export {run} {output}",
    ):
        assert run_ltr(words) == 2
        told = capsys.readouterr().err
        assert "NaN" in told and "the model has diverged" in told, words
    assert not (run / "predict.run").exists() and not output.exists()


def test_what_measures_nothing_is_no_measurement(copied_run, tmp_path, capsys):
    """The results on test are not those of a validation."""
    run = copied_run(tmp_path, "cross")
    for command, option in (("validate", "val"), ("test", "test")):
        assert run_ltr(f"{command} {run} --trainer.limit_test_batches 0 {WITHOUT_VALIDATION}") == 2
        text = f"ltr {command} must read batches to measure anything, and has read none; raise it"
        last_line = capsys.readouterr().err.splitlines()[-1]
        assert last_line == f"ltr: {text} (option trainer.limit_{option}_batches)"


def test_a_run_s_configuration_used_elsewhere_writes_there(copied_run, tmp_path):
    run = copied_run(tmp_path, "cross")
    before = (run / "checkpoints/last.ckpt").stat().st_mtime_ns
    elsewhere = f"--trainer.default_root_dir {tmp_path}/other --trainer.max_steps 3"
    assert run_ltr(f"fit --config {run}/config.yaml {elsewhere}") == 0
    assert (run / "checkpoints/last.ckpt").stat().st_mtime_ns == before
    assert (tmp_path / "other/checkpoints/last.ckpt").is_file()


def test_one_callback_needs_no_list(config):
    callback = "--trainer.callbacks ltr.callbacks.Health"
    assert run_ltr(f"fit --config {config} --trainer.max_steps 1 {callback}") == 0


def test_a_quiet_run_says_what_it_is_and_where_it_lies(config, tmp_path):
    """From start to end in a process without a terminal: few lines, no other product, no
    deprecations.
    """
    output = tmp_path / "output"
    assert Child(["fit", "--config", str(config)], output).end() == 0
    said = output.read_text()
    lines = said.strip().splitlines()
    assert len(lines) <= 9
    parameters = (
        r"training PairWiseBertRanker with SoftmaxLoss: [\d,]+ parameters, all trainable; cpu"
    )
    (of_model,) = [line for line in lines if re.match(parameters, line)]
    measured = r"nDCG@10 0\.\d{4}, RR@10 0\.\d{4}, AP 0\.\d{4}, swapped_pairs \d+\.\d{4}"
    row_0, first, second, last = lines[lines.index(of_model) + 1 :]
    assert re.fullmatch(f"before training, all of dev: {measured}", row_0)
    assert re.fullmatch(rf"step 8 of 16, epoch 1: loss \d\.\d+; dev: {measured}", first)
    assert re.fullmatch(rf"step 16 of 16, epoch 2: loss \d\.\d+; dev: {measured}", second)
    assert last.startswith("trained 16 steps in ")
    assert last.endswith(f"next: ltr test {tmp_path / 'run'}")
    noise = "litlogger|Tip|deprecat|warn|GPU available|total length|Total length|Sanity|v_num"
    for word in noise.split("|"):
        assert word not in said


ENDS = {
    "all splits": ((), "", "ltr test RUN"),
    "no test": (("test",), "", "ltr validate RUN"),
    "neither": (("dev", "test"), "", "ltr rank RUN --query WORDS --documents FILE"),
    "nothing evaluated": (
        (),
        "--data.evaluation.candidates null",
        "ltr test RUN --data.evaluation.candidates auto",
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_command_that_a_fit_names_last_works(case, config, tmp_path, collection_folder, capsys):
    without, options, next_command = ENDS[case]
    data = tmp_path / "data"
    shutil.copytree(collection_folder, data)
    for split in without:
        (data / f"qrels/{split}.tsv").unlink()
    assert run_ltr(f"fit --config {config} --trainer.max_steps 1 --data.path {data} {options}") == 0
    _, _, named = capsys.readouterr().out.splitlines()[-1].partition("; next: ")
    assert named == next_command.replace("RUN", str(tmp_path / "run"))
    (tmp_path / "texts.txt").write_text("w1 w2\n")
    words = named.removeprefix("ltr ").replace("FILE", str(tmp_path / "texts.txt"))
    assert run_ltr(words) == 0


def test_progress_without_a_terminal(config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ltr.data.progress.EVERY", 0.0)
    assert run_ltr(f"fit --config {config} --trainer.max_epochs 1") == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("step 4 of 8, epoch 1: ")]
    assert " steps/s, loss " in line and line.endswith(" of training left")
    assert line in (tmp_path / "run/train.log").read_text()
    assert run_ltr(f"test {tmp_path / 'run'}") == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("testing: 1 of ")]
    assert " batches/s, " in line and line.endswith(" left")
