"""``ltr encode`` and what reads its folder."""

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from ltr.__main__ import main
from ltr.cli.encode import _place_among_workers
from ltr.cli.encode import encode as encode_command
from ltr.data.collection import open_collection
from ltr.data.trec import read_run
from ltr.errors import InputError
from ltr.search import encoding_worker as room
from ltr.use.corpus_encoding import open_encoding


def encode(ranker, corpus, output, *options: str) -> int:
    return main(["encode", str(ranker), "--corpus", str(corpus), "--output", str(output), *options])


@pytest.fixture
def never_encodes(monkeypatch):
    """From when it is called on, no document may be encoded."""

    def refuse(*_):
        raise AssertionError("a document is encoded")

    return lambda: monkeypatch.setattr(room, "encode_batches", refuse)


def test_a_folder_is_made_gone_on_with_and_checked(backbone, collection_folder, tmp_path, capsys):
    folder = tmp_path / "out/encoded"
    assert encode(backbone, collection_folder, folder) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("float16: of the 100 nearest texts of a sample ")
    assert float(said[0].split()[-5]) > 98
    manifest = json.loads((folder / "manifest.json").read_text())
    of_shards = "720 texts in 3 shards, 16 dimensions in float16"
    assert said[1] == f"{folder}: {of_shards}; digest {manifest['digest']}"
    assert manifest["ranker"] == str(backbone) and manifest["numbers"] == "float16"

    assert encode(backbone, collection_folder, folder) == 0
    assert f", all checked; digest {manifest['digest']}" in capsys.readouterr().out

    (folder / "000001.npy").unlink()
    (folder / "manifest.json").unlink()
    assert encode(backbone, collection_folder, folder) == 0
    assert json.loads((folder / "manifest.json").read_text()) == manifest


CHANGES = {
    "cut": lambda content: content[: len(content) // 2],
    "emptied": lambda content: b"",
    "garbage": lambda content: b"garbage" * 100,
    "nested": lambda content: b"[" * 100_000,
    "another bit": lambda content: content[:300] + bytes([content[300] ^ 1]) + content[301:],
    "pickled": lambda content: pickle.dumps([1, 2]),
}


def change(file: Path, how: str) -> None:
    """Damage a file of an encoding."""
    content = file.read_bytes()
    if how == "lost":
        file.unlink()
    elif how in CHANGES:
        file.write_bytes(CHANGES[how](content))
    elif how == "of other numbers":
        np.save(file, np.load(file).astype(np.float32))
    elif how == "of another shard":
        shutil.copy(file.with_name("000000.npy"), file)
    else:
        file.write_text(json.dumps(json.loads(content) | json.loads(how)))


SHARD = ("lost", "cut", "emptied", "garbage", "pickled", "another bit", "of other numbers")
MANIFEST = ["lost", "cut", "nested", '{"similarity": []}', '{"similarity": "dot"}']
MANIFEST += ['{"dim": "x"}', '{"digest": null}', '{"count": 7}']
DAMAGES = {
    "000001.npy": [*SHARD, "of another shard"],
    "ids.npy": ["lost", "another bit", "cut"],
    "ids.offsets.npy": ["lost", "emptied", "another bit"],
    "manifest.json": MANIFEST,
}


@pytest.fixture(scope="module")
def whole(backbone, collection_folder, tmp_path_factory):
    """A finished folder, to be read."""
    folder = tmp_path_factory.mktemp("encoded") / "whole"
    assert encode(backbone, collection_folder, folder) == 0
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    """A finished folder, to be changed."""
    return Path(shutil.copytree(whole, tmp_path / "encoded"))


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "how"), [(name, how) for name in DAMAGES for how in DAMAGES[name]]
)
def test_the_command_that_made_a_damaged_folder_mends_it(
    backbone, collection_folder, whole, folder, name, how
):
    change(folder / name, how)
    encoding = open_encoding(backbone, str(collection_folder), folder)
    assert not encoding.check()
    encoding.encode_missing()
    manifest = encoding.finish()
    before = files_of(whole)
    after = files_of(folder)
    assert json.loads(before.pop("manifest.json")) | {"made": manifest["made"]} == manifest
    assert json.loads(after.pop("manifest.json")) == manifest
    assert after == before
    assert encoding.check()


def test_a_circle_is_left_by_the_command_that_is_named(backbone, collection_folder, folder, capsys):
    (folder / "000001.npy").unlink()
    search = ["search", backbone, "--corpus", str(collection_folder), "--query", "w1"]
    assert main([*search, "--encoded", str(folder)]) == 2
    assert "000001.npy is missing or damaged; start its ltr encode again" in capsys.readouterr().err
    assert encode(backbone, collection_folder, folder) == 0
    assert "all checked" not in capsys.readouterr().out
    assert main([*search, "--encoded", str(folder)]) == 0


@pytest.mark.parametrize(
    "names",
    [
        ["thesis.txt"],
        ["config.yaml", "checkpoints/last.ckpt"],
        ["manifest.json", "ids.npy"],
        [".git/config"],
        ["manifest.json", "000000.npy"],
    ],
)
@pytest.mark.parametrize("by_command", [True, False])
def test_a_folder_that_holds_something_else_is_left_as_it_is(
    backbone, collection_folder, tmp_path, capsys, names, by_command
):
    folder = tmp_path / "mine"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    before = sorted(folder.rglob("*"))
    if by_command:
        assert encode("no model", collection_folder, folder) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ltr: --output must be a new folder, an empty one, or one with plan")
    else:
        with pytest.raises(InputError, match="the folder of the encoding must be a new folder"):
            open_encoding(backbone, str(collection_folder), folder)
    assert sorted(folder.rglob("*")) == before


def test_an_empty_folder_is_taken(backbone, collection_folder, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / ".plan.json.ltr-lock").touch()  # another worker begins it
    assert open_encoding(backbone, str(collection_folder), folder).missing() == [0, 1, 2]


def test_ltr_search_reads_it(backbone, collection_folder, whole, capsys, never_encodes):
    words = ["search", backbone, "--corpus", str(collection_folder), "--query", "w1 w3"]
    assert main(words) == 0
    expected = capsys.readouterr().out
    never_encodes()
    assert main([*words, "--encoded", str(whole)]) == 0
    assert capsys.readouterr().out == expected and expected.count("\n") == 10


@pytest.mark.long
def test_ltr_mine_reads_it(collection_folder, tmp_path, never_encodes, copied_run):
    run = copied_run(tmp_path, "dual")
    mined = {}
    for name in ("one", "two"):
        options = ["--output", str(tmp_path / name)]
        if name == "two":
            assert encode(run, collection_folder, tmp_path / "encoded") == 0
            options += ["--encoded", str(tmp_path / "encoded")]
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
            never_encodes()
        assert main(["mine", str(run), *options]) == 0
        mined[name] = np.load(tmp_path / name / "ids.npy")
    np.testing.assert_array_equal(mined["one"], mined["two"])


@pytest.mark.parametrize(
    ("precision", "encoded", "said"),
    [
        ("32-true", "nothing", "nothing: expected an encoding, as ltr encode writes it"),
        ("32-true", "other", "got one of another corpus"),
        ("bf16-mixed", "encoded", "of the precision 32-true, not bf"),
    ],
)
def test_what_does_not_fit_is_refused(
    backbone, collection_folder, here, capsys, precision, encoded, said
):
    (here / "two.txt").write_text("w1\nw2\n")
    corpus = {"encoded": collection_folder, "other": "two.txt"}.get(encoded)
    if corpus is not None:
        assert encode(backbone, corpus, encoded, "--precision", "32-true") == 0
    words = ["--corpus", str(collection_folder), "--query", "w1", "--precision", precision]
    assert main(["search", backbone, *words, "--encoded", encoded]) == 2
    assert said in capsys.readouterr().err


def test_other_weights_are_refused(collection_folder, tmp_path, whole, capsys, copied_run):
    run = copied_run(tmp_path, "dual")
    words = ["search", str(run), "--corpus", str(collection_folder), "--query", "w1"]
    assert main([*words, "--encoded", str(whole)]) == 2
    assert "got one of other weights" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--output", "two.txt"], "--output must be a folder, got a file"),
        (["--output", "s3://bucket/x"], "s3://bucket/x"),
        (["--output", "out", "--numbers", "float64"], "float64"),
        (["--output", "out", "--corpus", "none.jsonl"], "found no such file"),
    ],
)
def test_bad_words_are_one_line(backbone, here, capsys, words, said):
    (here / "two.txt").write_text("w1\nw2\n")
    corpus = [] if "--corpus" in words else ["--corpus", "two.txt"]
    assert main(["encode", backbone, *corpus, *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert said in line and not (here / "out/plan.json").exists()


@pytest.mark.parametrize(
    ("variables", "gpus", "device"),
    [
        ({}, 8, "cuda:0"),
        ({"LOCAL_RANK": "3"}, 8, "cuda:3"),  # of torchrun
        ({"SLURM_LOCALID": "3"}, 8, "cuda:3"),  # of srun
        ({"SLURM_LOCALID": "3"}, 1, "cuda:0"),  # of srun --gpus-per-task 1
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 8, "cuda:1"),  # of torchrun inside srun
    ],
)
def test_each_process_of_a_machine_takes_its_own_gpu(
    tmp_path, monkeypatch, variables, gpus, device
):
    taken = []

    def refuse(*args):
        taken.append(args[-1])
        raise InputError("no further")

    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr("ltr.cli.encode.open_encoding", refuse)
    with pytest.raises(InputError, match="no further"):
        encode_command("R", corpus="C", output=str(tmp_path / "out"))
    assert taken == [device]


def array(own, least, most, step, count):
    """The variables of an element of an array of SLURM."""
    numbers = {"ID": own, "MIN": least, "MAX": most, "STEP": step, "COUNT": count}
    return {f"SLURM_ARRAY_TASK_{name}": str(number) for name, number in numbers.items()}


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),  # of torchrun
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, (3, 8)),  # of srun
        (
            {"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
            (1, 2),
        ),  # of torchrun inside srun
        (
            # of an array of jobs, each with two tasks: the elements 1, 2, 3
            {
                **array(3, 1, 3, 1, 3),
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "2",
            },
            (5, 6),
        ),
        (array(8, 0, 8, 4, 3), (2, 3)),  # of 0-11:4
        (array(17, 3, 17, 14, 2), (1, 2)),  # of 3,17
        (array(17, 3, 17, 2, 3), (0, 1)),  # of 3,5,17: with gaps
        ({"SLURM_ARRAY_TASK_ID": "3"}, (0, 1)),
    ],
)
def test_each_worker_has_a_place_of_its_own(monkeypatch, variables, place):
    for name in [name for name in os.environ if name.startswith(("SLURM", "RANK", "WORLD"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _place_among_workers() == place


@pytest.mark.parametrize(("number", "count", "first"), [(0, 1, 0), (1, 2, 1), (2, 3, 2), (7, 8, 2)])
def test_a_worker_begins_at_its_place(
    backbone, collection_folder, tmp_path, monkeypatch, number, count, first
):
    """Of 3 shards, at the number of the worker × 3 / all workers, rounded down."""
    begun = []
    prepare = room.Worker._prepare
    monkeypatch.setattr(
        room.Worker, "_prepare", lambda own, shard: begun.append(shard) or prepare(own, shard)
    )
    encoding = open_encoding(backbone, str(collection_folder), tmp_path / "out")
    encoding.encode_missing(number, count)
    assert begun == [(first + place) % 3 for place in range(3)]


def test_a_cross_encoder_encodes_nothing(tmp_path, capsys, copied_run):
    (tmp_path / "two.txt").write_text("w1\nw2\n")
    run = copied_run(tmp_path, "cross")
    assert encode(run, tmp_path / "two.txt", tmp_path / "out") == 2
    assert "is no dual encoder, and only one can encode a corpus" in capsys.readouterr().err


@pytest.mark.long
def test_a_test_by_search_and_a_search_read_one_another(
    collection_folder, tmp_path, monkeypatch, copied_run, never_encodes
):
    """What ``ltr test`` has encoded, in float32, ``ltr search`` and ``ltr mine`` find, and a second
    ``ltr test``.
    """
    options = ["--data.evaluation.candidates", "corpus", "--data.evaluation.depth", "10"]
    run = copied_run(tmp_path, "dual", *options)
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))
    assert main(["test", str(run)]) == 0
    assert not (run / "encodings").exists()
    first = (run / "test.run").read_text()
    never_encodes()
    assert main(["test", str(run)]) == 0 and (run / "test.run").read_text() == first
    words = ["search", str(run), "--corpus", str(collection_folder), "--query", "w1"]
    assert main(words) == 0
    assert main(["mine", str(run), "--output", str(tmp_path / "mined")]) == 0


def test_tasks_of_an_engine(backbone, collection_folder, tmp_path, whole):
    """As the drivers of examples/cluster do: each shard by a task, in any order."""
    first = open_encoding(backbone, str(collection_folder), tmp_path / "parts")
    second = open_encoding(backbone, str(collection_folder), tmp_path / "parts")
    assert first.missing() == [0, 1, 2] and first.overlap is None
    second.encode(1)
    assert first.missing() == [0, 2]
    first.encode(2)
    second.encode(0)
    made = {file: file.stat().st_mtime_ns for file in (tmp_path / "parts").glob("*.npy")}
    first.encode(1)  # of a task that is tried again, though it was done
    assert {file: file.stat().st_mtime_ns for file in made} == made and len(made) == 3
    assert first.finish() == second.finish()
    digest = json.loads((whole / "manifest.json").read_text())["digest"]
    assert first.finish()["digest"] == digest


def test_a_run_names_the_documents_of_its_corpus(backbone, collection_folder, tmp_path, whole):
    """Row i of an encoding is document i of the corpus, by its id."""
    docs = open_collection(str(collection_folder)).corpus
    queries = tmp_path / "queries.jsonl"
    rows = [3, 400, 719]
    lines = [json.dumps({"_id": f"q{row}", "text": docs.texts[row]}) for row in rows]
    queries.write_text("\n".join(lines) + "\n")
    output = tmp_path / "found.trec"
    words = ["search", backbone, "--corpus", str(collection_folder), "--encoded", str(whole)]
    assert main([*words, "--queries", str(queries), "--output", str(output), "--k", "3"]) == 0
    best = {}
    for _, line in read_run(output):
        best.setdefault(line.query, set()).add(line.doc)
    for row in rows:
        assert docs.ids[row] in best[f"q{row}"]
