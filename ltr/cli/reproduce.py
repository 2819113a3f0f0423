"""``ltr reproduce``: train and test a run again, and say whether the numbers are the same."""

from pathlib import Path

from ltr.cli.configuration import data_path_option
from ltr.cli.process import run_in_process
from ltr.compare.reproduction import other_seeds, reproduction_lines
from ltr.compare.runs import is_tested, read_run
from ltr.errors import InputError
from ltr.run.folder import RunFolder


def reproduce(run: str, *, output: str | None = None) -> None:
    """Train and test a run again, and say whether the numbers are the same.

    Args:
        run: A run folder, or its metrics.json.
        output: Where it is trained again; None: RUN/reproduced. What is there is resumed.
    """
    folder = RunFolder(run)
    if folder.path.name == folder.results.name:  # the file of its results was named
        folder = RunFolder(folder.path.parent)
    then = read_run(folder.path)
    if not then.config:
        raise InputError(
            f"{folder.path} has no config.yaml, so nobody knows how it was trained; restore it"
        )
    again = RunFolder(folder.path / "reproduced" if output is None else output)
    if again.path.resolve() == folder.path.resolve():
        raise InputError(
            f"--output must be a folder of its own, got that of the run, {folder.path}"
        )
    if not again.config.is_file() or not is_tested(again.path):
        where = ["--trainer.default_root_dir", str(again.path), *data_path_option(folder)]
        run_in_process(["fit", "--config", str(folder.config), *where, "--ckpt_path", "last"])
        measured = Path(then.test.get("checkpoint") or "").name
        weights = "last" if measured == folder.last.name else "best"
        run_in_process(["test", str(again.path), "--ckpt_path", weights])
    now = read_run(again.path)
    if (now.seed, now.options_without_seed) != (then.seed, then.options_without_seed):
        raise InputError(
            f"{again.path} holds a run of other options than {folder.path}; remove it, or name another folder (--output)"
        )
    made = now.test.get("made", {})
    print(
        f"{again.path} was tested on {made.get('date')}, by ltr {made.get('ltr')} {made.get('commit', '')}; remove it to train again"
    )
    for line in reproduction_lines(then, now, other_seeds(folder.path)):
        print(line)
