"""``ltr reproduce``: train and test a run again, and say whether the numbers are the same."""

from pathlib import Path

from ltr.cli.process import run_in_process
from ltr.cli.run_paths import data_path_option, refuse_paths_from_elsewhere
from ltr.compare.reproduction import other_seeds, reproduction_lines
from ltr.compare.tested_run import Run, is_tested, read_run, recipe_differences
from ltr.data.console import say
from ltr.data.outputs import check_folder, check_inside
from ltr.errors import InputError
from ltr.run.run_folder import RunFolder


def reproduce(run: str, *, output: str | None = None) -> None:
    """Train and test a run again, and say whether the numbers are the same.

    Args:
        run: A run folder, or its metrics.json.
        output: Where it is trained again; None: RUN/reproduced. What is there is resumed.
    """
    check_folder(output, "--output")
    folder = RunFolder(run)
    if folder.path.name == folder.metrics.name:  # the file of its results was named
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
    weights = _weights_tested(then, folder)
    if not again.config.is_file() or not is_tested(again.path):
        refuse_paths_from_elsewhere(folder, "fit", [])
        check_inside(again.path, "--output")
        where = ["--trainer.default_root_dir", str(again.path), *data_path_option(folder)]
        run_in_process(["fit", "--config", str(folder.config), *where, "--ckpt_path", "last"])
        file = again.checkpoints / weights
        if not file.is_file():
            raise InputError(
                f"{folder.path} was tested by {weights}, and {again.path} has kept no such weights, so it was not trained as before; see the validations in the metrics.json of both"
            )
        run_in_process(["test", str(again.path), "--ckpt_path", str(file)])
    now = read_run(again.path)
    if _weights_tested(now, again) != weights:
        raise InputError(
            f"{again.path} was not tested by {weights}, as {folder.path} was; ltr test {again.path} --ckpt_path {again.checkpoints / weights}"
        )
    differences = recipe_differences(then, now)
    if now.seed != then.seed:
        differences.insert(0, f"seed_everything ({then.seed}, {now.seed})")
    if differences:
        raise InputError(
            f"{again.path} holds a run of other options than {folder.path}, they differ in {', '.join(differences[:3])}; restore what differs and remove it, or name another folder (--output)"
        )
    made = now.report["made"]
    say(
        f"{again.path} was tested on {made['date']}, by ltr {made['ltr']} {made.get('commit', '')}; remove it to train again"
    )
    for line in reproduction_lines(then, now, other_seeds(folder.path)):
        say(line)


def _weights_tested(run: Run, folder: RunFolder) -> str:
    """The name of the checkpoint by which a run was tested: best.ckpt, where it does not say.

    Raises:
        InputError: for one that no training writes, such as another run's.
    """
    name = Path(run.report["checkpoint"] or folder.best).name
    step = name.removeprefix("step=").removesuffix(".ckpt")
    is_step = step.isdecimal() and name == folder.step_file(int(step)).name
    if name not in (folder.best.name, folder.last.name) and not is_step:
        raise InputError(
            f"{folder.path} was tested by {run.report['checkpoint']}, which its training has not written; test it by weights of its own: ltr test {folder.path}"
        )
    return name
