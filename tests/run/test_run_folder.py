"""The folder of a run: its owner, its checkpoints by name, and what a checkpoint may be."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from torch import distributed

from ltr.__main__ import main
from ltr.checkpoint import write_checkpoint
from ltr.errors import InputError
from ltr.module import RankerModule
from ltr.run import run_folder
from ltr.run.checkpoints import Checkpoints
from ltr.run.provenance import _command
from ltr.run.run_folder import RunFolder, run_of_checkpoint
from tests.child_processes import run_ranks
from tests.run.resumes import configured
from tests.world.features import write_letor
from tests.world.runs import trained_on_texts


@pytest.fixture(scope="session")
def common_world(tmp_path_factory) -> Path:
    """Data, and runs that several tests begin with: they are only copied."""
    folder = tmp_path_factory.mktemp("runs")
    write_letor(folder / "letor")
    file = folder / "variant.yaml"
    file.write_text(yaml.safe_dump(configured({"trainer.max_epochs": 2}, folder)))
    return folder


@pytest.fixture
def config(common_world, tmp_path, monkeypatch) -> Path:
    """6 steps an epoch; the working directory is empty, with the data beside it."""
    shutil.copytree(common_world / "letor", tmp_path / "letor")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return common_world / "variant.yaml"


SAME_RATE = "--model.warmup 0 --model.decay false"
ALL_KEPT = "--trainer.max_epochs 4 --best.save_top_k -1"
ONLY_WEIGHTS = "--best.save_weights_only true --last.every_n_steps 500"


def begin_with(config: Path, run: str, options: str = "", tested: bool = False) -> None:
    """A finished run with these options, trained once for all tests."""
    trained = config.with_name(f"run {options} {tested}".replace("/", "-"))
    if not trained.exists():
        assert fit(config, trained, options) == 0
        assert not tested or main(["test", str(trained)]) == 0
    shutil.copytree(trained, run)


def fit(config: Path, run: str | Path, options: str = "") -> int:
    words = ["fit", "--config", str(config), "--trainer.default_root_dir", str(run)]
    return main([*words, *options.split()])


def ltr(words: str) -> int:
    """The exit code of a command."""
    return main(words.split())


def metrics(run: str | Path) -> dict:
    return json.loads(Path(run, "metrics.json").read_text())


def steps_of(run: str) -> int:
    return metrics(run)["fit"]["steps"]


def scores_of(run: str, name: str = "nDCG_exp@10") -> dict[int, float]:
    """A metric of each validation by its step."""
    return {one["step"]: one[name] for one in metrics(run)["validations"]}


def best_first(scores: dict[int, float]) -> list[int]:
    """Steps; of equal scores the earliest."""
    return sorted(scores, key=lambda step: (-scores[step], step))


def loaded(run: str, name: str = "last") -> dict:
    return torch.load(Path(run, f"checkpoints/{name}.ckpt"), weights_only=True)


def have_same_weights(run: str, other: str, name: str = "last", other_name: str = "last") -> bool:
    weights = loaded(run, name)["state_dict"]
    others = loaded(other, other_name)["state_dict"]
    return weights.keys() == others.keys() and all(
        torch.equal(weight, others[key]) for key, weight in weights.items()
    )


def files(run: str) -> dict[str, bytes]:
    """All but the log, which every command writes to."""
    return {
        str(file): file.read_bytes()
        for file in sorted(Path(run).rglob("*"))
        if file.is_file() and file.name != "train.log"
    }


def told(capsys) -> str:
    return capsys.readouterr().err.strip().splitlines()[-1]


# Owner


def test_a_folder_has_one_command_at_a_time(config, capsys):
    """Else a test that has begun before new weights are saved would leave the results of the old
    ones beside them.
    """
    with RunFolder("run").owned():
        assert fit(config, "run") == 2
        assert "another command is running in this folder" in told(capsys)
    assert fit(config, "run") == 0
    before = files("run")
    with RunFolder("run").owned():
        for command in ("validate", "test", "predict"):
            assert ltr(f"{command} run") == 2
            assert "another command is running in this folder" in told(capsys)
        assert ltr("test run --trainer.default_root_dir other") == 0
    assert files("run") == before and Path("other/test.run").is_file()


def test_new_weights_are_not_saved_while_others_are_measured(config, monkeypatch):
    from ltr.run.results import ResultsWriter

    begin_with(config, "run")
    codes = []
    measured = ResultsWriter.on_test_end

    def on_test_end(writer, *args) -> None:
        codes.append(ltr("fit run --trainer.max_epochs 3"))
        measured(writer, *args)

    monkeypatch.setattr(ResultsWriter, "on_test_end", on_test_end)
    assert ltr("test run") == 0 and codes == [2]
    assert Path("run/test.run").is_file() and steps_of("run") == 12
    assert ltr("fit run --trainer.max_epochs 3") == 0
    assert not Path("run/test.run").exists() and not Path("run/per_query.tsv").exists()


def test_a_failed_start_leaves_nothing(config):
    Path("old").mkdir()
    Path("mine").mkdir()
    Path("mine/note").write_text("mine")
    for run in ("run", "old/new/run", "mine"):
        assert fit(config, run, "--data.path nowhere") == 2
    assert not Path("run").exists()
    assert Path("old").exists() and not Path("old/new").exists()
    assert Path("mine/note").exists()


@pytest.mark.parametrize("logging", [(), ("--wandb", "tests")], ids=["csv", "wandb"])
def test_a_start_that_fails_in_the_setup_leaves_nothing(
    tmp_path, collection_folder, backbone, logging
):
    """The loggers have made their folders by then."""
    options = ("--data.negatives", str(tmp_path / "nowhere"), "--trainer.logger", "null", *logging)
    with pytest.raises(AssertionError):
        trained_on_texts(tmp_path / "new", "cross", collection_folder, backbone, *options)
    assert not (tmp_path / "new/run").exists()


def test_only_the_run_of_wandb_that_failed_before_training_is_removed(tmp_path):
    """A command of an old run, in which another one of wandb lies."""
    run = RunFolder(tmp_path / "run")
    (run.wandb / "offline-run-1").mkdir(parents=True)
    latest = run.wandb / "latest-run"
    latest.symlink_to("offline-run-1")

    def start(begins: bool) -> None:
        with run.owned():
            (run.wandb / "offline-run-2").mkdir()
            (run.wandb / "run-id").write_text("2")
            latest.unlink(missing_ok=True)
            latest.symlink_to("offline-run-2")
            if begins:
                run.metrics.write_text("{}")
            raise InputError("refused")

    with pytest.raises(InputError):
        start(begins=False)
    assert [file.name for file in run.wandb.iterdir()] == ["offline-run-1"], "no dangling link"
    with pytest.raises(InputError):
        start(begins=True)
    assert len(list(run.wandb.iterdir())) == 4 and latest.is_dir()


def test_only_the_curves_of_a_failed_start_are_removed(tmp_path):
    run = RunFolder(tmp_path / "run")
    (run.curves / "version_0").mkdir(parents=True)
    (run.curves / "version_0/metrics.csv").write_text("step\n1\n")

    def start() -> None:
        with run.owned():
            (run.curves / "version_1").mkdir()
            (run.curves / "version_2").mkdir()
            (run.curves / "version_2/metrics.csv").write_text("step\n2\n")
            raise InputError("refused")

    with pytest.raises(InputError):
        start()
    assert sorted(folder.name for folder in run.curves.iterdir()) == ["version_0", "version_2"]


def test_a_checkpoint_of_another_run_does_not_enter_a_folder_that_holds_one(config, capsys):
    begin_with(config, "a")
    begin_with(config, "b", "--seed_everything 4", tested=True)
    before = files("b")
    of_a = "--ckpt_path a/checkpoints/last.ckpt"
    for run, options, line in (
        ("b", "", "already holds a run; resume it (ltr fit b)"),
        ("b", f"{of_a} --trainer.max_epochs 3", "is not of the run in b"),
        ("c", of_a, "12 steps, so nothing is left to train; to start a new run from its weights,"),
    ):
        assert fit(config, run, options) == 2
        assert line in told(capsys)
    assert files("b") == before and not Path("c").exists()


def test_a_folder_that_can_t_be_written_to(config, capsys):
    """As root everything may be written to, but nothing lies below a file, nor in /proc."""
    begin_with(config, "run")
    Path("file").touch()
    place = Path("file/out").absolute()
    line = (
        f"ltr: --trainer.default_root_dir must lie in a folder, got {place}, "
        f"and {place.parent} is a file;"
    )
    for command in ("fit", "test", "validate", "predict"):
        more = "--trainer.max_epochs 3" if command == "fit" else ""
        assert ltr(f"{command} run {more} --trainer.default_root_dir {place}") == 2
        assert told(capsys).startswith(line)
        # As it says:
        assert ltr(f"{command} run {more} --trainer.default_root_dir other-{command}") == 0


def test_a_trial_saves_nothing_and_replaces_nothing(config):
    trial = "--trainer.fast_dev_run true"
    assert fit(config, "run", trial) == 0
    assert {file.name for file in Path("run").iterdir()} <= {".lock", "train.log"}
    assert fit(config, "run") == ltr("test run") == 0
    before = files("run")
    assert ltr(f"test run {trial}") == 0 and fit(config, "run", trial) == 2
    assert files("run") == before


# Names


def test_the_short_form_takes_configuration_and_checkpoint(config):
    begin_with(config, "run", tested=True)
    assert ltr("validate run") == ltr("predict run") == 0
    for command in ("test", "validate"):
        assert Path(metrics("run")[command]["checkpoint"]).name == "best.ckpt"
    assert ltr("test run --ckpt_path last") == 0
    assert metrics("run")["test"]["checkpoint"].endswith("last.ckpt")
    assert Path("run/predict.run").is_file()


def test_the_long_form_finds_the_folder_of_a_configuration(config, monkeypatch):
    begin_with(config, "run")
    file = Path("run/config.yaml").absolute()
    monkeypatch.chdir("/")
    assert ltr(f"test --config {file} --ckpt_path best") == 0
    assert (file.parent / "test.run").is_file()


def test_a_relative_data_path_counts_from_where_the_run_was_started(config, tmp_path, monkeypatch):
    """Also where it goes on in another folder."""
    run = tmp_path / "run"
    assert fit(config, run, "--data.path ../letor") == 0
    (tmp_path / "deep/er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep/er")
    other = write_letor(Path("../letor"), n_queries=7)  # of this name, and not the run's
    assert ltr(f"test {run}") == 0 and metrics(run)["test"]["queries"] == 24
    shutil.rmtree(other)
    more = f"--trainer.max_epochs 3 --trainer.default_root_dir {tmp_path / 'b'}"
    assert ltr(f"fit {run} {more}") == ltr(f"test {tmp_path / 'b'}") == 0
    assert list(Path().iterdir()) == []
    shutil.move(tmp_path / "letor", tmp_path / "moved")
    assert ltr(f"test {run} --data.path ../../moved") == 0


def test_a_layer_follows_a_run(config):
    begin_with(config, "run")
    Path("layer.yaml").write_text("trainer: {max_epochs: 3}")
    assert ltr("fit run --config layer.yaml") == 0 and steps_of("run") == 18
    assert not Path("runs").exists()


def test_a_run_without_a_checkpoint_begins_again_in_its_folder(config):
    begin_with(config, "run")
    shutil.rmtree("run/checkpoints")
    assert ltr("fit run") == 0 and steps_of("run") == 12
    assert not Path("runs").exists()


def test_a_refused_resume_leaves_the_configuration(config):
    begin_with(config, "run")
    before = files("run")
    for options in (
        "--data.batch_size 8",
        "--trainer.val_check_interval 100",
        "--trainer.precision bf16-true",
        "--data.path nowhere",
    ):
        assert ltr(f"fit run --trainer.max_epochs 3 {options}") == 2
    assert files("run") == before


def test_weights_that_no_run_resumes_from_are_not_overwritten(config, capsys):
    begin_with(config, "run", ONLY_WEIGHTS)
    Path("run/checkpoints/last.ckpt").unlink()
    assert ltr("fit run --trainer.max_epochs 4") == 2
    assert "run holds weights that no run can resume from" in told(capsys)


def test_a_run_that_keeps_weights_only_resumes_from_its_first_best(config, monkeypatch):
    """Killed after writing best.ckpt and before the first last.ckpt: best.ckpt is still whole."""
    begin_with(config, "whole", ONLY_WEIGHTS)
    assert "optimizer_states" not in loaded("whole", "best")
    replace = os.replace

    def killed_before_last(file, target):
        if Path(target).name == "last.ckpt":
            raise KeyboardInterrupt
        replace(file, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed_before_last)
        assert fit(config, "run", ONLY_WEIGHTS) == 130
    assert [file.name for file in Path("run/checkpoints").glob("*.ckpt")] == ["best.ckpt"]
    assert ltr("fit run") == 0
    for name in ("best", "last"):
        ours = loaded("run", name)
        others = loaded("whole", name)
        assert ours["global_step"] == others["global_step"] and ours.keys() == others.keys()
        assert have_same_weights("run", "whole", name, name)


def test_no_best_weights_are_kept_without_a_monitor(config, capsys):
    assert fit(config, "run", "--best.monitor null") == 0
    assert not Path("run/checkpoints/best.ckpt").exists()
    said = capsys.readouterr().out
    assert "trained 12 steps" in said and "last.ckpt has the weights" in said
    assert ltr("test run") == 0


def test_a_folder_that_holds_no_run(config, capsys):
    for command in ("fit", "test"):
        assert ltr(f"{command} nowhere") == 2
        line = "nowhere must be a run folder, but there is no nowhere/config.yaml"
        assert line in told(capsys) and not Path("nowhere").exists()


def test_best_where_nothing_was_trained(config, capsys):
    options = "--trainer.default_root_dir run --ckpt_path best"
    assert ltr(f"test --config {config} {options}") == 2
    best = Path("run/checkpoints/best.ckpt").absolute()
    assert f"there is no {best}; train first" in told(capsys)
    assert not Path("run").exists()


def test_last_begins_a_run_where_none_is(config):
    """So that the command of a job script is the same the first time and every other time."""
    assert fit(config, "run", "--ckpt_path last") == 0 and steps_of("run") == 12


def test_killed_between_the_two_files_of_the_first_validation(config):
    begin_with(config, "run", f"--trainer.max_epochs 1 {SAME_RATE}")
    begin_with(config, "whole", SAME_RATE)
    Path("run/checkpoints/last.ckpt").unlink()
    assert fit(config, "run", f"--ckpt_path last {SAME_RATE}") == 0
    assert have_same_weights("run", "whole")


def test_a_checkpoint_lies_in_a_run_from_wherever_it_is_named(tmp_path, monkeypatch):
    run = tmp_path / "runs/a"
    (run / "checkpoints").mkdir(parents=True)
    for directory, name in (
        (tmp_path, "runs/a/checkpoints/best.ckpt"),
        (run, "checkpoints/best.ckpt"),
        (run / "checkpoints", "best.ckpt"),
    ):
        monkeypatch.chdir(directory)
        assert run_of_checkpoint(Path(name)).path == run
    assert run_of_checkpoint(Path("/best.ckpt")) is None


def test_a_second_name_leaves_no_other_file(tmp_path, monkeypatch):
    """Not where it is there already, and not where the copy of a disk without links fails."""
    file = tmp_path / "best.ckpt"
    file.write_text("weights")
    second = tmp_path / "last.ckpt"
    run_folder.link_or_copy(file, second)
    run_folder.link_or_copy(file, second)
    assert second.samefile(file) and sorted(tmp_path.iterdir()) == [file, second]

    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr("os.link", fail)
    monkeypatch.setattr("shutil.copyfile", lambda _, to: to.write_text("wei") and fail())
    with pytest.raises(OSError, match="the disk is full"):
        run_folder.link_or_copy(file, tmp_path / "step=1.ckpt")
    assert sorted(tmp_path.iterdir()) == [file, second]


def test_what_lies_in_a_run_is_of_its_experiment():
    """The run files of all that was measured have one tag."""
    run = RunFolder("runs/a/seed=0")
    of_set = run.folder_of_set("b")
    for folder in (run, of_set, run.folder_of_split("dev"), of_set.folder_of_split("dev")):
        assert folder.experiment() == "a"
    assert RunFolder("run").folder_of_split("dev").experiment() == ""


def test_what_made_a_result_is_a_command_that_makes_it_again():
    run = RunFolder("runs/a b")
    of_set = run.folder_of_set("x")
    for folder, options in (
        (run, ""),
        (run.folder_of_split("dev"), " --split dev"),
        (of_set, " --data.path sets/x"),
        (of_set.folder_of_split("dev"), " --data.path sets/x --split dev"),
    ):
        assert _command(folder, "sets/x") == f"ltr test 'runs/a b'{options}"


def test_the_steps_that_are_kept_are_those_of_files_with_a_number(tmp_path):
    run = RunFolder(tmp_path)
    run.checkpoints.mkdir()
    for name in ("step=20.ckpt", "step=3.ckpt", "step=x.ckpt", "best.ckpt", ".step=4.ckpt.tmp"):
        (run.checkpoints / name).touch()
    assert run.kept_steps() == [3, 20]


class _Clock:
    """A clock of its own: epochs of 50 s, and 10 s for each checkpoint."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.written = []
        epoch = RankerModule.on_train_epoch_start

        def saving(checkpoint, file):
            self.now += 10
            self.written.append(checkpoint["global_step"])
            write_checkpoint(checkpoint, file)

        def beginning(module):
            self.now += 50
            epoch(module)

        patch.setattr("ltr.run.checkpoints.time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr("ltr.run.checkpoints.write_checkpoint", saving)
        patch.setattr(RankerModule, "on_train_epoch_start", beginning)


LONG = "--last.every_n_steps 500"
NO_VALIDATION = "--trainer.limit_val_batches 0 --trainer.max_epochs 10"


def test_short_epochs_share_a_checkpoint(config, monkeypatch):
    """Six steps an epoch. The first is written from 50 s to 60 s, so that the next is due 200 s
    after 50 s: at 260 s, after the fifth epoch, until 270 s; then 200 s after 260 s, at 470 s,
    after the ninth; and the end.
    """
    clock = _Clock(monkeypatch)
    assert fit(config, "run", f"{NO_VALIDATION} {LONG}") == 0
    assert clock.written == [6, 30, 54, 60] and loaded("run")["global_step"] == 60


def test_a_checkpoint_that_was_asked_for_is_written(config, monkeypatch):
    """Every 12 steps is the end of every second epoch; none but these and the first is written."""
    clock = _Clock(monkeypatch)
    assert fit(config, "run", f"{NO_VALIDATION} --last.every_n_steps 12") == 0
    assert clock.written == [6, 12, 24, 36, 48, 60]


def test_new_best_weights_are_written_at_once(config, monkeypatch):
    def note_score(checkpoints, trainer):
        checkpoints._best_is_due = trainer.global_step in (12, 24)

    clock = _Clock(monkeypatch)
    monkeypatch.setattr(Checkpoints, "_note_score", note_score)
    monkeypatch.setattr(Checkpoints, "_keep_best", lambda *_: None)
    assert fit(config, "run", f"--trainer.max_epochs 6 {LONG}") == 0
    assert clock.written == [6, 12, 24, 36]


# A finished run


def says_and_changes_nothing(capsys, line: str) -> None:
    before = files("run")
    capsys.readouterr()
    assert ltr("fit run") == 0
    assert line in capsys.readouterr().out
    assert files("run") == before


def test_nothing_to_do_changes_nothing(config, capsys):
    begin_with(config, "run", tested=True)
    before = files("run")
    done = "the run has done its 2 epochs (trainer.max_epochs), 12 steps"
    says_and_changes_nothing(capsys, f"{done}; nothing to do, nothing changed")
    assert fit(config, "run", "--ckpt_path last") == 0
    assert files("run") == before


def test_a_run_whose_time_is_used_up_says_so_and_trains_on_with_more(config, capsys):
    limits = "--trainer.max_epochs 100000 --trainer.max_time 00:00:00:01"
    assert fit(config, "run", limits) == 0
    step = steps_of("run")
    assert step == loaded("run")["global_step"] > 0
    line = f"the run has used up its time at step {step} (trainer.max_time 00:00:00:01; give it "
    says_and_changes_nothing(capsys, f"{line}more")
    more = f"--trainer.max_time 00:00:01:00 --trainer.max_steps {step + 2}"
    assert ltr(f"fit run {more}") == 0
    assert steps_of("run") == step + 2


def test_a_run_that_was_stopped_early_stays_stopped(config, capsys):
    early = (
        "--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping "
        "--trainer.callbacks.monitor=val/nDCG_exp@10 --trainer.callbacks.mode=max "
        "--trainer.callbacks.stopping_threshold=0.0"
    )
    assert fit(config, "run", early) == 0 and steps_of("run") == 6
    line = "the run was stopped early at step 6; nothing to do, nothing changed"
    says_and_changes_nothing(capsys, line)


def test_more_epochs(config):
    """Results stay until there are new weights; seconds add up; the schedule is that of the new
    length.
    """
    begin_with(config, "run", tested=True)
    first = metrics("run")["fit"]["seconds"]
    steps_of_another_size = "--data.batch_size 5"
    assert ltr(f"fit run --trainer.max_epochs 4 {steps_of_another_size}") == 2
    assert Path("run/test.run").is_file() and "test" in metrics("run")
    assert ltr("fit run --trainer.max_epochs 4") == 0
    assert steps_of("run") == 24 and metrics("run")["fit"]["seconds"] > first
    assert not Path("run/test.run").exists() and "test" not in metrics("run")


def test_the_first_step_after_a_resume_with_more_epochs_moves_the_weights(config):
    begin_with(config, "run")
    begin_with(config, "before")
    assert ltr("fit run --trainer.max_epochs 4 --trainer.max_steps 13") == 0
    assert not have_same_weights("run", "before")
    # Of 13 steps, not of one.
    assert metrics("run")["fit"]["seconds"] > metrics("before")["fit"]["seconds"]


def test_the_learning_rate_of_more_epochs_is_that_of_the_longer_run(config):
    begin_with(config, "run")
    begin_with(config, "whole", ALL_KEPT)
    assert ltr(f"fit run {ALL_KEPT}") == 0
    rates = [loaded(run, "step=18")["lr_schedulers"][0]["_last_lr"] for run in ("run", "whole")]
    assert rates[0] == rates[1] != [0.0, 0.0]


def _validations_without_seconds(run):
    rows = metrics(run)["validations"]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_a_run_continues_from_other_weights_of_its_own(config, capsys):
    begin_with(config, "run", ALL_KEPT)
    begin_with(config, "before", ALL_KEPT)
    assert ltr("fit run --ckpt_path run/checkpoints/step=12.ckpt --trainer.max_epochs 4") == 0
    assert "step 12\n" in capsys.readouterr().out
    assert have_same_weights("run", "before")
    assert _validations_without_seconds("run") == _validations_without_seconds("before")
    # The best may be the last.
    assert ltr("fit run --ckpt_path best --trainer.max_epochs 5") == 0
    assert f"step {best_first(scores_of('before'))[0]}\n" in capsys.readouterr().out
    assert list(scores_of("run"))[-2:] == [24, 30]


def test_another_learning_rate_is_honoured(config, capsys):
    begin_with(config, "run", SAME_RATE)
    options = "--model.lr 1e-5 --model.weight_decay 0.3 --trainer.max_epochs 3"
    assert ltr(f"fit run {options}") == 0
    matrices, vectors = loaded("run")["optimizer_states"][0]["param_groups"]
    assert (matrices["lr"], matrices["weight_decay"], vectors["weight_decay"]) == (1e-5, 0.3, 0.0)
    line = "lr 0.1 and weight decay 0.01; from here on lr 1e-05 and weight decay 0.3"
    assert f"trained with {line}" in capsys.readouterr().out


# Moving


@pytest.mark.parametrize("run", ["copied", "linked"])
def test_a_run_that_was_moved_keeps_its_best(config, run):
    """Validations 1 to 4, then 5 and 6 in another place: best.ckpt is the best of all."""
    begin_with(config, "copied", "--trainer.max_epochs 4")
    Path("linked").symlink_to("copied")
    assert ltr(f"fit {run} --trainer.max_epochs 6") == 0
    assert loaded(run, "best")["global_step"] == best_first(scores_of(run))[0]


@pytest.mark.parametrize(
    ("k", "kept"),
    [(2, 2), *(pytest.param(*pair, marks=pytest.mark.long) for pair in [(0, 0), (1, 0), (-1, 6)])],
)
def test_best_is_the_best_with_any_number_kept(config, k, kept):
    assert fit(config, "run", f"--trainer.max_epochs 6 --best.save_top_k {k}") == 0
    scores = scores_of("run")
    ranked = best_first(scores)
    assert RunFolder("run").kept_steps() == sorted(ranked[:kept])
    assert Path("run/checkpoints/best.ckpt").exists() == (k != 0)
    if k:
        assert loaded("run", "best")["global_step"] == ranked[0]
        assert ltr("validate run") == 0
        assert metrics("run")["validate"]["nDCG_exp@10"] == pytest.approx(scores[ranked[0]])


@pytest.mark.parametrize("k", [2, pytest.param(-1, marks=pytest.mark.long)])
def test_what_was_best_by_another_metric_stays(config, k):
    """Four validations by the one metric, then four by the other: of these the k best stay, too."""
    begin_with(config, "run", f"--trainer.max_epochs 4 --best.save_top_k {k}")
    before = RunFolder("run").kept_steps()
    assert len(before) == (4 if k == -1 else 2)
    other = "--best.monitor val/swapped_pairs --trainer.max_epochs 8"
    assert ltr(f"fit run {other}") == 0
    pairs = {step: -n for step, n in scores_of("run", "swapped_pairs").items() if step > 24}
    ranked = best_first(pairs)
    kept = ranked if k == -1 else ranked[:2]
    assert RunFolder("run").kept_steps() == sorted([*before, *kept])
    assert loaded("run", "best")["global_step"] == ranked[0]


def test_the_lowest_is_best_where_less_is_better(config):
    assert fit(config, "run", "--trainer.max_epochs 4 --best.monitor val/swapped_pairs") == 0
    pairs = {step: -n for step, n in scores_of("run", "swapped_pairs").items()}
    assert len(set(pairs.values())) > 1
    assert loaded("run", "best")["global_step"] == best_first(pairs)[0]


# Losing


def test_a_lost_metrics_json_loses_earlier_validations_and_no_seconds(config):
    begin_with(config, "run", "--trainer.max_epochs 4")
    seconds = metrics("run")["fit"]["seconds"]
    Path("run/metrics.json").unlink()
    assert ltr("fit run --trainer.max_epochs 5") == ltr("test run") == 0
    assert list(scores_of("run")) == [30] and "test" in metrics("run")
    assert steps_of("run") == 30 and metrics("run")["fit"]["seconds"] > seconds


def test_a_lost_best_ckpt_means_last_until_a_validation_writes_one(config, capsys):
    begin_with(config, "run")
    Path("run/checkpoints/best.ckpt").unlink()
    assert ltr("test run") == 0
    assert metrics("run")["test"]["checkpoint"].endswith("last.ckpt")
    assert "run: there is no best.ckpt; taking last.ckpt" in capsys.readouterr().err
    assert ltr("fit run --trainer.max_epochs 3") == 0
    assert loaded("run", "best")["global_step"] == 18


def test_a_lost_last_ckpt_means_best(config, capsys):
    begin_with(config, "run")
    step = loaded("run", "best")["global_step"]
    Path("run/checkpoints/last.ckpt").unlink()
    assert ltr("fit run --trainer.max_epochs 3") == 0
    assert f"resuming from run/checkpoints/best.ckpt, step {step}\n" in capsys.readouterr().out
    assert loaded("run")["global_step"] == 18


def test_a_finished_run_that_was_killed_before_it_had_a_last_ckpt_gets_one(config, capsys):
    """The best weights are written first; killed after them, at the end of its only epoch, the run
    has nothing else.
    """
    options = f"--trainer.max_epochs 1 {SAME_RATE}"
    begin_with(config, "run", options)
    begin_with(config, "before", options)
    Path("run/checkpoints/last.ckpt").unlink()
    assert ltr("fit run") == 0
    assert "nothing to do, nothing changed" in capsys.readouterr().out
    assert loaded("run")["global_step"] == loaded("before")["global_step"] == 6
    assert have_same_weights("run", "before")


def test_a_lost_config_yaml_is_found_in_the_file_of_the_start(config, capsys):
    begin_with(config, "run")
    Path("run/config.yaml").unlink()
    assert ltr("fit run --trainer.max_epochs 3") == 2
    assert "there is no run/config.yaml; or name a file by --config" in told(capsys)
    assert ltr(f"test --config {config} --trainer.default_root_dir run --ckpt_path best") == 0
    assert fit(config, "run", "--ckpt_path last --trainer.max_epochs 3") == 0
    assert steps_of("run") == 18 and ltr("test run") == 0


# Starting from other weights


def test_a_checkpoint_of_another_run_continues_it_in_an_empty_folder(config, capsys):
    """Of all its weights only those that were validated in the new folder are known to be the best
    there.
    """
    begin_with(config, "a")
    begin_with(config, "copy")
    more = "--trainer.max_epochs 3"
    from_a = f"--ckpt_path a/checkpoints/last.ckpt {more}"
    assert fit(config, "b", from_a) == ltr(f"fit copy {more}") == 0
    assert have_same_weights("b", "copy")
    assert list(scores_of("b")) == [18] and loaded("b", "best")["global_step"] == 18
    assert fit(config, "c", f"{from_a} --seed_everything 4") == 2
    assert "seed_everything was 3 and is 4" in told(capsys) and not Path("c").exists()


def test_init_from_starts_a_new_run_with_the_weights_of_another(config, tmp_path, capsys):
    begin_with(config, "a")
    frozen = "--trainer.max_epochs 1 --model.lr 0"
    assert fit(config, "b", f"--init_from a --model.loss SoftmaxLoss {frozen}") == 0
    assert have_same_weights("b", "a", other_name="best")
    assert metrics("b")["init_from"] == "a" and steps_of("b") == 6
    assert ltr("fit b --trainer.max_epochs 2") == 0  # resumes from its own weights
    assert metrics("b")["init_from"] == "a" and steps_of("b") == 12
    data = write_letor(tmp_path / "other", seed=1)
    other = f"--seed_everything 9 --data.path {data} {frozen}"
    assert fit(config, "d", f"--init_from a/checkpoints/last.ckpt {other}") == 0
    assert have_same_weights("d", "a")
    for wrong, line in (
        ("nowhere", "--init_from nowhere: there is no such file"),
        (".", "train first"),
        ("a --model.ranker.preset linear", "the weights do not fit the ranker"),
    ):
        assert fit(config, "c", f"--init_from {wrong}") == 2
        assert line in told(capsys) and not Path("c").exists()


def test_weights_alone_can_be_measured_and_not_resumed(config, capsys):
    begin_with(config, "run", ONLY_WEIGHTS)
    assert ltr("test run") == 0
    assert "optimizer_states" in loaded("run") and "optimizer_states" not in loaded("run", "best")
    assert ltr("fit run --ckpt_path best --trainer.max_epochs 3") == 2
    assert "best.ckpt holds weights only" in told(capsys)


# What a checkpoint is


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("PWNED"),)


def test_a_checkpoint_is_never_code(config, capsys):
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6.0", "x": Evil()}, "evil.ckpt")
    test = f"test --config {config} --trainer.default_root_dir run"
    assert ltr(f"{test} --ckpt_path evil.ckpt") == 2
    assert "can't be read (UnpicklingError)" in told(capsys)
    assert fit(config, "run", "--init_from evil.ckpt") == 2
    assert not Path("PWNED").exists()


def test_a_damaged_tensor_is_not_taken_for_weights(config, capsys):
    """One byte of the largest one."""
    begin_with(config, "run")
    for name in ("best", "last"):
        file = Path(f"run/checkpoints/{name}.ckpt")
        state = loaded("run", name)["state_dict"]
        tensor = max(state.values(), key=lambda one: one.numel()).numpy().tobytes()
        whole = file.read_bytes()
        at = whole.index(tensor) + len(tensor) // 2
        file.unlink()  # best.ckpt and last.ckpt may be one file
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    for words in ("test run", "fit run --trainer.max_epochs 3"):
        assert ltr(words) == 2
        assert "ckpt: the checkpoint can't be read (BadZipFile)" in told(capsys)
    assert fit(config, "other", "--init_from run") == 2


def _look_together(number: int, store: Path, folders: list[Path]) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=number, world_size=len(folders)
    )
    run_folder.COMMON_SECONDS = 0.2
    try:
        RunFolder(folders[number]).check_seen_by_all()
    except InputError as error:
        store.with_name(f"told{number}").write_text(str(error))


@pytest.mark.parametrize("names", [("a/run", "a/run"), ("a/run", "b/run")])
def test_all_processes_must_see_one_folder(tmp_path, names):
    """Each writes a file and looks for those of all; nothing of it is left."""
    (tmp_path / "a").mkdir()
    folders = [tmp_path / name for name in names]
    folders[0].mkdir()
    run_ranks(_look_together, tmp_path / "store", folders)
    assert list(folders[0].iterdir()) == [] and not (tmp_path / "b").exists()
    lines = [file.read_text() for file in sorted(tmp_path.glob("told*"))]
    if len({*names}) == 1:
        assert lines == []
    else:
        assert len(lines) == 2
        for number, line in enumerate(lines):
            assert line.startswith(f"{folders[number]} must be one folder that all processes of")
            assert f"process {number} of 2 does not see the files" in line


def test_results_on_other_data_and_splits_have_places_of_their_own(tmp_path):
    run = RunFolder(tmp_path / "run")
    places = [
        run,
        run.folder_of_set("A"),
        run.folder_of_split("test.clean"),
        run.folder_of_set("A").folder_of_split("dev"),
    ]
    assert (
        run.folder_of_split("test") is run
        and run.folder_of_set("A").folder_of_split("test").path == places[1].path
    )
    assert len({place.path for place in places}) == 4
    for place in places:
        place.path.mkdir(parents=True)
        place.test_run.touch()
    run.checkpoints.mkdir()
    run.remove_rankings()
    assert [file.name for file in run.path.iterdir()] == ["checkpoints"]
