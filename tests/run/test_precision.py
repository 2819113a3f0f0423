"""What ``trainer.precision: auto`` is taken for, what is said of it, and that a run keeps it. No test
needs a GPU: the function that looks for them is told which there are, and the CPU computes.
"""

import shutil
from pathlib import Path

import pytest
import torch
import yaml

import ltr
from ltr.__main__ import main
from ltr.checkpoint import FORMAT
from ltr.cli.mine import MiningTrainer
from ltr.cli.parsed import ParsedCommand
from ltr.run import precision
from ltr.run.precision import ChosenPrecision, Gpu, chosen_precision, is_emulated
from ltr.run.run_folder import RunFolder
from tests.world.commands import run_ltr
from tests.world.runs import trained_on_texts

T4 = ("Tesla T4", (7, 5))
A100 = ("NVIDIA A100", (8, 0))
H100 = ("NVIDIA H100", (9, 0))


@pytest.fixture
def machine(monkeypatch):
    """``machine(*cards)``: as if these GPUs were there, by name and compute capability."""
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)

    def pretend(*cards):
        monkeypatch.setattr("torch.cuda.device_count", lambda: len(cards))
        monkeypatch.setattr("torch.cuda.get_device_name", lambda device: cards[device.index][0])
        monkeypatch.setattr(
            "torch.cuda.get_device_capability", lambda device: cards[device.index][1]
        )

    return pretend


def options(**changes):
    usual = {"accelerator": "auto", "devices": "auto", "num_nodes": 1, "plugins": None}
    return usual | {"precision": "auto"} | changes


def choice(reads_features=False, checkpoint=None, trains=True, **changes) -> ChosenPrecision:
    return chosen_precision(options(**changes), reads_features, checkpoint, trains)


CASES = [
    ([], {}, "32-true"),
    ([T4], {}, "32-true"),
    ([A100], {}, "bf16-mixed"),
    ([H100], {}, "bf16-mixed"),
    ([H100, A100, H100], {}, "bf16-mixed"),
    ([H100, T4], {}, "32-true"),
    ([T4, H100], {"accelerator": "gpu"}, "32-true"),
    ([H100, T4], {"devices": 1}, "bf16-mixed"),
    ([H100, T4], {"devices": "1"}, "bf16-mixed"),
    ([H100, T4], {"devices": 2}, "32-true"),
    ([H100, T4], {"devices": -1, "accelerator": "cuda"}, "32-true"),
    ([T4, H100, A100], {"devices": [1, 2]}, "bf16-mixed"),
    ([T4, H100, A100], {"devices": "1,2"}, "bf16-mixed"),
    ([T4, H100, A100], {"devices": [0, 2]}, "32-true"),
    ([H100], {"accelerator": "cpu"}, "32-true"),
    ([H100], {"accelerator": "cpu", "devices": 4}, "32-true"),
    ([H100], {"precision": "32-true"}, "32-true"),
    ([H100], {"precision": None}, "32-true"),
    ([H100], {"precision": 16}, "16-mixed"),
    ([T4], {"precision": "bf16"}, "bf16-mixed"),
    # What Lightning will refuse.
    ([H100], {"devices": 2}, "32-true"),
    ([H100], {"devices": "many"}, "32-true"),
]


@pytest.mark.parametrize(("cards", "changes", "expected"), CASES)
def test_all_devices_of_the_trainer_decide(machine, cards, changes, expected):
    machine(*cards)
    assert choice(**changes).name == expected


def test_the_processes_of_a_launcher_take_the_first_gpus_of_a_node(machine, monkeypatch):
    machine(H100, H100, T4)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    monkeypatch.setenv("WORLD_SIZE", "4")
    for processes, expected in ((2, "bf16-mixed"), (4, "32-true")):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert choice().name == expected  # of 4 there are 3: Lightning refuses


def test_feature_vectors_are_not_rounded(machine):
    machine(H100)
    chosen = choice(reads_features=True)
    assert chosen.name == "32-true"
    assert chosen.line == "precision 32-true, as bfloat16 would round the feature vectors"
    assert choice(reads_features=True, precision="bf16-mixed").name == "bf16-mixed"
    machine()
    assert choice(reads_features=True).line is None


H100S = "cuda:0, cuda:1 (NVIDIA H100, compute capability 9.0)"
LINES = [
    ([], {}, None),
    ([H100], {"accelerator": "cpu"}, None),
    (
        [H100, H100],
        {},
        f"precision bf16-mixed, as bfloat16 is native to {H100S}; --trainer.precision 32-true computes in float32",
    ),
    (
        [H100, T4],
        {},
        "precision 32-true, as bfloat16 is not native to cuda:1 (Tesla T4, compute capability 7.5); --trainer.precision 16-mixed computes in float16",
    ),
    (
        [H100, H100],
        {"precision": "32-true"},
        f"precision 32-true, without TF32, though bfloat16 is native to {H100S}; --trainer.precision bf16-mixed computes in it",
    ),
    ([H100], {"precision": "bf16-mixed"}, None),
    ([H100], {"precision": "16-mixed"}, None),
    ([T4], {"precision": "32-true"}, None),
    ([H100, T4], {"precision": "32-true"}, None),
]


@pytest.mark.parametrize(("cards", "changes", "line"), LINES)
def test_one_line_says_what_was_chosen_and_why(machine, cards, changes, line):
    machine(*cards)
    assert choice(**changes).line == line


@pytest.mark.parametrize("cards", [[H100], [T4]])
def test_no_other_precision_is_advised_where_a_command_measures(machine, cards):
    machine(*cards)
    assert "--trainer.precision" in choice().line
    assert "--trainer.precision" not in choice(trains=False).line
    assert choice(trains=False, precision="32-true").line is None
    warnings = [
        choice(trains=trains, precision="bf16-mixed").warning(torch.device("cuda", 0))
        for trains in (True, False)
    ]
    if cards == [T4]:
        assert warnings[0] == f"{warnings[1]}; --trainer.precision 32-true computes in float32"


def test_capabilities_of_rocm_say_nothing_of_bfloat16(machine, monkeypatch):
    machine(("AMD Instinct MI210", (9, 0)))
    monkeypatch.setattr("torch.version.hip", "6.4")
    chosen = choice()
    assert chosen.name == "32-true"
    assert chosen.line.startswith("precision 32-true, as bfloat16 is not known to be native to")
    cuda = torch.device("cuda", 0)
    assert choice(precision="bf16-mixed").warning(cuda) is None and not is_emulated(cuda)


def test_nothing_is_said_of_tf32_that_was_asked_for(machine, monkeypatch):
    machine(H100)
    monkeypatch.setattr("torch.get_float32_matmul_precision", lambda: "high")
    assert choice(precision="32-true").line is None


def test_a_device_that_emulates_bfloat16_is_told(machine, monkeypatch):
    cpu = torch.device("cpu")
    cuda = torch.device("cuda", 0)
    has = {"avx512_bf16": True}
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: has)
    machine(T4)
    words = "precision bf16-mixed is only emulated on "
    assert choice(precision="bf16-mixed").warning(cuda).startswith(f"{words}cuda:0 (Tesla T4")
    assert is_emulated(cuda)
    machine()
    assert choice(precision="bf16-mixed").warning(cpu) is None and not is_emulated(cpu)
    has.clear()
    assert choice(precision="bf16-mixed").warning(cpu).startswith(f"{words}this CPU, slowly")
    assert choice().warning(cpu) is None and is_emulated(cpu)
    machine(H100)
    assert choice().warning(cuda) is None and not is_emulated(cuda)


PLUGIN = {"class_path": "lightning.pytorch.plugins.MixedPrecision", "init_args": {}}
OTHER = {"class_path": "lightning.pytorch.plugins.io.TorchCheckpointIO", "init_args": {}}


@pytest.mark.parametrize("plugins", [PLUGIN, [OTHER, PLUGIN]])
def test_a_plugin_that_says_the_precision_has_the_word(machine, plugins):
    """Lightning refuses both."""
    machine(H100)
    assert choice(plugins=plugins) == (None, [Gpu("cuda:0", *H100)], None, True)
    assert choice(plugins=[OTHER]).name == "bf16-mixed"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [("32-true", "32-true"), (None, "32-true"), ("bf16-mixed", "bf16-mixed"), (16, "16-mixed")],
)
@pytest.mark.parametrize("cards", [[], [T4], [H100]])
def test_a_run_keeps_what_it_has(tmp_path, machine, cards, stored, expected):
    machine(*cards)
    run = RunFolder(tmp_path)
    run.checkpoints.mkdir()
    trainer = {"callbacks": None, "accumulate_grad_batches": 1, "overfit_batches": 0.0}
    config = {
        "seed_everything": 0,
        "model": {"ranker": "R"},
        "data": {"class_path": "D"},
        "trainer": trainer | {"precision": stored},
    }
    run.config.write_text(yaml.safe_dump(config))
    usual = "bf16-mixed" if cards == [H100] else "32-true"
    assert choice(checkpoint=run.last).name == usual  # a start that failed
    of_run = {"format": FORMAT, "identity": {}, "monitor": None, "scores": {}, "stopped": False}
    lightning = {"state_dict": {}, "pytorch-lightning_version": "2.6.0"}
    torch.save(lightning | {"run": of_run | {"precision": expected}}, run.last)
    assert choice(checkpoint=run.last).name == expected
    assert choice(checkpoint=run.last, precision="16-mixed").name == "16-mixed"
    plugged = config | {"trainer": trainer | {"precision": None, "plugins": [PLUGIN]}}
    run.config.write_text(yaml.safe_dump(plugged))  # the plugin has said it
    assert choice(checkpoint=run.last).name == expected
    run.config.unlink()  # the checkpoint has it too
    assert choice(checkpoint=run.last).name == expected
    torch.save(lightning, run.last)  # of no run of ltr
    assert choice(checkpoint=run.last).name == usual


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_of_this_machine_decides():
    properties = torch.cuda.get_device_properties(0)
    chosen = choice(devices=1)
    assert chosen.name == ("bf16-mixed" if properties.major >= 8 else "32-true")
    assert properties.name in chosen.line


def test_no_trainer_is_asked_for_auto(tmp_path):
    with pytest.raises(ValueError, match="'auto'"):
        MiningTrainer(accelerator="cpu", default_root_dir=tmp_path, logger=False)


# Whole commands. The GPUs are pretended, and the trainer takes the CPU.


@pytest.fixture
def h100(monkeypatch):
    """As if the trainer of a command took one."""
    monkeypatch.setattr(precision, "gpus_of", lambda trainer_options: [Gpu("cuda:0", *H100)])


@pytest.fixture
def run(h100, here, collection_folder, backbone) -> Path:
    """A run that was trained and tested with one."""
    return trained_on_texts(here, "cross", collection_folder, backbone)


def stored(run: Path) -> str:
    return yaml.safe_load((run / "config.yaml").read_text())["trainer"]["precision"]


def in_bfloat16(run: Path) -> int:
    """How often a command has computed in it, by the words of Lightning."""
    return (run / "train.log").read_text().count("Using bfloat16 Automatic Mixed Precision")


def test_a_ranker_of_vectors_is_known_by_itself(h100):
    """Whatever data module of one's own serves them."""
    data = "--data ltr.datamodules.ListDataModule --data.path x"
    loss = "--model.loss ltr.losses.SoftmaxLoss"
    for ranker, expected in (
        ("FeatureRanker --model.ranker.n_features 3", "32-true"),
        ("PairWiseBertRanker --model.ranker.backbone b", "bf16-mixed"),
    ):
        words = f"fit {data} {loss} --model.ranker ltr.models.{ranker}"
        assert ParsedCommand(words.split()).settle_precision().name == expected


LINE = "precision bf16-mixed, as bfloat16 is native to cuda:0 (NVIDIA H100, compute capability 9.0)"


def test_a_run_holds_what_was_taken_and_keeps_it(run, monkeypatch):
    assert stored(run) == "bf16-mixed" and in_bfloat16(run) == 2
    assert (run / "train.log").read_text().count(LINE) == 1  # the test has what the run says
    assert ltr.load(run).precision == "bf16-mixed"
    alone = Path(shutil.copy(run / "checkpoints/last.ckpt", "alone.ckpt"))
    assert ltr.load(alone).precision == "bf16-mixed"
    monkeypatch.setattr(precision, "gpus_of", lambda trainer_options: [])
    file = f"--config c.yaml --trainer.default_root_dir {run}"  # says nothing of the precision
    assert run_ltr(f"fit {file} --ckpt_path last --trainer.max_steps 5") == 0
    assert stored(run) == "bf16-mixed" and in_bfloat16(run) == 3
    assert run_ltr(f"test {file} --ckpt_path best") == run_ltr(f"validate {run}") == 0
    assert in_bfloat16(run) == 5
    other = f"--ckpt_path {run}/checkpoints/last.ckpt --trainer.default_root_dir other"
    assert run_ltr(f"predict --config c.yaml {other}") == 0
    assert in_bfloat16(Path("other")) == 1
    assert run_ltr(f"fit {run} --trainer.max_steps 6 --trainer.precision 32-true") == 0
    assert stored(run) == "32-true" and in_bfloat16(run) == 5


@pytest.mark.parametrize("word", ["null", pytest.param("32-true", marks=pytest.mark.long)])
def test_a_run_of_float32_goes_on_in_float32_on_a_gpu(run, capsys, word):
    own = Path("own")
    words = f"--config c.yaml --trainer.default_root_dir {own}"
    assert run_ltr(f"fit {words} --trainer.precision {word}") == 0
    assert stored(own) == "32-true"
    capsys.readouterr()
    assert run_ltr(f"fit {own} --trainer.max_steps 5") == 0
    assert "precision 32-true, without TF32" in capsys.readouterr().out
    assert run_ltr(f"fit {words} --ckpt_path last --trainer.max_steps 6") == 0
    assert stored(own) == "32-true" and in_bfloat16(own) == 0


def test_a_file_may_say_auto(run, capsys):
    Path("auto.yaml").write_text("trainer: {precision: auto}")
    words = "fit --config c.yaml --config auto.yaml --trainer.default_root_dir own"
    assert run_ltr(words) == 0 and stored(Path("own")) == "bf16-mixed"
    assert capsys.readouterr().out.count(LINE) == 1


@pytest.mark.long
def test_a_run_is_reproduced_in_its_precision(run, monkeypatch, capsys):
    """Where no GPU is."""
    monkeypatch.setattr(precision, "gpus_of", lambda trainer_options: [])
    monkeypatch.setattr("ltr.cli.reproduce.run_in_process", main)
    assert run_ltr(f"reproduce {run}") == 0
    assert capsys.readouterr().out.strip().endswith("now: same")
    assert stored(run / "reproduced") == "bf16-mixed"
