"""What each option is to those who ask whether two configurations are the same: one table.

A resume, the seeds of an experiment, a data set that was measured, a cell of a grid that was made
and the processes of a run each look at other options. The table says of each option for whom of
them it may differ.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ltr.data.bm25 import DEPTH as BM25_DEPTH

# Who asks: a resume of the run, seeds of its experiment, what was measured on a data set by the same
# weights, a cell of a grid that was made, and the processes of the run.
Asking = Literal["resume", "seeds", "set", "cell", "processes"]
MayDiffer = frozenset[Asking]

# For whom an option may have another value.
LEARNS: MayDiffer = frozenset()  # for nobody: it decides what a run learns
RESUMABLE: MayDiffer = frozenset({"resume"})  # likewise, and a run may go on with another value
TRAINS: MayDiffer = frozenset({"resume", "set"})  # acts in training alone
EPOCHS: MayDiffer = frozenset({"set"})  # acts in training alone, and decides what an epoch is
SEED: MayDiffer = frozenset({"seeds", "set"})
MEASURES: MayDiffer = frozenset({"resume", "seeds"})  # decides what is measured alone
RUNS: MayDiffer = frozenset({"resume", "seeds", "set"})  # where and how fast
SHOWS: MayDiffer = RUNS | {"cell"}  # what is shown of it
EACH: MayDiffer = RUNS | {"processes"}  # each process has its own; of a folder the content counts

# By path, without ``init_args``: an option stands for all below it that are not named, also for
# those that a later Lightning adds. What is not named at all, as ``best.save_top_k`` and
# ``init_from``, is one of RUNS.
OPTIONS: dict[str, MayDiffer] = {
    "seed_everything": SEED,
    "config": EACH,
    "ckpt_path": EACH,
    "wandb": SHOWS,
    "wandb_model": SHOWS,
    "best.monitor": TRAINS,
    # The model
    "model": LEARNS,
    "model.lr": RESUMABLE,
    "model.weight_decay": RESUMABLE,
    "model.warmup": RESUMABLE,
    "model.decay": RESUMABLE,
    "model.metrics": MEASURES,
    "model.empty": MEASURES,
    "model.max_grade": MEASURES,
    "model.ranker.encoder.max_tokens": RUNS,
    "model.ranker.encoder.keep_tokens": RUNS,
    "model.ranker.encoder.kernels": RUNS,
    "model.ranker.encoder.compile": RUNS,
    "model.miner.encoder.max_tokens": RUNS,
    "model.miner.encoder.keep_tokens": RUNS,
    "model.miner.encoder.kernels": RUNS,
    "model.miner.encoder.compile": RUNS,
    # The data
    "data": LEARNS,
    "data.path": EACH,
    "data.batch_size": RESUMABLE,  # a resume compares the steps of an epoch
    "data.groups": RESUMABLE,  # likewise
    "data.eval_batch_size": EACH,
    "data.evaluation.batch_size": EACH,
    "data.evaluation.candidates": RESUMABLE,
    "data.evaluation.depth": RESUMABLE,
    "data.evaluation.index": RESUMABLE,
    "data.loading.num_workers": EACH,
    "data.loading.persistent_workers": EACH,
    # The trainer
    "trainer": TRAINS,
    "trainer.accumulate_grad_batches": EPOCHS,
    "trainer.overfit_batches": EPOCHS,
    "trainer.precision": RESUMABLE,
    "trainer.limit_test_batches": MEASURES,  # seeds compare the tested queries
    "trainer.limit_predict_batches": RUNS,
    "trainer.num_sanity_val_steps": RUNS,
    "trainer.accelerator": RUNS,
    "trainer.strategy": RUNS,
    "trainer.devices": RUNS,
    "trainer.num_nodes": RUNS,
    "trainer.callbacks": RUNS,  # those that do more than watch are compared, see CALLBACKS
    "trainer.logger": RUNS,
    "trainer.log_every_n_steps": SHOWS,
    "trainer.enable_checkpointing": RUNS,
    "trainer.enable_progress_bar": SHOWS,
    "trainer.enable_model_summary": SHOWS,
    "trainer.enable_autolog_hparams": RUNS,
    "trainer.deterministic": RUNS,
    "trainer.benchmark": RUNS,
    "trainer.inference_mode": RUNS,
    "trainer.use_distributed_sampler": RUNS,  # has no effect: the data modules share batches out
    "trainer.profiler": RUNS,
    "trainer.detect_anomaly": RUNS,
    "trainer.default_root_dir": EACH,
    "trainer.model_registry": RUNS,
}
# By class, for a resume and for seeds: callbacks that decide what is learnt, and those of Lightning
# and of ltr that only watch. All others act in training.
CALLBACKS: dict[str, MayDiffer] = {
    "HardNegativeMining": LEARNS,
    "LossSchedule": LEARNS,
    "DeviceStatsMonitor": RUNS,
    "Health": RUNS,
    "LearningRateMonitor": RUNS,
    "ModelCheckpoint": RUNS,
    "ModelSummary": RUNS,
    "OnExceptionCheckpoint": RUNS,
    "RichModelSummary": RUNS,
    "RichProgressBar": RUNS,
    "ThroughputMonitor": RUNS,
    "TQDMProgressBar": RUNS,
}

# Options of which one value takes what another one names. Digests of the content, which are compared
# beside the options, tell what was taken.
BY_CONTENT = {"data.negatives", "data.evaluation.candidates"}
TAKEN = {"candidates", "bm25"}  # by ``auto``

# How many documents of a query are taken, and the option that says from where: where the first is
# None, BM25 gives the best of its usual depth.
DEPTHS = {
    "data.evaluation.depth": "data.evaluation.candidates",
    "data.negatives_depth": "data.negatives",
}

# The options that name a model, by the last part of their paths.
MODEL_OPTIONS = {"backbone", "doc_backbone", "encoder", "guide", "judge", "miner"}
PATH_STARTS = ("/", "./", "../", "~")


def may_differ_for(path: str) -> MayDiffer:
    """For whom an option may differ."""
    while path:
        if path in OPTIONS:
            return OPTIONS[path]
        path = path.rpartition(".")[0]
    return RUNS


def callback_may_differ_for(class_path: str) -> MayDiffer:
    """For whom a callback of this class may be another one.

    A user's class that has the name of one that decides what is learnt in its own does so, too. One
    that has the name of one that only watches may do more.
    """
    package = class_path.partition(".")[0]
    class_name = class_path.rpartition(".")[2]
    for name, may_differ in CALLBACKS.items():
        if may_differ == LEARNS and name in class_name:
            return may_differ
    if package in ("lightning", "ltr"):
        return CALLBACKS.get(class_name, TRAINS)
    return TRAINS


def deciding_options(config: Mapping[str, Any], asking: Asking) -> dict[str, Any]:
    """The options in which another configuration must be the same, by their paths.

    Args:
        config: a whole configuration, as plain dicts, lists and values.
        asking: who asks.
    """
    options = {}
    for path, value in flat_options(config):
        if asking not in may_differ_for(path):
            options[path] = value
    return options


def options_of_measuring(
    config: Mapping[str, Any], config_of_run: Mapping[str, Any]
) -> dict[str, Any]:
    """The options that decide what is measured by the same weights, and have another value than in the
    configuration of the run.

    Args:
        config, config_of_run: whole configurations, as plain dicts, lists and values.
    """
    of_run = deciding_options(config_of_run, "set")
    options = {}
    for path, value in deciding_options(config, "set").items():
        if path in of_run and value != of_run[path]:
            options[path] = value
    return options


def deciding_callbacks(config: Mapping[str, Any], asking: Asking) -> dict[str, Any]:
    """The options of those callbacks that another configuration must have, too, by their paths. They
    are numbered without the others.

    Args:
        config: a whole configuration, as plain dicts, lists and values.
        asking: who asks, a resume or seeds.
    """
    callbacks = config["trainer"]["callbacks"] or []
    if not isinstance(callbacks, list):
        callbacks = [callbacks]
    deciding = []
    for callback in callbacks:
        class_path = callback["class_path"] if isinstance(callback, dict) else callback
        if asking not in callback_may_differ_for(str(class_path)):
            deciding.append(callback)
    options: dict[str, Any] = {}
    for number, callback in enumerate(deciding):
        options.update(flat_options(callback, f"trainer.callbacks[{number}]."))
    return options


def flat_options(options: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The path and the value of every leaf of nested options. ``init_args`` adds nothing to a path.
    Of negatives by folder, each adds the last name of its folder, which may be mounted elsewhere.

    Args:
        options: a dict, or a leaf.
        path: of ``options``, with a dot at its end; empty at the top.
    """
    if not isinstance(options, dict) or not options:
        yield path.removesuffix("."), options
        return
    for name, value in options.items():
        if name == "init_args":
            yield from flat_options(value, path)
        else:
            yield from flat_options(value, f"{path}{_last_name(name)}.")


def last_name_of_path(value: Any) -> Any:
    """The last name of a value that begins as a path does, since a folder may be mounted elsewhere;
    any other value, such as ``runs/neg``, as it is. :func:`are_same` compares the two.
    """
    if isinstance(value, str) and value.startswith(PATH_STARTS):
        return _last_name(value)
    return value


def as_taken(options: Mapping[str, Any], taken: Mapping[str, str]) -> dict[str, Any]:
    """The options with what ``auto`` has taken in its place, and with the depth of BM25 where they name
    none: what takes the same lists then says the same.

    Args:
        options: by path, as :func:`deciding_options` has them.
        taken: what options that say ``auto`` have taken, by option and split, see
            :attr:`ltr.datamodules.RankingDataModule.taken`.

    >>> options = {"data.negatives": "auto", "data.negatives_depth": None}
    >>> as_taken(options, {"negatives of train": "bm25, 100 deep"})
    {'data.negatives': 'bm25', 'data.negatives_depth': 100}
    """
    options = dict(options)
    for depth, lists in DEPTHS.items():
        begin = f"{lists.removeprefix('data.')} of "
        kinds = {kind.partition(",")[0] for name, kind in taken.items() if begin in name}
        if options.get(lists) == "auto" and len(kinds) == 1:  # the same for each split
            options[lists] = kinds.pop()
        named = {name.removeprefix(f"{lists}.") for name in options if name.startswith(f"{lists}.")}
        # Of several, random ones have no depth, and of mined ones None takes all.
        is_of_bm25 = options.get(lists) == "bm25" or {"bm25"} <= named <= {"bm25", "random"}
        if is_of_bm25 and depth in options and options[depth] is None:
            options[depth] = BM25_DEPTH
    return options


def named_instead_of_auto(options: Mapping[str, Any]) -> dict[str, str]:
    """What options name of what ``auto`` may take: for :func:`as_taken` of others that say ``auto``.
    Whether it takes the same, digests of the content tell.
    """
    named = {}
    for lists in DEPTHS.values():
        if options.get(lists) in TAKEN:
            named[f"{lists.removeprefix('data.')} of all"] = str(options[lists])
    return named


def are_same(name: str, value: Any, other_value: Any) -> bool:
    """Whether two values of an option are the same.

    An identity holds a path like ``runs/neg`` whole, and one like ``/mine/runs/neg`` by its last
    name, ``neg``. Of the data and of callbacks the two are taken for the same. So are ``auto`` and
    what it may have taken.
    """
    if value == other_value:
        return True
    if name in BY_CONTENT and "auto" in (value, other_value):
        return value in TAKEN or other_value in TAKEN
    if not name.startswith(("data.", "trainer.callbacks")):
        return False
    if not isinstance(value, str) or not isinstance(other_value, str):
        return False
    return value == _last_name(other_value) or other_value == _last_name(value)


def _last_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
