"""``ltr reproduce``: train and test a run again, and say whether the numbers are the same."""

import json
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ltr.cli.measured_set import make_data_module
from ltr.cli.parsed import ParsedCommand, made_training
from ltr.cli.process import run_in_process
from ltr.cli.run_paths import data_path_option, refuse_paths_from_elsewhere
from ltr.compare.reproduction import other_seeds, reproduction_lines
from ltr.compare.tested_run import Run, is_tested, read_run, recipe_differences
from ltr.data.console import say
from ltr.data.outputs import check_folder, check_inside
from ltr.errors import InputError
from ltr.run.content_digests import digests_of_training
from ltr.run.metrics_file import TrainedWith
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
        _check_content(words, old_run)
        # A run without a checkpoint begins under "last", and what is there is resumed.
        run_in_process(["fit", *words, "--ckpt_path", "last"])
        file = new_folder.checkpoints / weights
        if not file.is_file():
            raise InputError(
                f"{folder.path} was tested by {weights}, and {new_folder.path} has kept no such weights, so it was not trained as before; see the validations in the metrics.json of both"
            )
        words = ["--ckpt_path", str(file), *_words_of_test(old_run)]
        run_in_process(["test", str(new_folder.path), *words])
    new_run = read_run(new_folder.path)
    if _weights_tested(new_run, new_folder) != weights:
        raise InputError(
            f"{new_folder.path} was not tested by {weights}, as {folder.path} was; ltr test {new_folder.path} --ckpt_path {new_folder.checkpoints / weights}"
        )
    if _words_of_test(new_run) != _words_of_test(old_run):
        raise InputError(
            f"{new_folder.path} was tested under other options than {folder.path}; remove it, or name another folder (--output)"
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


class _ContentFound(Exception):
    """The data of a training is set up, so its digests are known."""


class _FindContent(Callback):
    """Ends a training before its first step: once its data is set up.

    Args:
        config: of the run, as plain dicts, lists and values.

    Attributes:
        found: what the run would be trained with.
    """

    found: TrainedWith

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.found = digests_of_training(self._config, trainer)
        raise _ContentFound


def _check_content(words: list[str], run: Run) -> None:
    """Raise an InputError where the data or the models of a run are other ones than when it was trained
    and tested. Its texts are tokenised, and nothing is trained.

    Args:
        words: the options by which it is trained again.
        run: as it was made.
    """
    assert run.recipe is not None, "it has a configuration"
    with tempfile.TemporaryDirectory() as temporary, made_training(words) as command:
        finder = _FindContent(command.plain_options())
        trainer = command.trainer_without_outputs(temporary, [finder])
        with suppress(_ContentFound):
            trainer.fit(command.model, datamodule=command.datamodule)
        tested = ParsedCommand(["test", *words, *_words_of_test(run)])
        data = make_data_module(tested.plain_options())
        data.reads = command.model.reads
        data.test_on(run.report.get("split", "test"))
        data.setup("test")
        tested_on = data.evaluation_digests("test")
    # The weights that it starts from are taken by the training itself.
    found = replace(run.recipe, trained_with=run.recipe.trained_with | finder.found)
    changed = run.recipe.differences(found)
    if not changed and tested_on != run.report["evaluated"]:
        names = [
            name
            for name, digest in tested_on.items()
            if run.report["evaluated"].get(name) != digest
        ]
        changed.append(
            f"data.path ({run.recipe.data_path!r}: other {', '.join(names)} of the tested split)"
        )
    if changed:
        raise InputError(
            f"{run.folder} can't be trained and tested as it was, since then these have changed: {', '.join(changed[:3])}; restore them"
        )


def _words_of_test(run: Run) -> list[str]:
    """The options by which a run was tested, and that its configuration has otherwise."""
    words = []
    for path, value in run.report.get("options", {}).items():
        words += [f"--{path}", value if isinstance(value, str) else json.dumps(value)]
    return words


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
