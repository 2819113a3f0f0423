"""An address (``s3://…``) where a local path must be is refused before any work, wherever a path
comes in: it would become a folder ``s3:``.
"""

from pathlib import Path

import pytest
import yaml

import ltr
from ltr.__main__ import main
from ltr.callbacks import HardNegativeMining
from ltr.checkpoint import read_checkpoint
from ltr.cli.addresses import refuse_addresses
from ltr.compare.experiment import read_experiments
from ltr.data.collection import open_collection
from ltr.data.files import cache_root
from ltr.data.trec import read_run
from ltr.data.whole_files import write_whole
from ltr.datamodules import FeatureDataModule, Labels, TripletDataModule
from ltr.errors import InputError, local_path
from ltr.grid.definition import Grid
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.run.init_from import take_weights
from ltr.run.run_folder import RunFolder
from ltr.use.export import export
from ltr.use.teaching import score_lists
from tests.world.configurations import write_cheap_grid

ADDRESS = "s3://bucket/a b/x"
END = f"must be a local path, got '{ADDRESS}'; copy it to a local folder, or mount it"


@pytest.fixture
def files(here, backbone, monkeypatch):
    """A configuration and a grid in the working directory; what lies there must stay as it is."""
    monkeypatch.setenv("LTR_CACHE", str(here / "cache"))
    write_cheap_grid(here, backbone)
    before = sorted(Path().rglob("*"))
    yield
    assert sorted(Path().rglob("*")) == before


FIT = "fit --config a.yaml"
MINING = "--trainer.callbacks+ ltr.callbacks.HardNegativeMining"
# Each command, and what its line calls the path, which is written as @.
COMMANDS = {
    "fit @": "the run folder",
    "test @": "the run folder",
    "mine @": "the run folder",
    "fit --config @": "--config",
    "fit --config=@": "--config",
    f"{FIT} --trainer.default_root_dir @": "trainer.default_root_dir",
    f"{FIT} --init_from @": "init_from",
    f"{FIT} --ckpt_path @": "ckpt_path",
    f"{FIT} --model.ranker.backbone @": "model.ranker.backbone",
    f"{FIT} --model.ranker.doc_backbone @": "model.ranker.doc_backbone",
    f"{FIT} --data.path @": "data.path",
    f"{FIT} --data.negatives @": "data.negatives",
    f"{FIT} --data.negatives {{'@':2}}": "data.negatives",
    f"{FIT} --data.labels.scores @": "data.labels.scores",
    f"{FIT} {MINING} --trainer.callbacks.miner @": "trainer.callbacks.miner",
    f"{FIT} {MINING} --trainer.callbacks.judge @": "trainer.callbacks.judge",
    "mine --config a.yaml --output @": "output",
    "mine --config a.yaml --trec @": "trec",
    "rank @ --query w1 --documents d.txt": "ranker",
    "rank model --query w1 --documents @": "documents",
    "rank model --run @ --data data --output out": "run",
    "rank model --run run --data @ --output out": "data",
    "rank model --run run --data data --output @": "output",
    "search @ --corpus data": "ranker",
    "search model --corpus @": "corpus",
    "search model --corpus data --queries @ --output out": "queries",
    "search model --corpus data --queries q.txt --output @": "output",
    "search model --corpus data --rerank @": "rerank",
    "export @ out": "ranker",
    "export model @": "folder",
    "export model out --to onnx --int8 @": "int8",
    "score model @ --data data --output out": "rankers",
    "score model --data @ --output out": "data",
    "score model --data data --output @": "output",
    "score model --data data --output out --documents @": "documents",
    "compare a @": "runs",
    "compare a b --html @": "html",
    "compare a b --markdown @": "markdown",
    "compare a b --latex @": "latex",
    "compare a b --csv @": "csv",
    "grid @": "file",
    "grid grid.yaml --runs @": "runs",
    "grid grid.yaml --html @": "html",
    "reproduce @": "run",
    "reproduce run --output @": "output",
    "negatives import @ out --data data": "source",
    "negatives import a.npy @ --data data": "output",
    "negatives import a.npy out --data @": "data",
    "negatives import a.npy out --data data --distances @": "distances",
    "negatives diff a @ --data data": "",
    "negatives diff a b --data @": "data",
    "negatives diff a b --data data --tsv @": "tsv",
    "negatives audit @ --judge model": "folder",
    "negatives audit a --judge @": "judge",
    "negatives audit a --judge model --data @": "data",
    "negatives audit a --judge model --tsv @": "tsv",
}


@pytest.mark.parametrize(("command", "option"), COMMANDS.items())
def test_on_the_command_line(command, option, files, capsys):
    words = [word.replace("@", ADDRESS) for word in command.split()]
    assert main(words) == 2
    captured = capsys.readouterr()
    *_, line = captured.err.splitlines()
    assert line.endswith(f"{option}: {END}") and captured.err.count("local path") == 1
    if option:
        assert line == f"ltr: {option}: {END}"


def test_a_web_address_is_one_too_but_in_a_class_of_the_users_own():
    callback = {"class_path": "mine.Tell", "init_args": {"url": "https://h/x"}}
    refuse_addresses({"trainer": {"callbacks": [callback]}})
    for options in ({"data": "https://h/x"}, {"trainer": {"default_root_dir": "https://h/x"}}):
        with pytest.raises(InputError, match="must be a local path, got 'https://h/x'"):
            refuse_addresses(options)
    callback["init_args"]["url"] = ADDRESS
    with pytest.raises(InputError, match=r"trainer\.callbacks\.url: must be a local path"):
        refuse_addresses({"trainer": {"callbacks": [callback]}})


@pytest.mark.parametrize("option", ["data.path", "data.negatives", "model.ranker.backbone"])
def test_a_class_of_ours_takes_no_web_address(option, files, capsys):
    assert main([*FIT.split(), f"--{option}", "https://h/x"]) == 2
    assert "must be a local path, got 'https://h/x'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["init_from", "data.path"])
def test_for_all_cells_of_a_grid(option, files, capsys):
    assert main(["grid", "grid.yaml", f"--{option}", ADDRESS]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.endswith(f"would be refused, so nothing was trained: {option}: {END}")


def test_a_query_and_a_service_may_be_an_address(files, capsys):
    """What is wrong here is another thing."""
    assert main(["rank", "model", "--query", ADDRESS, "--documents", "none.txt"]) == 2
    assert "none.txt: expected a file of texts" in capsys.readouterr().err
    logger = {"class_path": "CSVLogger", "init_args": {"save_dir": "logs", "prefix": ADDRESS}}
    words = ["--trainer.logger", yaml.safe_dump(logger, default_flow_style=True)]
    assert main(["fit", "--config", "a.yaml", *words]) == 2
    assert "there is no such data folder" in capsys.readouterr().err


# What Python code gives a path to, and what the line calls it.
CALLS = {
    "load": (lambda path: ltr.load(path), "source"),
    "export of": (lambda path: export(path, "out"), "source"),
    "export to": (lambda path: export("model", path), "folder"),
    "export, int8": (lambda path: export("model", "out", "onnx", str(path)), "path"),
    "cross-encoder": (lambda path: PairWiseBertRanker(str(path)), "backbone"),
    "dual encoder": (lambda path: DualEncoder(str(path)), "backbone"),
    "collection": (lambda path: open_collection(path), "path"),
    "triplets": (lambda path: TripletDataModule(path), "path"),
    "features": (lambda path: FeatureDataModule(path), "path"),
    "negatives": (lambda path: TripletDataModule("data", negatives=path), "negatives"),
    "scores": (lambda path: Labels(scores=str(path)), "labels.scores"),
    "miner": (lambda path: HardNegativeMining(miner=str(path)), "HardNegativeMining: miner"),
    "judge": (lambda path: HardNegativeMining(judge=str(path)), "HardNegativeMining: judge"),
    "run folder": (lambda path: RunFolder(path), "the run folder"),
    "checkpoint": (lambda path: read_checkpoint(path), "--ckpt_path"),
    "weights": (lambda path: take_weights(None, path, "--init_from"), "--init_from"),
    "runs": (lambda path: read_experiments([str(path)]), "run"),
    "grid": (lambda path: Grid.read(Path(path)), "file"),
    "run file": (lambda path: list(read_run(path)), "the file"),
    "teacher": (lambda path: score_lists([], None, None, Path(path)), "output"),
    "text": (lambda path: write_whole(path, ["x"]), "the output"),
}


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("name", CALLS)
def test_in_python(name, kind, files):
    call, option = CALLS[name]
    with pytest.raises(InputError) as error:
        call(kind(ADDRESS))
    assert error.value.message == f"{option}: {END}"


def test_where_a_ranker_is_saved_and_where_derived_data_lies(backbone, files, monkeypatch):
    ranker = PairWiseBertRanker(backbone, max_length=20)
    with pytest.raises(InputError, match="the output: must be a local path"):
        ranker.save(ADDRESS)
    monkeypatch.setenv("LTR_CACHE", ADDRESS)
    with pytest.raises(InputError, match="LTR_CACHE: must be a local path"):
        cache_root()


@pytest.mark.parametrize(
    "address", ["gs://b", "https://host/best.ckpt", "file:///tmp/run", "hf://org/name"]
)
def test_of_any_scheme(address):
    with pytest.raises(InputError, match=f"source: must be .*, got '{address}'; copy"):
        ltr.load(address)


@pytest.mark.parametrize("path", ["a:b/c", "c:/x", "package:name", "ir_datasets:a/b", "./s3://b"])
def test_what_is_no_address(path):
    local_path("path", path)
