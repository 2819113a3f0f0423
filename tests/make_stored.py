"""Write ``tests/stored/VERSION``: tiny runs and what was made of them, which later versions open.

    python tests/make_stored.py [folder]

A folder is written once, by the release that it is named after, and never again: tests/test_stored.py
opens what that release wrote. Until 0.1.0 is out, the folder of 0.1 may be written anew.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import yaml
from transformers import BertConfig, BertModel

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.conftest import wordpiece_tokenizer, write_collection, write_letor  # noqa: E402

OF_TEXTS = {"backbone": "backbone", "max_length": 24}
RANKERS = {
    "cross": {"class_path": "ltr.models.PairWiseBertRanker", "init_args": OF_TEXTS},
    "dual": {
        "class_path": "ltr.models.DualEncoder",
        "init_args": OF_TEXTS | {"query_prompt": "w1 ", "temperature": 0.1},
    },
    "features": {"class_path": "ltr.models.FeatureRanker", "init_args": {"n_features": 5}},
}
TEXTS = {
    "class_path": "ltr.datamodules.TripletDataModule",
    "init_args": {"path": "texts", "negatives": "candidates", "negatives_per_query": 2},
}
TEXTS["init_args"]["batch_size"] = 2
FEATURES = {"class_path": "ltr.datamodules.FeatureDataModule", "init_args": {"path": "letor"}}
# What is scored and embedded, and what the scores must stay.
PAIRS = [("w1 w2", "w3 w4 w5"), ("w1 w2", "w2"), ("w7", "w7 w7 w8")]
VECTORS = [[0.5, -1.0, 0.0, 2.0, 1.0], [1.0, 1.0, 1.0, 0.0, -2.0]]


def configuration(kind: str) -> dict:
    return {
        "seed_everything": 0,
        "model": {"ranker": RANKERS[kind], "loss": "ltr.losses.SoftmaxLoss", "lr": 0.01},
        "data": FEATURES if kind == "features" else TEXTS,
        "trainer": {"accelerator": "cpu", "devices": 1, "max_steps": 4},
    }


def ltr(*args: str) -> None:
    from ltr.__main__ import main

    assert main([*args]) == 0, args


def expected() -> dict:
    """What the runs and the exported folder give now."""
    from sentence_transformers import SentenceTransformer

    from ltr import load

    scores = {}
    for kind in RANKERS:
        ranker = load(kind, device="cpu")
        scores[kind] = ranker.score(VECTORS if kind == "features" else PAIRS).tolist()
    model = SentenceTransformer("exported", device="cpu")
    return {
        "scores": scores,
        "query": model.encode_query(PAIRS[0][0]).tolist(),
        "document": model.encode_document(PAIRS[0][1]).tolist(),
    }


def write_backbone(folder: Path) -> None:
    tokenizer = wordpiece_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "max_position_embeddings": 32}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)


def make(folder: Path) -> None:
    """Write everything into a new folder, which becomes the working directory: nothing in it says
    where it lay.
    """
    folder.mkdir(parents=True)
    os.chdir(folder)
    write_collection(Path("texts"), n_queries=6, n_docs=4)
    write_letor(Path("letor"), n_queries=6)
    write_backbone(Path("backbone"))
    for kind in RANKERS:
        Path(f"{kind}.yaml").write_text(yaml.safe_dump(configuration(kind)))
        ltr("fit", "--config", f"{kind}.yaml", "--trainer.default_root_dir", kind)
        ltr("test", kind)
    ltr("export", "dual", "exported")
    ltr("mine", "dual", "--recipe.n", "2", "--output", "negatives")
    ltr("score", "cross", "--data", "texts", "--output", "scores")
    for kind in RANKERS:
        # These say most of the machine, and no command reads them.
        Path(kind, "train.log").unlink()
        shutil.rmtree(Path(kind, "logs"))
    Path("expected.json").write_text(json.dumps(expected()))


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "tests/stored/0.1").absolute()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["LTR_CACHE"] = f"{temporary}/cache"
        made = Path(temporary, "stored")
        make(made)
        shutil.copytree(made, target)
