"""Stages change at their moment, and a run that was killed in any of them goes on to the same
weights.
"""

import logging
import re
import signal
from pathlib import Path

import pytest
import torch
import yaml

from ltr.__main__ import main
from ltr.callbacks import LossChange, LossSchedule
from ltr.compatibility import check_labels
from ltr.datamodules import TripletDataModule
from ltr.errors import InputError
from ltr.losses import (
    BCELoss,
    KLDivergenceLoss,
    MarginMSELoss,
    MarginRankingLoss,
    RankNetLoss,
    SoftmaxLoss,
)
from ltr.margins import Annealed, Constant, FromDistance, Learnable, NormalSample
from tests.run.kills import Child, waiting
from tests.world.configurations import write_config
from tests.world.rankers import cross_encoder, data_for, trainer
from tests.world.runs import losses, metrics

calls: list[tuple] = []


class Told(MarginRankingLoss):
    """Writes down who was called, and with which margin."""

    def __init__(self, name: str, margin: float = 1.0) -> None:
        super().__init__(margin)
        self.name = name

    def forward(self, scores, labels, mask=None, margin=None):
        calls.append(
            (self.name, self.margin if margin is None else round(margin.flatten()[0].item(), 3))
        )
        return super().forward(scores, labels, mask, margin)


@pytest.fixture(autouse=True)
def _no_calls():
    calls.clear()


@pytest.fixture
def fit(tmp_path, backbone, collection_folder):
    """A run of 2 epochs of 4 batches under a schedule; (module, trainer)."""

    def run(changes, loss=None, margin=None, **options):
        module = cross_encoder(backbone, loss or Told("own"), margin=margin)
        run = trainer(tmp_path, callbacks=[LossSchedule(changes)], **({"max_epochs": 2} | options))
        run.fit(module, data_for(module, TripletDataModule, collection_folder, batch_size=8))
        return module, run

    return run


def test_the_loss_changes_at_its_step(fit):
    fit([LossChange(step=3, loss=Told("second"))])
    assert [name for name, _ in calls] == ["own"] * 3 + ["second"] * 5


def test_the_loss_changes_at_its_epoch_and_says_so(fit, caplog):
    with caplog.at_level(logging.INFO, logger="ltr"):
        _, run = fit([LossChange(epoch=1, loss=Told("second", margin=0.5))])
    assert [name for name, _ in calls] == ["own"] * 4 + ["second"] * 4
    said = [r.getMessage() for r in caplog.records if r.name == "ltr.callbacks.loss_schedule"]
    assert said == ["step 4, epoch 1: loss is now Told(name=second, margin=0.5)"]
    assert run.callback_metrics["train/loss_stage"] == 1


def test_steps_are_optimiser_steps(fit):
    fit([LossChange(step=2, loss=Told("second"))], accumulate_grad_batches=2)
    assert [name for name, _ in calls] == ["own"] * 4 + ["second"] * 4


def test_options_change_a_copy_of_the_loss(fit):
    own = Told("own")
    fit(
        [
            LossChange(step=2, options={"margin": 0.5}),
            LossChange(epoch=1, options={"margin": 0.25, "name": "own too"}),
        ],
        own,
    )
    tried = [("own", 0.5), ("own too", 0.25)]  # on one list, before training
    assert (
        calls == tried + [("own", 1.0)] * 2 + [("own", 0.5)] * 2 + [("own too", 0.25)] * 4
        and own.margin == 1.0
    )


def test_margins_come_and_change_and_losses_keep_them(fit):
    changes = [
        LossChange(step=1, margin=Constant(0.5)),
        LossChange(step=2, loss=Told("second")),
        LossChange(
            step=3,
            loss=Told("third"),
            margin=Annealed(Constant(2.0), steps=4),
            options={"margin": 9.0},
        ),
    ]
    fit(changes)
    annealed = [("third", value) for value in (0.0, 0.5, 1.0, 1.5, 2.0)]
    assert calls == [("third", 9.0), ("own", 1.0), ("own", 0.5), ("second", 0.5), *annealed]


def test_the_last_change_that_is_due_counts():
    schedule = LossSchedule(
        [
            LossChange(epoch=1, loss=RankNetLoss()),
            LossChange(step=10, loss=SoftmaxLoss()),
            LossChange(epoch=2, options={"k": 1}),
        ]
    )
    stages = {(0, 9): 0, (1, 9): 1, (0, 10): 2, (1, 11): 2, (2, 9): 3, (2, 10): 3}
    assert {at: schedule.stage(*at) for at in stages} == stages


# What is in a checkpoint


def test_every_checkpoint_has_the_same_keys_and_holds_nothing_twice(tmp_path, fit):
    """NormalSample stays over two stages: one counter; Learnable's parameter is there, and
    optimised, from the start.
    """

    def changes():
        return [
            LossChange(step=2, margin=NormalSample()),
            LossChange(step=4, options={"margin": 0.5}),
            LossChange(step=6, margin=Learnable()),
        ]

    states = []
    for steps in (1, 8):
        module, run = fit(changes(), max_epochs=2, max_steps=steps)
        run.save_checkpoint(tmp_path / f"{steps}.ckpt")
        states.append(torch.load(tmp_path / f"{steps}.ckpt", weights_only=True))
        assert (
            sum(
                p is module.margin.stages[1].theta
                for g in run.optimizers[0].param_groups
                for p in g["params"]
            )
            == 1
        )
    early, late = (state["state_dict"] for state in states)
    assert early.keys() == late.keys()
    extra = [name for name in late if not name.startswith("ranker.")]
    assert extra == ["margin.stages.0.batches", "margin.stages.1.theta"]
    assert (early[extra[0]], late[extra[0]]) == (0, 4)
    assert len(states[0]["optimizer_states"][0]["param_groups"]) == len(
        states[1]["optimizer_states"][0]["param_groups"]
    )


def test_one_module_is_fitted_tested_and_fitted_again(tmp_path, backbone, collection_folder):
    module = cross_encoder(backbone, Told("own"))
    schedule = LossSchedule([LossChange(step=2, loss=Told("second"), margin=NormalSample())])
    data = data_for(module, TripletDataModule, collection_folder, batch_size=8)
    for steps in (4, 3):
        run = trainer(tmp_path, callbacks=[schedule], max_steps=steps)
        run.fit(module, data)
        run.save_checkpoint(tmp_path / "a.ckpt")
        run.test(module, data, ckpt_path=str(tmp_path / "a.ckpt"), weights_only=True, verbose=False)
    assert [name for name, _ in calls] == ["own"] * 2 + ["second"] * 2 + ["own"] * 2 + ["second"]
    assert len(module.loss.stages) == 2 and module.margin.stages[0].batches == 3
    with pytest.raises(InputError, match="was trained under another LossSchedule"):
        trainer(tmp_path, callbacks=[LossSchedule([])]).test(module, data, verbose=False)


def test_another_module_under_the_same_schedule_starts_anew(tmp_path, backbone, collection_folder):
    schedule = LossSchedule([LossChange(step=1, margin=NormalSample())])
    for _ in range(2):
        module = cross_encoder(backbone, MarginRankingLoss())
        run = trainer(tmp_path, callbacks=[schedule], max_steps=4)
        run.fit(module, data_for(module, TripletDataModule, collection_folder, batch_size=8))
        assert module.margin.stages[0].batches == 3


# Bad input


BAD = {
    r"changes\[0\]: give exactly one of epoch and step, got none": [LossChange(loss=RankNetLoss())],
    "give exactly one of epoch and step, got epoch=1, step=3": [
        LossChange(epoch=1, step=3, loss=RankNetLoss())
    ],
    "give at least one of loss, margin and options": [LossChange(epoch=1)],
    "epoch must be at least 1, got 0": [LossChange(epoch=0, loss=RankNetLoss())],
    r"changes\[2\]: step must be at least 5, got 4: changes must be in order": [
        LossChange(step=4, loss=RankNetLoss()),
        LossChange(epoch=1, loss=RankNetLoss()),
        LossChange(step=4, loss=SoftmaxLoss()),
    ],
}


@pytest.mark.parametrize("message", BAD)
def test_changes_are_checked(message):
    with pytest.raises(InputError, match=message):
        LossSchedule(BAD[message])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [{"options": {"sigma": 2.0}}],
            r"changes\[0\]: options.sigma is unknown: the options of MarginRankingLoss are margin=1.0",
        ),
        (
            [{"options": {"margin": "hard"}}],
            r"changes\[0\]: MarginRankingLoss can't be computed with margin=hard: ",
        ),
        (
            [{"margin": FromDistance()}, {"loss": RankNetLoss()}],
            r"changes\[1\]: RankNetLoss has no margin, got FromDistance",
        ),
    ],
)
def test_what_does_not_fit_the_module_is_refused_before_training(fit, changes, message):
    with pytest.raises(InputError, match=message):
        fit(
            [LossChange(epoch=n, **change) for n, change in enumerate(changes, start=1)],
            MarginRankingLoss(),
        )


class Labelled:
    """Data whose labels are a teacher's scores, or soft ones of an audit."""

    def __init__(self, kind):
        self.has_teacher_scores = kind == "scores"
        self.largest_soft_label = 0.5 if kind == "soft" else 0.0
        self.lists_with_both = None


@pytest.mark.parametrize(
    ("kind", "losses_in_order", "message"),
    [
        ("scores", [MarginMSELoss(), KLDivergenceLoss()], None),
        ("scores", [SoftmaxLoss(), MarginMSELoss()], "^SoftmaxLoss takes grades as labels"),
        (
            "scores",
            [MarginMSELoss(), RankNetLoss(), SoftmaxLoss()],
            r"changes\[1\]: SoftmaxLoss takes grades as labels",
        ),
        ("soft", [RankNetLoss(), BCELoss()], None),
        ("soft", [SoftmaxLoss(), RankNetLoss()], "^SoftmaxLoss takes every label above 0"),
        (
            "soft",
            [RankNetLoss(), SoftmaxLoss()],
            r"changes\[0\]: SoftmaxLoss takes every label above 0",
        ),
    ],
)
def test_the_labels_must_suit_the_loss_of_every_stage(
    tmp_path, backbone, monkeypatch, kind, losses_in_order, message
):
    module = cross_encoder(backbone, losses_in_order[0])
    changes = [LossChange(epoch=n, loss=losses_in_order[n]) for n in range(1, len(losses_in_order))]
    data = Labelled(kind)
    run = trainer(tmp_path)
    monkeypatch.setattr("ltr.callbacks.loss_schedule.data_of", lambda trainer: data)
    if message is None:
        LossSchedule(changes).setup(run, module, "fit")
        check_labels(module.loss, module.in_batch, data)  # as the module does after the callbacks
    else:
        with pytest.raises(InputError, match=message):
            LossSchedule(changes).setup(run, module, "fit")
        LossSchedule(changes).setup(run, module, "test")
        with pytest.raises(InputError):
            check_labels(module.loss, module.in_batch, data)


# Through the command line

LOSS = {"class_path": "ltr.losses.MarginRankingLoss"}
SCHEDULE = [
    {"step": 4, "options": {"margin": 0.5}, "margin": {
        "class_path": "ltr.margins.Annealed", "init_args": {"margin": {"class_path": "ltr.margins.NormalSample"}, "steps": 6}}},
    {"epoch": 1, "margin": {"class_path": "ltr.margins.Learnable", "init_args": {"k": 0.5}}},
    {"step": 13, "loss": {"class_path": "ltr.losses.AdaptiveMarginRankingLoss", "init_args": {"k": 0.5}}},
]  # fmt: skip


def scheduled(folder, backbone, data, changes=SCHEDULE, **options):
    callback = {"class_path": "ltr.callbacks.LossSchedule", "init_args": {"changes": changes}}
    return write_config(
        folder, backbone, data, **{"model.loss": LOSS, "trainer.callbacks": [callback], **options}
    )


def test_the_command_line_fits_goes_on_and_tests(tmp_path, backbone, collection_folder):
    config = scheduled(tmp_path, backbone, collection_folder)
    assert main(["fit", "--config", str(config)]) == 0
    log = (tmp_path / "run/train.log").read_text()
    for moment, loss, policy in (
        ("step 4, epoch 0", "MarginRankingLoss", "Annealed"),
        ("step 8, epoch 1", "MarginRankingLoss", "Learnable"),
        ("step 13, epoch 1", "AdaptiveMarginRankingLoss", "Learnable"),
    ):
        assert re.search(rf"{moment}: loss is now {loss}\(.*\), margin policy {policy}\(", log)
    again = str(tmp_path / "run/config.yaml")
    written = yaml.safe_load(open(again))["trainer"]["callbacks"][0]["init_args"]["changes"]
    assert [change["step"] for change in written] == [4, None, 13] and written[0]["options"] == {
        "margin": 0.5
    }
    for command in ("validate", "test"):
        assert main([command, "--config", again, "--ckpt_path", "last"]) == 0
    assert (
        metrics(tmp_path / "run")["validate"]["nDCG@10"]
        == metrics(tmp_path / "run")["validations"][-1]["nDCG@10"]
    )


def test_a_bad_change_is_one_line_and_exit_code_2(tmp_path, backbone, collection_folder, capsys):
    for change, message in (
        (
            {"loss": LOSS},
            "changes[0]: give exactly one of epoch and step, got none (option trainer.callbacks",
        ),
        (
            {"epoch": 1, "options": {"sigma": 1.0}},
            "changes[0]: options.sigma is unknown: the options of MarginRankingLoss are margin=1.0",
        ),
        (
            {"epoch": 1, "los": LOSS},
            "ltr.callbacks.LossChange has no option trainer.callbacks.changes.los.class_path",
        ),
    ):
        config = scheduled(tmp_path, backbone, collection_folder, [change])
        assert main(["fit", "--config", str(config)]) == 2
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert last.startswith("ltr: ") and message in last and len(last) < 500, last


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, backbone, collection_folder):
    folder = tmp_path_factory.mktemp("whole")
    return weights(fitted(scheduled(folder, backbone, collection_folder))), losses(folder / "run")


def fitted(config: Path, *options: str) -> Path:
    """The folder of a run in a process of its own."""
    assert Child(["fit", "--config", str(config), *options], config.with_name("output")).end() == 0
    return config.parent / "run"


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


@pytest.mark.long
def test_a_run_killed_in_a_late_stage_goes_on_to_the_same_weights(
    tmp_path, backbone, collection_folder, uninterrupted
):
    """Killed after step 14; checkpoints every 3 steps, so it goes on from step 12; stages begin at
    steps 4, 8 and 13.

    The losses are compared too: two margins under which the same pairs cost something have the same
    gradient.
    """
    config = scheduled(
        tmp_path, backbone, collection_folder, **{"data.init_args.loading.num_workers": 2}
    )
    waits = yaml.safe_load(config.read_text())
    waits["trainer"]["callbacks"].append(waiting(tmp_path / "waits", step=14))
    config.with_name("waits.yaml").write_text(yaml.safe_dump(waits))
    child = Child(["fit", "--config", str(config.with_name("waits.yaml"))], tmp_path / "output")
    child.until(tmp_path / "waits")
    child.send(signal.SIGKILL)
    assert child.end() == -signal.SIGKILL
    expected, curve = uninterrupted
    resumed = weights(fitted(config, "--ckpt_path", "last"))
    assert resumed.keys() == expected.keys() and all(
        torch.equal(resumed[name], expected[name]) for name in expected
    )
    assert losses(tmp_path / "run") == curve[12:]


@pytest.mark.long
def test_the_stages_matter_to_the_weights(tmp_path, backbone, collection_folder, uninterrupted):
    """Else the test above would show nothing."""
    config = scheduled(tmp_path, backbone, collection_folder, SCHEDULE[:2])
    other = weights(fitted(config))
    assert not all(torch.equal(other[name], uninterrupted[0][name]) for name in other)
