"""The feature ranker under the trainer and on the command line."""

import re
import shutil
from pathlib import Path

import pytest
import pytrec_eval
import torch
import yaml

from ltr import losses
from ltr.__main__ import main
from ltr.data.trec import read_run
from ltr.datamodules import FeatureDataModule, TripletDataModule
from ltr.errors import InputError
from ltr.losses import ListNetLoss, RankNetLoss
from ltr.margins import Learnable
from ltr.metrics import RankingMetric
from ltr.models.feature_ranker import PRESETS
from tests.world.configurations import QUIET
from tests.world.features import write_letor
from tests.world.rankers import batches, cross_encoder, data_for, feature_ranker, trainer
from tests.world.runs import metrics

# The labels of the first two are a teacher's scores.
NOT_OF_GRADES = ("KLDivergenceLoss", "MarginMSELoss", "WeightedSum")
LOSSES = [name for name in losses.LOSSES if name not in NOT_OF_GRADES]


def before_and_after(tmp_path, letor_folder, module, **options):
    """A measure of unseen queries before and after training."""
    data = data_for(module, FeatureDataModule, letor_folder, batch_size=4)
    run = trainer(tmp_path, **options)
    before = run.validate(module, data, verbose=False)[0]["val/nDCG_exp@10"]
    run.fit(module, data)
    return before, run.callback_metrics["val/nDCG_exp@10"].item()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_learns_the_tiny_world(tmp_path, letor_folder, preset):
    """The grades follow a linear score, so unseen queries are ranked almost perfectly after
    training.
    """
    module = feature_ranker(5, RankNetLoss(), preset, lr=0.02)
    before, after = before_and_after(tmp_path, letor_folder, module, max_epochs=15)
    assert before < 0.93 and after > 0.97


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_learns_from_graded_lists(letor_folder, name):
    module = feature_ranker(5, getattr(losses, name)(), "linear")
    data = data_for(module, FeatureDataModule, letor_folder, batch_size=4, seed=0)
    data.setup("fit")
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    metric = RankingMetric("tau")

    def tau():
        metric.reset()
        for batch in data.val_dataloader():
            metric.update(module(batch), batch.labels, batch.mask)
        return metric.compute().item()

    before = tau()
    for batch in batches(data, 8 * len(data.train_dataloader())):
        optimizer.zero_grad()
        module.loss(module(batch), batch.labels, batch.mask).backward()
        optimizer.step()
    assert before < 0.4 and tau() > 0.65


def test_the_learning_rate_stays_without_decay(tmp_path, letor_folder):
    for decay, last in ((False, 0.01), (True, 0.0)):
        module = feature_ranker(5, ListNetLoss(), lr=0.01, decay=decay)
        run = trainer(tmp_path, max_epochs=1)
        run.fit(module, data_for(module, FeatureDataModule, letor_folder))
        assert run.lr_scheduler_configs[0].scheduler.get_last_lr()[0] == pytest.approx(last)


def test_a_margin_may_read_the_hidden_layer(tmp_path, letor_folder):
    module = feature_ranker(5, losses.MarginRankingLoss(), margin=Learnable(), lr=0.02)
    before, after = before_and_after(tmp_path, letor_folder, module, max_epochs=10)
    assert after > before


def test_options_reach_their_places():
    """Also those that say no: 0 and none replace what the preset has."""
    of_ranker = {"dropout": 0.0, "layer_norm": False, "residual_blocks": 0}
    of_module = {"lr": 0.5, "weight_decay": 0.25, "warmup": 0.125}
    of_metrics = {"empty": "zero", "max_grade": 2.0, "metrics": ["ERR@3"]}
    module = feature_ranker(5, ListNetLoss(), "deep", **of_ranker, **of_module, **of_metrics)
    kinds = [type(m) for m in module.ranker.modules()]
    assert torch.nn.LayerNorm not in kinds and kinds.count(torch.nn.Linear) == 2
    assert all(m.p == 0 for m in module.ranker.modules() if isinstance(m, torch.nn.Dropout))
    assert {name: getattr(module, name) for name in of_module} == of_module
    (metric,) = module.metrics
    assert (metric.name, metric.empty, metric.measure.max_grade) == ("ERR@3", "zero", 2.0)
    linear = feature_ranker(5, ListNetLoss(), "mlp", hidden=[])
    assert [type(m) for m in linear.ranker.modules()].count(torch.nn.Linear) == 1
    with pytest.raises(InputError, match="preset must be one of linear, .*, got 'huge'"):
        feature_ranker(5, ListNetLoss(), "huge")


def test_features_and_texts_are_not_mixed_up(tmp_path, letor_folder, collection_folder, backbone):
    texts = cross_encoder(backbone, ListNetLoss())
    letor = FeatureDataModule, letor_folder
    triplets = TripletDataModule, collection_folder
    for module, (kind, folder), told in (
        (feature_ranker(5, ListNetLoss()), triplets, "TripletDataModule"),
        (texts, letor, "FeatureDataModule"),
        (feature_ranker(4, ListNetLoss()), letor, "5 features, the model 4"),
    ):
        with pytest.raises(InputError, match=told):
            trainer(tmp_path, max_epochs=1).fit(module, data_for(module, kind, folder))


@pytest.fixture(scope="module")
def config(tmp_path_factory, letor_folder):
    """4 epochs of 6 steps."""
    folder = tmp_path_factory.mktemp("features")
    ranker = {"n_features": 6, "preset": "deep", "dropout": 0.1}  # one more than the files have
    data = {"path": str(letor_folder), "normalise": ["z-score"], "batch_size": 4, "list_size": 5}
    written = {
        "seed_everything": 3,
        "model": {
            "ranker": {"class_path": "ltr.models.FeatureRanker", "init_args": ranker},
            "loss": "ltr.losses.ListNetLoss",
            "lr": 0.01,
            "warmup": 0.0,
            "metrics": ["nDCG@10", "nDCG_exp@10", "AP"],
        },
        "data": {"class_path": "ltr.datamodules.FeatureDataModule", "init_args": data},
        "trainer": {"max_epochs": 4, "default_root_dir": str(folder / "run"), **QUIET},
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(written))
    return file


@pytest.fixture(scope="module")
def trained(config):
    assert main(["fit", "--config", str(config)]) == 0
    return config.with_name("run")


@pytest.fixture
def run(trained, tmp_path):
    """A trained run."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_fit_validate_and_test_by_the_command_line(run, letor_folder):
    """test.run names the documents of the files, and trec_eval's measures of it are the ones that
    were reported.
    """
    best = max(v["nDCG@10"] for v in metrics(run)["validations"])
    for command in ("validate", "test"):
        assert main([command, str(run), "--ckpt_path", "best"]) == 0
    assert metrics(run)["validate"]["nDCG@10"] == pytest.approx(best, abs=1e-6)

    qrels: dict = {}
    for line in (letor_folder / "test.txt").read_text().splitlines():
        label, qid, *_, doc = line.split()
        qrels.setdefault(qid[4:], {})[doc] = int(label)
    ranked: dict = {}
    for _, r in read_run(run / "test.run"):
        ranked.setdefault(r.query, {})[r.doc] = r.score
    assert {q: docs.keys() for q, docs in ranked.items()} == {q: d.keys() for q, d in qrels.items()}
    assert main(["predict", str(run), "--ckpt_path", "best"]) == 0
    assert (run / "predict.run").read_text() == (run / "test.run").read_text()
    measured = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "map"}).evaluate(ranked)
    with_relevant = [q for q, docs in qrels.items() if any(docs.values())]
    for name, theirs in (("nDCG@10", "ndcg_cut_10"), ("AP", "map")):
        mean = sum(measured[q][theirs] for q in with_relevant) / len(with_relevant)
        assert metrics(run)["test"][name] == pytest.approx(mean, abs=1e-6)


def test_the_checkpoint_keeps_what_normalises(run, tmp_path, letor_folder):
    """Measured in a folder without train, or with another one, the features are those that the
    model was trained on.
    """
    assert main(["test", str(run)]) == 0
    expected = metrics(run)["test"]["AP"]
    ranking = (run / "test.run").read_text()
    for name in ("alone", "other"):
        folder = write_letor(tmp_path / name, *(["train"] if name == "other" else []), seed=9)
        (folder / "test.txt").write_text((letor_folder / "test.txt").read_text())
        for file in folder.glob("vali*"):
            file.unlink()
        assert main(["test", str(run), "--data.init_args.path", str(folder)]) == 0
        assert metrics(run)["test"]["AP"] == expected and (run / "test.run").read_text() == ranking


@pytest.mark.long
def test_a_run_that_stopped_within_an_epoch_goes_on_to_the_same_weights(config, tmp_path, capsys):
    """6 steps an epoch: stopped after 9, it ends after 24 where the whole run ends."""

    def fit(name, *options):
        run = tmp_path / name
        words = ["fit", "--config", str(config), "--model.decay", "false"]
        code = main([*words, "--trainer.default_root_dir", str(run), *options])
        last = run / "checkpoints/last.ckpt"
        return torch.load(last, weights_only=True) if code == 0 else code

    expected = fit("whole")
    assert fit("parts", "--trainer.max_steps", "9")["global_step"] == 9
    again = ["parts", "--ckpt_path", "last"]
    assert fit(*again, "--data.init_args.normalise", "[min-max]") == 2
    other = write_letor(tmp_path / "other", seed=4)
    assert fit(*again, "--data.init_args.path", str(other)) == 2
    told = capsys.readouterr().err
    assert "data.normalise was" in told and "the checkpoint was trained on other data" in told
    resumed = fit(*again)
    assert resumed["global_step"] == expected["global_step"] == 24
    for name, weights in expected["state_dict"].items():
        assert torch.equal(resumed["state_dict"][name], weights)


def test_a_folder_of_ones_own_with_a_configuration_that_holds_out_a_dev_split(
    tmp_path, letor_folder, capsys
):
    """What the line says is done as it stands, and helps."""
    config = Path(__file__).parent.parent / "experiments/features/lambdarank.yaml"
    words = ["fit", "--config", str(config), "--data.path", str(letor_folder)]
    words += ["--trainer.default_root_dir", str(tmp_path / "run"), "--trainer.max_epochs", "1"]
    assert main(words) == 2
    (line,) = re.findall("^ltr: .*$", capsys.readouterr().err, re.M)
    helps = re.search(r"(--data\.dev_share null) \(option data\.dev_share\)$", line)
    assert main([*words, *helps[1].split()]) == 0


def test_only_what_a_stage_needs_is_read(run, config, tmp_path, letor_folder, capsys):
    """A checkpoint is measured beside a broken or a wider train file; a wider test file is found
    before training, not after.
    """
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "test.txt").write_text((letor_folder / "test.txt").read_text())
    again = [str(run), "--data.init_args.path", str(folder)]
    for train in ("not a row\n", "1 qid:1 9:1\n0 qid:1 1:1\n"):
        (folder / "train.txt").write_text(train)
        assert main(["test", *again, "--data.init_args.dev_share", "0.5"]) == 0
    assert main(["predict", *again]) == 0 and main(["validate", *again]) == 2
    assert "has no 'dev' split; 'ltr validate' needs it" in capsys.readouterr().err
    (folder / "train.txt").write_text("1 qid:1 1:1\n0 qid:1 2:1\n")
    (folder / "test.txt").write_text("1 qid:1 7:1\n")
    fit = ["fit", "--config", str(config), "--trainer.default_root_dir", str(tmp_path / "wide")]
    assert main([*fit, "--data.init_args.path", str(folder)]) == 2
    assert "the data has 7 features, the model 6" in capsys.readouterr().err


def test_a_broken_line_is_one_message(config, tmp_path, capsys):
    folder = write_letor(tmp_path / "broken")
    lines = (folder / "vali.txt").read_text().splitlines()
    lines[6] = lines[6].replace(" 2:", " two:")
    (folder / "vali.txt").write_text("\n".join(lines))
    fit = ["fit", "--config", str(config), "--trainer.default_root_dir", str(tmp_path / "run")]
    assert main([*fit, "--data.init_args.path", str(folder)]) == 2
    err = capsys.readouterr().err.strip()
    assert err.count("\n") == 0 and f"{folder / 'vali.txt'}:7:" in err
