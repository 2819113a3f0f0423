"""How good are dual encoders with mined negatives, trained by ltr and by sentence-transformers?
python benchmarks/quality_mined.py

sentence-transformers trains from the start, on the questions and for the steps of
``experiments/mined/wordnet.yaml``, with its own miner (``mine_hard_negatives`` as it comes, two
negatives a question) and its own loss (``MultipleNegativesRankingLoss``, which also ranks the
documents of other questions). ``ltr test`` measures what it saves, so ``ltr compare`` sets it beside
the runs of ``experiments/grids/heart.yaml``; the seconds of training are printed here. A question
has the same first relevant document in each epoch.

Wants ``pip install -e '.[bench]'``.
"""

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from harness.machine import machine_line
from harness.options import add_backbone, add_data, parser
from harness.trainers import absent_peers, silence, training_arguments

from ltr.__main__ import main as ltr
from ltr.data.collection import Collection, open_collection
from ltr.models.encoder.loading.architecture import keep_layers
from ltr.models.encoder.loading.model_folder import resolve

CONFIG = "experiments/mined/wordnet.yaml"
WORDNET = "runs/data/wordnet-4000"  # experiments/subset.py
LAYERS = 2
LR = 2e-4
WARM_UP = 0.1
DECAY = 0.01
SCALE = 20.0
NEGATIVES = 2


def pairs_of(collection: Collection, examples: int) -> dict[str, list[str]]:
    """The training questions, each with its first relevant document."""
    judged = collection.judgements("train")
    columns: dict[str, list[str]] = {"anchor": [], "positive": []}
    for query_row in judged.query_rows[:examples]:
        doc_rows, grades = judged.of(query_row)
        columns["anchor"].append(collection.queries.texts[query_row])
        columns["positive"].append(collection.corpus.texts[doc_rows[grades > 0][0]])
    return columns


def start(options: Namespace) -> Any:
    """The backbone with as many layers as the configuration keeps."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(resolve(options.backbone), device="cpu")
    keep_layers(model[0].auto_model, 1 if options.tiny else LAYERS)
    model.max_seq_length = options.max_length
    return model


def train(mines: bool, collection: Collection, options: Namespace, seed: int, folder: Path) -> None:
    """Their training; the model is saved in ``folder``."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.util import mine_hard_negatives
    from transformers import PrinterCallback

    model = start(options)
    dataset = Dataset.from_dict(pairs_of(collection, options.examples))
    began = time.monotonic()
    if mines:
        dataset = mine_hard_negatives(
            dataset,
            model,
            anchor_column_name="anchor",
            positive_column_name="positive",
            corpus=list(collection.corpus.texts),
            num_negatives=NEGATIVES,
            output_format="n-tuple",
            use_faiss=True,
            verbose=False,
        )
    mined = time.monotonic()
    settings = training_arguments(folder, options.batch, LR, WARM_UP, DECAY, seed)
    del settings["batch_sampler"]  # theirs, which shuffles
    settings |= {"num_train_epochs": options.epochs, "bf16": not options.tiny}
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(**settings),
        train_dataset=dataset,
        loss=MultipleNegativesRankingLoss(model, scale=SCALE),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trained = time.monotonic()
    print(
        f"| {folder} | {len(dataset)} | {trainer.state.global_step} | {mined - began:.0f} | {trained - mined:.0f} |",
        flush=True,
    )
    model.save(str(folder / "model"), create_model_card=False)


def main() -> None:
    """Train both under each seed, test what was saved."""
    arguments = parser(__doc__)
    add_data(arguments, WORDNET)
    add_backbone(arguments)
    arguments.add_argument("--runs", default="runs/heart_peers", help="where the runs lie")
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments.add_argument("--examples", type=int, default=100000, help="questions at most")
    arguments.add_argument("--batch", type=int, default=32)
    arguments.add_argument("--epochs", type=int, default=3)
    arguments.add_argument("--max-length", type=int, default=32)
    options = arguments.parse_args()
    if options.tiny:
        options.seeds = [0]
        options.examples = 4
        options.batch = 2
        options.epochs = 1
        options.max_length = 8
    silence()
    collection = open_collection(options.data)
    n_questions = len(pairs_of(collection, options.examples)["anchor"])
    print(f"{options.data}; {machine_line()}\n")
    print("| questions | documents |\n| --- | --- |")
    print(f"| {n_questions:,} | {len(collection.corpus):,} |\n")
    absent = absent_peers()
    if absent:
        print(f"sentence-transformers can't train without {', '.join(absent)}")
        return
    print("| run | rows | steps | mining, s | training, s |\n| --- | --- | --- | --- | --- |")
    for seed in options.seeds:
        for name in ("sentence-transformers, in-batch", "sentence-transformers, mined once"):
            run = Path(options.runs, name, f"seed={seed}")
            if (run / "metrics.json").is_file():
                continue
            train("mined" in name, collection, options, seed, run)
            if options.tiny:
                continue
            words = ["--seed_everything", str(seed), "--trainer.default_root_dir", str(run)]
            words += ["--trainer.callbacks", "null", "--data.negatives", "random"]
            backbone = ["--model.ranker.init_args.backbone", str(run / "model")]
            if ltr(["test", "--config", CONFIG, *words, *backbone]):
                raise SystemExit(2)


if __name__ == "__main__":
    main()
