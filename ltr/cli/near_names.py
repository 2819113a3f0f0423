"""What was probably meant by a name that there isn't: an option or a class."""

import difflib
from collections.abc import Collection, Iterable, Mapping

LEAST = 0.75  # how alike two names must be, from 0 to 1

# Names of other tools that are spelt too differently here for their likeness to show.
OPTIONS_ELSEWHERE = {
    "epoch": "trainer.max_epochs",
    "epochs": "trainer.max_epochs",
    "num_epochs": "trainer.max_epochs",
    "num_train_epochs": "trainer.max_epochs",
    "seed": "seed_everything",
    "random_seed": "seed_everything",
    "learning_rate": "model.lr",
    "gpus": "trainer.devices",
    "device": "trainer.accelerator",
    "fp16": "trainer.precision",
    "bf16": "trainer.precision",
    "gradient_accumulation_steps": "trainer.accumulate_grad_batches",
    "max_grad_norm": "trainer.gradient_clip_val",
    "output": "trainer.default_root_dir",
    "output_dir": "trainer.default_root_dir",
    "resume": "ckpt_path",
    "checkpoint": "ckpt_path",
    "model_name": "model.ranker.backbone",
    "model_name_or_path": "model.ranker.backbone",
    "max_seq_length": "model.ranker.max_length",
}
CLASSES_ELSEWHERE = {
    "BiEncoder": "DualEncoder",
    "CrossEncoder": "PairWiseBertRanker",
    "CrossEntropyLoss": "SoftmaxLoss",
    "CausalLM": "DecoderRanker",
    "FlagLLMReranker": "DecoderRanker",
    "InfoNCE": "SoftmaxLoss",
    "TripletLoss": "MarginRankingLoss",
}


def did_you_mean(names: Iterable[str]) -> str:
    """``; did you mean A or B?``, to stand behind a message; nothing for no name."""
    choices = " or ".join(names)
    return f"; did you mean {choices}?" if choices else ""


def no_option(word: str, near: Iterable[str]) -> str:
    """What is said of an option that there isn't.

    Args:
        word: as it was given.
        near: what was probably meant, spelt in the same way.
    """
    return f"there is no option {word}{did_you_mean(near)}"


def near_class(name: str, known: Collection[str]) -> list[str]:
    """The class that was meant by a name without its package; none if no class is like it."""
    by_lower: Mapping[str, str] = {each.lower(): each for each in known}
    our_names = {other.lower(): ours for other, ours in CLASSES_ELSEWHERE.items()}
    lower = name.lower()
    if lower in by_lower:
        return [by_lower[lower]]
    if our_names.get(lower) in known:
        return [our_names[lower]]
    beginnings = [each for each in by_lower if lower and each.startswith(lower)]
    near = beginnings or difflib.get_close_matches(lower, by_lower, n=1, cutoff=LEAST)
    return [by_lower[each] for each in near[:3]]


def near_option(name: str, known: Collection[str]) -> list[str]:
    """The options that were meant by a name with or without its path, such as ``lr``; none if no
    option is like it.

    Args:
        name: without dashes.
        known: the options that there are, with their paths, such as ``model.lr``.
    """
    name = name.replace("-", "_")
    if name in known:
        return [name]
    last = _last(name)
    last_words = {_last(option) for option in known}
    our_name = OPTIONS_ELSEWHERE.get(last)
    # data.loading.seed is one of ours misplaced, and not the seed of other tools.
    is_path_of_ours = "." in name and last in last_words
    if our_name is not None and our_name in known and not is_path_of_ours:
        return [our_name]
    near = difflib.get_close_matches(last, last_words, n=1, cutoff=LEAST)
    options = sorted(option for option in set(known) if _last(option) in near)
    if "." in name:  # the path decides between several
        return difflib.get_close_matches(name, options, n=1, cutoff=0)
    depth = min((option.count(".") for option in options), default=0)
    return [option for option in options if option.count(".") == depth][:3]


def _last(option: str) -> str:
    return option.rpartition(".")[2]
