"""What a run is: which options may differ in a resume, and which may not."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from ltr.errors import InputError
from ltr.run.identity import check_identity, identity_of, ranker_options
from tests.run.resumes import configured
from tests.run.test_run_folder import (  # fixtures and helpers
    begin_with,
    common_world,  # noqa: F401
    config,  # noqa: F401
    ltr,
    told,
)
from tests.world.features import write_letor

CONFIG = {
    "seed_everything": 3,
    "model": {
        "ranker": {
            "class_path": "ltr.models.DualEncoder",
            "init_args": {"backbone": "/home/me/bert/", "encoder": {"dropout": 0.1}},
        },
        "loss": {"class_path": "ltr.losses.SoftmaxLoss", "init_args": {"temperature": 1.0}},
        "lr": 0.1,
    },
    "data": {
        "class_path": "ltr.datamodules.ListDataModule",
        "init_args": {"path": "mine", "list_size": 8, "loading": {"num_workers": 2}},
    },
    "trainer": {
        "accumulate_grad_batches": 1,
        "overfit_batches": 0,
        "callbacks": None,
        "max_epochs": 2,
    },
}


def test_an_identity_names_what_decides_and_leaves_out_what_does_not():
    assert identity_of(CONFIG) == {
        "seed_everything": 3,
        "model.ranker.class_path": "ltr.models.DualEncoder",
        "model.ranker.backbone": "bert",
        "model.ranker.encoder.dropout": 0.1,
        "model.loss.class_path": "ltr.losses.SoftmaxLoss",
        "model.loss.temperature": 1.0,
        "data.class_path": "ltr.datamodules.ListDataModule",
        "data.list_size": 8,
        "trainer.accumulate_grad_batches": 1,
        "trainer.overfit_batches": 0,
    }
    assert ranker_options(identity_of(CONFIG)) == {
        "model.ranker.class_path": "ltr.models.DualEncoder",
        "model.ranker.backbone": "bert",
    }


def test_a_callback_decides_by_its_class_and_not_by_what_its_options_say():
    mining = {"class_path": "ltr.callbacks.HardNegativeMining", "init_args": {"keep": 2}}
    kept = {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": {"dirpath": "runs/HardNegativeMining"},
    }
    own = "my.OwnHardNegativeMining"
    trainer = CONFIG["trainer"] | {"callbacks": [mining, kept, own]}
    identity = identity_of(CONFIG | {"trainer": trainer})
    assert identity.items() - identity_of(CONFIG).items() == {
        ("trainer.callbacks[0].class_path", "ltr.callbacks.HardNegativeMining"),
        ("trainer.callbacks[0].keep", 2),
        ("trainer.callbacks[1]", own),
    }


def test_a_folder_may_be_mounted_elsewhere_wherever_an_option_names_it():
    def identity_in(root: str) -> dict:
        negatives = {f"{root}/negatives": 3, "bm25": 4}
        judge = {"judge": f"{root}/judge"}
        mining = {"class_path": "ltr.callbacks.HardNegativeMining", "init_args": judge}
        data = {"class_path": "TripletDataModule", "init_args": {"negatives": negatives}}
        return identity_of({"data": data, "trainer": {"callbacks": [mining]}})

    here = identity_in("/mine")
    assert here["data.negatives.negatives"] == 3
    check_identity(here, identity_in("/others/of"), "x.ckpt", "do")
    check_identity(here, identity_in("runs"), "x.ckpt", "do")  # as seen from where it was started
    other = here | {"trainer.callbacks[0].judge": "judge-2"}
    with pytest.raises(InputError, match=r"callbacks\[0\].judge was 'judge' and is 'judge-2'"):
        check_identity(other, here, "x.ckpt", "do")


def test_what_differs_is_named_and_counted():
    now = {"a": 1, "b": 2, "c": 3, "d": 4}
    then = {"a": 1, "b": 3, "c": None, "e": 0}
    message = (
        "x.ckpt comes from another configuration: b was 3 and is 2, c was None and is 3, "
        "d was None and is 4 and 1 more; do"
    )
    with pytest.raises(InputError, match=message):
        check_identity(now, then, "x.ckpt", "do")
    check_identity(now, now, "x.ckpt", "do")
    check_identity(now, {}, "x.ckpt", "do")  # a checkpoint that was made in Python


def test_a_path_of_data_is_the_same_whole_or_by_its_last_name():
    then = {"data.negatives": "runs/neg", "model.ranker.backbone": "owner/bert"}
    for path in ("runs/neg", "./runs/neg", "/mine/runs/neg/"):
        data = {"class_path": "a.B", "init_args": {"negatives": path}}
        now = identity_of(CONFIG | {"data": data})
        check_identity(then | {"data.negatives": now["data.negatives"]}, then, "x", "do")
    for change in ({"data.negatives": "other/neg"}, {"model.ranker.backbone": "bert"}):
        with pytest.raises(InputError, match=f"{next(iter(change))} was"):
            check_identity(then | change, then, "x", "do")


@pytest.mark.parametrize(
    ("then", "now", "is_same"),
    [
        (("bm25", None), ("bm25", 100), True),
        (("bm25", 100), ("auto", None), True),
        (("auto", None), ("bm25", None), True),
        (("auto", 50), ("bm25", 50), True),
        (("bm25", None), ("bm25", 50), False),
        (("auto", None), ("bm25", 50), False),
        (("candidates", None), ("candidates", 100), False),  # a pool may be deeper
        (("candidates", None), ("auto", 100), False),
        (("auto", None), ("candidates", None), True),
        (("auto", None), ("auto", 100), False),  # it may take pools
        (("bm25", None), ("random", 100), False),
    ],
)
def test_a_depth_of_bm25_is_the_same_said_or_not(then, now, is_same):
    """BM25 finds 100 documents where no depth is said."""

    def identity(negatives, depth):
        init_args = {"negatives": negatives, "negatives_depth": depth}
        return identity_of(CONFIG | {"data": {"class_path": "a.B", "init_args": init_args}})

    for one, other in ((then, now), (now, then)):
        message = nullcontext() if is_same else pytest.raises(InputError, match="data.negatives")
        with message:
            check_identity(identity(*one), identity(*other), "x.ckpt", "do")


REFUSED = {
    "--seed_everything 4": "seed_everything was 3 and is 4",
    "--model.loss SoftmaxLoss": (
        "model.loss.class_path was 'ltr.losses.RankNetLoss' and is 'ltr.losses.SoftmaxLoss'"
    ),
    "--model.loss.sigma 2": "model.loss.sigma was 1.0 and is 2.0",
    "--model.ranker.activation tanh": "model.ranker.activation was None and is 'tanh'",
    "--data.loading.seed 99": "data.loading.seed was None and is 99",
    "--data.list_size 3": "data.list_size was None and is 3",
    "--data.loading.bucket_window 1": "data.loading.bucket_window was 64 and is 1",
    "--trainer.accumulate_grad_batches 2": "trainer.accumulate_grad_batches was 1 and is 2",
    "--data.path ../other": "the checkpoint was trained on other data",
    "--data.batch_size 5": "the checkpoint comes from steps of 4 lists, here they have 5",
}
HONOURED = (
    "--model.lr 1e-3",
    "--model.warmup 0 --model.decay false",
    "--model.metrics [nDCG_exp@10,AP]",
    "--trainer.gradient_clip_val 0.5",
    "--trainer.precision bf16-mixed",
    "--data.loading.num_workers 1",
    "--data.eval_batch_size 3",
    "--data.path ../letor/../letor",
    "--trainer.val_check_interval 0.5",
    "--last.every_n_steps 2",
    "--best.save_top_k 2",
)


@pytest.mark.long
def test_a_resume_is_refused_under_another_identity_and_else_honoured(config, tmp_path, capsys):
    write_letor(tmp_path / "other", seed=1)
    begin_with(config, "run", "--trainer.max_epochs 1")
    before = Path("run/checkpoints/last.ckpt").read_bytes()
    for options, line in REFUSED.items():
        assert ltr(f"fit run --trainer.max_epochs 2 {options}") == 2, options
        assert line in told(capsys), options
    assert Path("run/checkpoints/last.ckpt").read_bytes() == before
    for epochs, options in enumerate(HONOURED, 2):
        assert ltr(f"fit run --trainer.max_epochs {epochs} {options}") == 0, options


def test_weights_are_not_measured_as_those_of_another_ranker(config, capsys):
    begin_with(config, "run")
    for command in ("validate", "test", "predict"):
        assert ltr(f"{command} run --model.ranker.activation tanh") == 2
        assert "model.ranker.activation was None and is 'tanh'" in told(capsys)
    does_not_matter = "--model.loss SoftmaxLoss --seed_everything 9 --data.batch_size 7"
    assert ltr(f"test run {does_not_matter}") == 0


def test_pooling_length_and_prompts_of_text_rankers_decide(tmp_path):
    def identity(**options) -> dict:
        ranker = {"backbone": "b", "max_length": 24} | options
        changes = {"model.ranker": {"class_path": "ltr.models.DualEncoder", "init_args": ranker}}
        return identity_of(configured(changes, tmp_path) | {"trainer": CONFIG["trainer"]})

    base = identity()
    for name, value in (
        ("max_length", 16),
        ("similarity", "dot"),
        ("prompts", {"query": "q: "}),
        ("encoder", {"pooling": "cls"}),
    ):
        other = ranker_options(identity(**{name: value}))
        with pytest.raises(InputError, match=f"model.ranker.{name}"):
            check_identity(other, ranker_options(base), "x", "do")
    quick = {"max_tokens": 4096, "keep_tokens": 1, "kernels": "plain", "compile": True}
    assert identity(encoder=quick) == base
