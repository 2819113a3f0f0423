import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ltr import draws, machine_checks
from ltr.__main__ import main
from ltr.machine_checks import (
    ReportLine,
    check_dropout,
    check_encoding,
    check_gather,
    check_search,
)
from ltr.models.encoder import attention, text_encoder
from ltr.models.encoder.self_check import PathCheck
from ltr.search.faiss_index import FaissIndex
from tests.world.decoders import save_decoder

ROOT = Path(__file__).parents[1]
right = attention._attend_packed


@pytest.fixture
def alone(monkeypatch):
    """Without the check that starts two processes."""

    def not_run(backend):
        return ReportLine(f"gather, {backend}", "", "not run", "in this test")

    monkeypatch.setattr(machine_checks, "check_gather", not_run)


def report(text: str) -> dict[str, list[str]]:
    """Way, result and reason by what was looked at."""
    lines = [line.split("\t") for line in text.splitlines()]
    assert {len(line) for line in lines} == {4} and len({line[0] for line in lines}) == len(lines)
    return {what: rest for what, *rest in lines}


@pytest.mark.long
def test_the_command_in_a_pipe():
    command = [sys.executable, "-m", "ltr", "doctor"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    found = report(done.stdout)
    assert found["torch"][0] == torch.__version__
    assert "allocator" in found and "CPU features" in found and "cores" in found["machine"][0]
    assert found["linear layers, CPU, float32"][0] in ("torch", "oneDNN")
    checks = {what: result for what, (_, result, _) in found.items() if result}
    on_cpu = ["search, Flat", "search, IVF1,Flat", "gather, two processes, gloo"]
    for precision in ("float32", "bfloat16"):
        on_cpu += [f"attention, CPU, {precision}, {stage}" for stage in ("training", "inference")]
    assert {checks.pop(what) for what in on_cpu} == {"ok"}
    if torch.cuda.device_count() < 2:
        assert checks.pop("gather, two processes, nccl") == "not run"
    assert set(checks.values()) <= {"ok"}


def test_a_backbone_and_a_table_on_a_terminal(backbone, alone, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["doctor", "--backbone", backbone]) == 0
    out = capsys.readouterr().out
    assert "attention" in out and "\t" not in out and "┃" in out


def test_bad_input_is_one_line(capsys):
    for option, value, said in (
        ("--backbone", "/nowhere", "backbone '/nowhere' can't be loaded"),
        ("--depth", "3", "--depth"),
    ):
        assert main(["doctor", option, value]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("ltr: ") and said in err and err.count("\n") == 1


def test_each_gpu_says_whether_it_computes_bfloat16(monkeypatch):
    cards = [("Tesla T4", 7, 5), ("NVIDIA H100", 9, 0)]
    gpus = [
        SimpleNamespace(name=name, total_memory=16 * 2**30, major=major, minor=minor)
        for name, major, minor in cards
    ]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: gpus[number])
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: cards[device.index][0])
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: cards[device.index][1:])
    found = [line for line in machine_checks.machine() if line.what.startswith("GPU ")]
    assert found == [
        ("GPU 0", "Tesla T4, 16 GB, sm_75", "", "bfloat16 is emulated"),
        ("GPU 1", "NVIDIA H100, 16 GB, sm_90", "", "bfloat16 is native"),
    ]


def test_dropout_of_a_gpu_is_that_of_a_cpu_or_wrong(monkeypatch):
    """Here a CPU stands for the GPU."""

    def found():
        return check_dropout("cpu")[1:]

    assert found() == ("torch's operations", "fell back", "there is no Triton")
    monkeypatch.setattr(draws, "takes_kernel", lambda x: True)
    assert found() == ("Triton's kernel", "ok", "the numbers of a CPU to the bit")
    other_keys = iter((1, 0) * 2)
    right_keys = machine_checks.keys_inside
    monkeypatch.setattr(
        machine_checks,
        "keys_inside",
        lambda keys, places: right_keys(keys, places) + next(other_keys),
    )
    assert found() == ("Triton's kernel", "wrong", "other numbers than on a CPU")
    monkeypatch.setattr(draws, "_faults", [OSError("no C compiler\nis here")])
    monkeypatch.setattr(machine_checks, "keys_inside", right_keys)
    assert found() == ("torch's operations", "fell back", "Triton: OSError: no C compiler")


def missing(*args):
    raise NotImplementedError("no kernel image is available\nfor this device")


def of_other_sign(*args):
    return -right(*args)


@pytest.mark.parametrize("kernel", [missing, of_other_sign])
def test_a_wrong_kernel_with_another_path_has_fallen_back(kernel, alone, monkeypatch, capsys):
    monkeypatch.setattr(text_encoder, "CHECKS_ITSELF", ("cpu",))
    tiny = machine_checks._tiny()

    def broken():
        monkeypatch.setattr(attention, "_attend_packed", kernel)
        return tiny

    monkeypatch.setattr(machine_checks, "_tiny", broken)
    assert main(["doctor"]) == 0
    lines = report(capsys.readouterr().out).items()
    found = [rest for what, rest in lines if what.startswith("attention")]
    assert len(found) == 4
    for uses, result, why in found:
        assert (uses, result) == ("padded, by transformers", "fell back")
        assert ("no kernel image" in why) if kernel is missing else ("give wrong" in why)


@pytest.mark.parametrize("padded_error", [0.0, float("nan")])
def test_a_wrong_kernel_without_another_path_is_exit_code_1(
    padded_error, alone, monkeypatch, capsys
):
    """On a CPU no encoder checks itself; where padded texts are wrong too, there is nothing to fall
    back to.
    """
    if padded_error != 0:
        monkeypatch.setattr(text_encoder, "CHECKS_ITSELF", ("cpu",))
    wrong = PathCheck("give wrong outputs", 1.0, padded_error)
    monkeypatch.setattr(text_encoder.TextEncoder, "check_packed", lambda *args: wrong)
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    assert stop.value.code == 1
    found = report(capsys.readouterr().out)["attention, CPU, float32, training"]
    assert found[1:] == ["wrong", "packed texts give wrong outputs"]


def test_an_encoder_that_is_always_padded_has_no_finding(monkeypatch):
    encoder, _ = machine_checks._tiny()
    encoder.reads_packed = False
    assert {finding.result for finding in machine_checks.check_attention(encoder)} == {""}


# Ten documents a query, as a search may find them.
ONE_TWICE = [*range(9), 0]
WRONG = {
    "the worst": lambda scores, rows: (scores.flip(1), rows.flip(1) * 0 + torch.arange(10)),
    "one twice": lambda scores, rows: (scores[:, ONE_TWICE], rows[:, ONE_TWICE]),
    "neighbours": lambda scores, rows: (scores, (rows + 1) % 1000),
    "one too few": lambda scores, rows: (scores, rows.masked_fill(torch.arange(10) == 9, -1)),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_search_is_found(fault, monkeypatch):
    def results():
        return [check_search(factory).result for factory in ("Flat", "IVF1,Flat")]

    assert results() == ["ok", "ok"]
    for owner, name in ((machine_checks, "search_exactly"), (FaissIndex, "search")):
        right_search = getattr(owner, name)

        def wrong_search(*args, right_search=right_search, **options):
            return WRONG[fault](*right_search(*args, **options))

        monkeypatch.setattr(owner, name, wrong_search)
    assert results() == ["wrong", "wrong"]


def test_a_search_without_faiss_is_not_run(monkeypatch):
    monkeypatch.setattr("ltr.search.faiss_index.faiss", None)
    finding = check_search("IVF1,Flat")
    assert finding.result == "not run" and "faiss" in finding.why


def test_an_encoding_that_autocast_spoils_is_found():
    encoder, tokenizer = machine_checks._tiny()
    assert check_encoding(encoder, tokenizer, torch.bfloat16).result == "ok"
    encoder.register_forward_hook(lambda *args: args[2] + 0.1 * torch.is_autocast_enabled("cpu"))
    assert check_encoding(encoder, tokenizer, torch.bfloat16).result == "wrong"


def test_a_wrong_gather_is_found(monkeypatch):
    """The real one, with two processes, runs in the command above."""
    whole = machine_checks._gradient(slice(None), "cpu")

    def ranks_get(*gradients):
        def spawn(_, args, nprocs):
            for rank, gradient in enumerate(gradients):
                torch.save(gradient, f"{args[1]}/{rank}")

        monkeypatch.setattr(machine_checks, "spawn", spawn)
        return check_gather("gloo").result

    assert ranks_get(0.5 * whole, 1.5 * whole) == "ok"
    assert ranks_get(whole, 0 * whole) == "wrong"
    monkeypatch.setattr(machine_checks, "spawn", lambda *_, args, nprocs: missing())
    assert check_gather("gloo")[2:] == ("wrong", "for this device")


@pytest.mark.parametrize("name", ["qwen3", "gemma2"])
def test_a_decoder_is_examined(name, tmp_path):
    """By its last token; Gemma 2's scores are capped, which no fast kernel computes."""
    encoder, tokenizer = machine_checks._load(save_decoder(tmp_path, name))
    assert encoder.pooling == "last"
    findings = list(machine_checks.check_attention(encoder))
    assert [finding.result for finding in findings] == ["ok"] * 4
    assert all(("capped" in finding.uses) == (name == "gemma2") for finding in findings)
    assert machine_checks.check_encoding(encoder, tokenizer, torch.bfloat16).result == "ok"
