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
    old_run = read_run(folder.path)
    if not old_run.config:
        raise InputError(
            f"{folder.path} has no config.yaml, so nobody knows how it was trained; restore it"
        )
    new_folder = RunFolder(folder.path / "reproduced" if output is None else output)
    if new_folder.path.resolve() == folder.path.resolve():
        raise InputError(
            f"--output must be a folder of its own, got that of the run, {folder.path}"
        )
    weights = _weights_tested(old_run, folder)
    if not new_folder.config.is_file() or not is_tested(new_folder.path):
        refuse_paths_from_elsewhere(folder, "fit", [])
        check_inside(new_folder.path, "--output")
        words = ["--config", str(folder.config)]
        words += ["--trainer.default_root_dir", str(new_folder.path), *data_path_option(folder)]
        # A run without a checkpoint begins under "last", and what is there is resumed.
        run_in_process(["fit", *words, "--ckpt_path", "last"])
        file = new_folder.checkpoints / weights
        if not file.is_file():
            raise InputError(
                f"{folder.path} was tested by {weights}, and {new_folder.path} has kept no such weights, so it was not trained as before; see the validations in the metrics.json of both"
            )
        run_in_process(["test", str(new_folder.path), "--ckpt_path", str(file)])
    new_run = read_run(new_folder.path)
    if _weights_tested(new_run, new_folder) != weights:
        raise InputError(
            f"{new_folder.path} was not tested by {weights}, as {folder.path} was; ltr test {new_folder.path} --ckpt_path {new_folder.checkpoints / weights}"
        )
    differences = recipe_differences(old_run, new_run)
    if new_run.seed != old_run.seed:
        differences.insert(0, f"seed_everything ({old_run.seed}, {new_run.seed})")
    if differences:
        raise InputError(
            f"{new_folder.path} holds a run of other options than {folder.path}, they differ in {', '.join(differences[:3])}; restore what differs and remove it, or name another folder (--output)"
        )
    made = new_run.report["made"]
    say(
        f"{new_folder.path} was tested on {made['date']}, by ltr {made['ltr']} {made.get('commit', '')}; remove it to train again"
    )
    for line in reproduction_lines(old_run, new_run, other_seeds(folder.path)):
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
