"""A run with adapters: what its checkpoints hold, and who opens them."""

import copy
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from safetensors.torch import load_file, save_file
from transformers import AutoModel

import ltr
from ltr.__main__ import main
from ltr.datamodules import TripletDataModule
from ltr.losses import SoftmaxLoss
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.lora import FrozenBase, Lora
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.run.checkpoints import Checkpoints
from ltr.use.export import export
from tests.child_processes import ELSEWHERE, without_ltr
from tests.run.interrupted import check_is_whole, fit, step_of
from tests.test_ranks import two_processes
from tests.world.backbones import make_backbone
from tests.world.rankers import cross_encoder, data_for
from tests.world.runs import metrics, trained_on_texts

pytest.importorskip("peft")
LORA = "--model.ranker.init_args.encoder.lora"
WITH_LORA = [f"{LORA}.r=4", f"{LORA}.dropout=0.1"]
PAIRS = [("w1 w2", "w3 " * 40), ("w5", "w6"), ("w9", "w1 w2 w3"), ("w1 w2", "w1 w4 w2")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, copied_run):
    """A cross-encoder, a dual encoder, and a cross-encoder without adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    copied_run(folder / "cross", "cross", *WITH_LORA)
    copied_run(folder / "dual", "dual", *WITH_LORA)
    copied_run(folder / "whole", "cross")
    return folder


@pytest.fixture
def trained(tmp_path, collection_folder, backbone):
    """``trained(kind, *options)``: a run on the tiny collection."""

    def train(kind: str, *options: str, base: str = backbone) -> Path:
        return trained_on_texts(tmp_path / "run", kind, collection_folder, base, *options)

    return train


def refusal(capsys, *words: object) -> str:
    """What a command says that is refused."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    return capsys.readouterr().err


def adapter_config(folder: Path) -> dict:
    return json.loads((folder / "adapter_config.json").read_text())


def checkpoint(run: Path, name: str = "last.ckpt") -> dict:
    return torch.load(run / "checkpoints" / name, weights_only=True)


def test_a_checkpoint_holds_adapters_heads_and_a_digest(runs):
    """Both layers have six adapters of A and B; the 130 kB of the base are not there."""
    state = checkpoint(runs / "cross/run")["state_dict"]
    adapters = {name for name in state if ".lora_" in name}
    assert len(adapters) == 24 and state.keys() - adapters == {
        "ranker.encoder.base_digest", "ranker.head.weight", "ranker.head.bias",
    }  # fmt: skip
    # Numbers and moments of Adam: 3 · 4 bytes · r · (K + N) of each layer.
    numbers = 2 * 4 * (4 * (16 + 16) + 2 * (16 + 32)) + 17
    assert sum(weight.numel() for name, weight in state.items() if "digest" not in name) == numbers
    moments = checkpoint(runs / "cross/run")["optimizer_states"][0]["state"]
    assert sum(one["exp_avg"].numel() for one in moments.values()) == numbers
    whole = (runs / "whole/run/checkpoints/last.ckpt").stat().st_size
    small = (runs / "cross/run/checkpoints/last.ckpt").stat().st_size
    assert small - 12 * numbers < 60_000 < whole
    assert any(state[name].any() for name in adapters if "lora_B" in name), "they have learnt"
    ranker = checkpoint(runs / "cross/run")["hyper_parameters"]["ranker"]
    lora = ranker["init_args"]["encoder"]["lora"]
    assert lora == {"r": 4, "alpha": 32, "dropout": 0.1, "targets": None}


@pytest.mark.parametrize("kind", ["cross", pytest.param("dual", marks=pytest.mark.long)])
def test_it_is_loaded_tested_compared_and_goes_on(runs, kind, tmp_path):
    run = Path(shutil.copytree(runs / kind / "run", tmp_path / "run"))
    ranker = ltr.load(run, "32-true")
    assert ranker.model.usual_lr == 2e-4
    before = metrics(run)["test"]["nDCG@10"]
    assert main(["test", str(run)]) == 0
    assert metrics(run)["test"]["nDCG@10"] == before
    assert main(["compare", str(run), str(runs / "whole/run")]) == 0
    assert main(["fit", str(run), "--trainer.max_steps", "6"]) == 0
    assert step_of(run) == 6
    ranker_after = ltr.load(run / "checkpoints/last.ckpt", "32-true")
    assert not (ranker.score(PAIRS) == ranker_after.score(PAIRS)).all()


@pytest.mark.long
def test_two_processes_train_as_one(runs, tmp_path):
    """With dropout, also that of adapters. Of layers whose gradient is 0 but for rounding Adam makes
    steps of that.
    """
    config = yaml.safe_load((runs / "cross/run/config.yaml").read_text())
    config["trainer"] |= {"default_root_dir": str(tmp_path / "two"), "max_steps": 4}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    two_processes("fit", tmp_path / "c.yaml")
    alone = checkpoint(runs / "cross/run")["state_dict"]
    together = checkpoint(tmp_path / "two")["state_dict"]
    assert alone.keys() == together.keys()
    for name, weight in alone.items():
        if name != "ranker.head.bias":
            torch.testing.assert_close(together[name], weight, atol=1e-6, rtol=0, msg=name)


def test_the_embeddings_of_other_adapters_have_another_key(runs):
    model = ltr.load(runs / "dual/run").model
    key = model.embedding_key("query")
    assert key == ltr.load(runs / "dual/run").model.embedding_key("query")
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data += 0.1
    assert model.embedding_key("query") != key


def test_a_dual_encoder_mines(runs, tmp_path):
    assert main(["mine", str(runs / "dual/run"), "--output", str(tmp_path / "mined")]) == 0
    assert any((tmp_path / "mined").glob("*.npy"))


def with_backbone(run: Path, folder: Path, backbone: Path) -> Path:
    """A checkpoint of the same run, whose backbone lies elsewhere."""
    found = checkpoint(run)
    found["hyper_parameters"]["ranker"]["init_args"]["backbone"] = str(backbone)
    torch.save(found, folder / "moved.ckpt")
    return folder / "moved.ckpt"


def test_another_base_is_one_line(runs, tmp_path, capsys):
    other = make_backbone(tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights["encoder.layer.0.attention.self.query.weight"][0, 0] += 1e-3
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    moved = with_backbone(runs / "cross/run", tmp_path, other)
    said = refusal(capsys, "export", moved, tmp_path / "out")
    assert said.count("\n") == 1 and "the weights they were trained beside" in said
    assert "moved.ckpt" in said and not (tmp_path / "out").exists()
    same = make_backbone(tmp_path / "same")  # elsewhere, with the same weights
    moved = with_backbone(runs / "cross/run", tmp_path, same)
    assert (ltr.load(moved).score(PAIRS) == ltr.load(runs / "cross/run").score(PAIRS)).all()
    # A resume with another base is refused by the same line.
    run = Path(shutil.copytree(runs / "cross/run", tmp_path / "run"))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"]["ranker"]["init_args"]["backbone"] = str(other)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    state = checkpoint(run)
    state["run"]["identity"]["model.ranker.backbone"] = "other"
    torch.save(state, run / "checkpoints/last.ckpt")
    said = refusal(capsys, "fit", run, "--trainer.max_steps", "6")
    assert "the weights they were trained beside" in said.splitlines()[-1]
    assert "Traceback" not in said


def test_a_run_starts_from_adapters_or_from_the_export(runs, trained, tmp_path, capsys):
    from_adapters = ["--init_from", str(runs / "cross/run"), "--model.lr", "0"]
    run = trained("cross", *WITH_LORA, *from_adapters)
    assert ltr.load(run).score(PAIRS) == pytest.approx(ltr.load(runs / "cross/run").score(PAIRS))
    fit_whole = ["fit", "--config", runs / "whole/run/config.yaml"]
    fit_whole += ["--trainer.default_root_dir", tmp_path / "new"]
    said = refusal(capsys, *fit_whole, *from_adapters)
    assert "its weights are those of adapters" in said
    said = refusal(capsys, *fit_whole, *WITH_LORA, "--init_from", runs / "whole/run")
    assert "its weights are whole, and this ranker has adapters" in said


def test_the_base_of_averaged_weights_stays_to_the_bit(tmp_path, backbone, collection_folder):
    """0.9 a + 0.1 a is rounded to another number than a, and the average is what stays at the end."""
    module = cross_encoder(backbone, SoftmaxLoss(), encoder={"lora": Lora(r=4)}, lr=0.01)
    options = {"negatives_per_query": 2, "batch_size": 8}
    data = data_for(module, TripletDataModule, collection_folder, **options)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    callbacks = [EMAWeightAveraging(decay=0.9), Checkpoints()]
    trainer = Trainer(
        accelerator="cpu", default_root_dir=tmp_path, max_steps=6, callbacks=callbacks, **quiet
    )
    before = dict(copy.deepcopy(module).named_parameters())
    trainer.fit(module, data)
    encoder = module.ranker.encoder
    assert FrozenBase.from_model(encoder.model) == encoder.frozen_base
    for name, weight in module.named_parameters():
        assert torch.equal(weight, before[name]) != weight.requires_grad, name


@pytest.mark.long
def test_the_export_of_a_base_in_bfloat16_is_cast_and_proves_itself(trained, tmp_path, capsys):
    """Its files hold bfloat16, and whoever loads them computes in float32. The head was float32."""
    half = [f"{LORA.removesuffix('lora')}dtype=bfloat16"]
    run = trained("cross", *WITH_LORA, *half)
    capsys.readouterr()
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    told = re.search("adapters are merged and cast to bfloat16: of 256 pairs .*", said).group()
    assert told.endswith((" lists stays", " lists have another order"))
    weights = load_file(tmp_path / "out/model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    (head,) = (tmp_path / "out").glob("*_Dense/model.safetensors")
    assert load_file(head)["linear.weight"].dtype == torch.float32
    loaded = AutoModel.from_pretrained(tmp_path / "out")
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}
    assert all(torch.equal(loaded.get_parameter(n), w.float()) for n, w in weights.items())
    assert main(["verify", str(tmp_path / "out"), "--with", "sentence-transformers"]) == 0


@pytest.mark.parametrize("kind", ["cross", "dual"])
def test_the_export_is_merged_and_scores_alike(runs, kind, tmp_path, capsys):
    run = runs / kind / "run"
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert said.startswith("adapters are merged: of 256 pairs the scores differ by ")
    assert float(said.split("differ by ")[1].split()[0]) < 1e-5
    assert said.endswith("the order of all 16 lists stays")
    scores = ltr.load(run, "32-true").score(PAIRS)
    scale = 0.1 if kind == "dual" else 1  # the temperature is not exported
    exported = ltr.load(tmp_path / "out", "32-true")
    assert exported.score(PAIRS) == pytest.approx(scores * scale, abs=1e-5)
    names = load_file(tmp_path / "out/model.safetensors").keys()
    assert not any("lora" in name or "base_layer" in name for name in names)


def test_a_ranker_in_memory_saves_itself_merged(tmp_path, backbone):
    """A sum is W + alpha / r B A in float32, with alpha / r = 8, and then rounded as W is. The ranker
    goes on to have its adapters.
    """
    options = TextEncoder.Options(lora=Lora(r=4), dtype="bfloat16")
    model = DualEncoder(backbone, max_length=20, encoder=options)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    state = model.state_dict()
    model.save(tmp_path / "out")
    assert model.state_dict().keys() == state.keys()
    weights = load_file(tmp_path / "out/model.safetensors")
    own = "encoder.layer.1.output.dense"
    layer = model.query_tower.encoder.model.get_submodule(own)
    delta = 8 * layer.lora_B.default.weight @ layer.lora_A.default.weight
    total = layer.base_layer.weight.float() + delta
    assert torch.equal(weights[f"{own}.weight"], total.bfloat16().float())


BY_PEFT = """
import torch
from peft import PeftModel
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
from safetensors.torch import load_file

base, folder, has_head, pairs = given
auto = AutoModelForSequenceClassification if has_head else AutoModel
model = auto.from_pretrained(base, dtype=torch.float32)
model = PeftModel.from_pretrained(model, folder).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
found = []
for query, document in pairs:
    inputs = tokenizer(query, document, truncation="only_second", max_length=20, return_tensors="pt")
    with torch.no_grad():
        output = model(**inputs)
    if has_head:
        found.append(output.logits.item())
    else:
        head = load_file(folder + "/head.safetensors")
        pooled = output.last_hidden_state[0].mean(dim=0)
        found.append((head["weight"][0] @ pooled + head["bias"][0]).item())
"""


@pytest.mark.parametrize("where", ELSEWHERE)
def test_peft_loads_the_adapter_and_scores_alike(where, runs, tmp_path, backbone):
    run = runs / "cross/run"
    export(run, tmp_path / "out", "adapter")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "README.md", "adapter_config.json", "adapter_model.safetensors", "head.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    config = adapter_config(tmp_path / "out")
    assert config["r"] == 4 and config["lora_alpha"] == 32
    assert config["base_model_name_or_path"] == backbone
    given = [backbone, str(tmp_path / "out"), False, PAIRS]
    found = without_ltr(BY_PEFT, given, where)
    assert found == pytest.approx(ltr.load(run, "32-true").score(PAIRS).tolist(), abs=1e-5)
    text = (tmp_path / "out/README.md").read_text()
    assert "library_name: peft" in text and backbone in text


@pytest.mark.long
@pytest.mark.parametrize("where", ELSEWHERE)
def test_peft_loads_a_ready_cross_encoder_with_its_head(where, trained, tmp_path):
    from tests.use.exported import classifier

    ready = str(classifier(tmp_path / "ready"))
    run = trained("cross", *WITH_LORA, base=ready)
    export(run, tmp_path / "out", "adapter")
    scores = ltr.load(run, "32-true").score(PAIRS)
    found = without_ltr(BY_PEFT, [ready, str(tmp_path / "out"), True, PAIRS], where)
    assert found == pytest.approx(scores.tolist(), abs=1e-5)
    assert adapter_config(tmp_path / "out")["modules_to_save"] == ["classifier"]
    fresh = PairWiseBertRanker(ready, max_length=20)
    heads = [one.encoder.model.classifier.weight for one in (fresh, ltr.load(run).model)]
    assert not torch.equal(*heads)


@pytest.mark.long
def test_two_towers_are_two_folders(trained, tmp_path, backbone):
    two = [f"--model.ranker.init_args.doc_backbone={backbone}"]
    run = trained("dual", *WITH_LORA, *two)
    export(run, tmp_path / "out", "adapter")
    query, document = (
        load_file(tmp_path / "out" / side / "adapter_model.safetensors")
        for side in ("query", "document")
    )
    assert query.keys() == document.keys() and len(query) == 24
    for side in ("query", "document"):
        config = adapter_config(tmp_path / "out" / side)
        assert config["base_model_name_or_path"] == backbone
    name = "base_model.model.encoder.layer.0.attention.self.query.lora_A.weight"
    assert not torch.equal(query[name], document[name])


def test_what_has_no_adapter_exports_none(runs, tmp_path, capsys):
    out = tmp_path / "out"
    said = refusal(capsys, "export", runs / "whole/run", out, "--to", "adapter")
    assert "this ranker has none; leave out --to adapter" in said and not out.exists()


def test_a_folder_of_an_adapter_is_no_backbone(runs, tmp_path, capsys):
    export(runs / "cross/run", tmp_path / "out", "adapter")
    said = refusal(capsys, "export", tmp_path / "out", tmp_path / "again")
    assert "holds an adapter" in said and "set encoder.lora" in said and said.count("\n") == 1


def test_a_quantised_base_is_refused_without_cuda(tmp_path):
    folder = make_backbone(tmp_path / "quantised")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    for kind in (PairWiseBertRanker, DualEncoder):
        with pytest.raises(ltr.errors.InputError, match="needs a GPU with CUDA"):
            kind(str(folder), max_length=20, encoder=TextEncoder.Options(lora=Lora()))


@pytest.mark.long
def test_a_run_that_is_ended_by_sigterm_resumes_to_the_bit(world, tmp_path):
    """In the midst of an epoch, with dropout of the encoder and of the adapters."""
    variant = "adapters with dropout"
    at = {"class_path": "tests.run.interrupted.TerminatedAt", "init_args": {"step": 2}}
    run = tmp_path / "run"
    assert fit(world, run, {"trainer.callbacks": [at]}, variant) == 143
    assert step_of(run) == 2
    assert main(["fit", str(run)]) == 0
    check_is_whole(world, run, variant=variant)
