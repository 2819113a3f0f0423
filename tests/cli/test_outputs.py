"""An output that can't be written is refused before any work: the rankers, runs and data of these
commands are not there, and would be complained of otherwise.
"""

from pathlib import Path

import pytest

from tests.world.commands import run_ltr
from tests.world.configurations import write_cheap_grid

PROC = Path("/proc/nope/x")
pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder of Linux")

# Each writes a file at the end.
OF_FILES = {
    "--output": [
        "rank model --run a.run --data data --output OUT",
        "search model --corpus data --queries q.tsv --output OUT",
    ],
    "--html": ["compare a b --html OUT"],
    "--latex": ["grid grid.yaml --latex OUT"],
    "--tsv": [
        "negatives diff a b --data data --tsv OUT",
        "negatives audit a --judge model --tsv OUT",
    ],
    "--trec": ["mine --config a.yaml --trec OUT"],
}
# And these a folder.
OF_FOLDERS = {
    "--output": [
        "score model --data data --output OUT",
        "mine --config a.yaml --output OUT",
        "reproduce runs/a/seed=0 --output OUT",
    ],
    "the folder": ["export model OUT"],
    "the output": ["negatives import a.run OUT --data data", "import a.tsv OUT"],
    "--trainer.default_root_dir": ["fit --config a.yaml --trainer.default_root_dir OUT"],
    "--runs": ["grid grid.yaml --runs OUT"],
    "the folder of negatives": ["negatives audit OUT --judge model --policy drop"],
}


def commands(*kinds: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Each command with the words that name its output."""
    return [(name, command) for kind in kinds for name in kind for command in kind[name]]


@pytest.fixture
def refusal(here, backbone, capsys):
    """Runs a command with its output at a place, and returns the last line that it says."""
    write_cheap_grid(here, backbone)

    def refused(command: str, output: Path | str) -> str:
        assert run_ltr(command.replace("OUT", str(output))) == 2
        *_, line = capsys.readouterr().err.splitlines()
        return line

    return refused


@pytest.mark.parametrize(("name", "command"), commands(OF_FILES, OF_FOLDERS))
def test_where_nothing_can_be_written(name, command, refusal):
    """Also as root, who has the right to write into /proc."""
    line = refusal(command, PROC)
    assert line.startswith(f"ltr: {name} must lie where something can be written, got /proc/nope")
    assert line.endswith(
        "nothing can be in /proc (No such file or directory); choose another place"
    )


@pytest.mark.parametrize(("name", "command"), commands(OF_FILES, OF_FOLDERS))
def test_below_a_file(name, command, refusal, tmp_path):
    Path("file").touch()
    line = refusal(command, Path("file/sub/x"))
    assert line.startswith(f"ltr: {name} must lie in a folder, got file/sub")
    assert line.endswith(f"{tmp_path}/file is a file; choose another place")


@pytest.mark.parametrize(("name", "command"), commands(OF_FILES))
def test_a_folder_where_a_file_must_be(name, command, refusal):
    Path("there").mkdir()
    line = refusal(command, Path("there"))
    assert line == f"ltr: {name} must be a file, got a folder, there; name another one"


def test_a_device_where_a_file_must_be(refusal):
    """It would be replaced, by a user who may."""
    (command, *_) = OF_FILES["--output"]
    line = refusal(command, Path("/dev/null"))
    assert line == "ltr: --output must be a file, got a device, /dev/null; name another one"


NAMED = {
    "--output": ["encode model --corpus data --output OUT"],
    "the output": ["export-corpus encoded --format parquet --output OUT"],
    "--json": ["check --data data --json OUT"],
    "--html": ["check --data data --html OUT"],
    "--markdown": ["compare a b --markdown OUT"],
    "--csv": ["grid grid.yaml --csv OUT"],
}
NOT_NAMED = ("--trainer.default_root_dir", "the folder of negatives")  # by default, and an input


@pytest.mark.parametrize(
    ("name", "command"),
    [row for row in commands(OF_FILES, OF_FOLDERS, NAMED) if row[0] not in NOT_NAMED],
)
def test_an_empty_name(name, command, refusal):
    """As of a variable that is not set: --output "$OUT"."""
    before = sorted(Path().rglob("*"))
    line = refusal(command, "''")
    assert line == f"ltr: {name} must be the name of a place, got an empty one; name one"
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("command", OF_FOLDERS["--output"] + OF_FOLDERS["the folder"])
def test_a_file_where_a_folder_must_be(command, refusal):
    Path("there").touch()
    line = refusal(command, Path("there"))
    assert line.endswith(" must be a folder, got a file, there; name another one")


def test_the_folder_of_derived_data(backbone, collection_folder, refusal, monkeypatch):
    Path("file").touch()
    search = f"search {backbone} --corpus {collection_folder} --query w1"
    for place, rule in ((PROC, "where"), ("file", "in a folder")):
        monkeypatch.setenv("LTR_CACHE", str(place))
        line = refusal(search, "")
        assert line.startswith(f"ltr: LTR_CACHE, the folder of derived data, must lie {rule}")


def test_nothing_is_left_where_a_place_was_tried(refusal):
    """The work itself is refused later here, as there is no model."""
    (command, *_) = OF_FILES["--output"]
    before = sorted(Path().rglob("*"))
    assert "--output" not in refusal(command, Path("new/sub/x"))
    assert sorted(Path().rglob("*")) == before
