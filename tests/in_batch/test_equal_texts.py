"""Equal texts in a batch, against double loops over strings, in many processes."""

import numpy as np
import pytest
import torch

from ltr.batch import RankingBatch
from ltr.in_batch.gather import gather_lists
from ltr.in_batch.longer_lists import all_against_all, queries_against_all
from tests.in_batch.batches import bools, on_ranks

N_TEXTS = 9  # a text is a number, on both sides: few, so that many are equal


class Drawn:
    """A batch of lists of a random collection, as texts.

    Attributes:
        queries: ``[B]``, the text of each list's query.
        docs: ``[B, N]``, the texts of its documents.
        labels: ``[B, N]`` grades.
        known: of each list what is judged for its query: (text, grade), NaN for the query's own text.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        query_texts = rng.integers(0, N_TEXTS, 6).tolist()
        doc_texts = rng.integers(0, N_TEXTS, 14).tolist()
        grades = {}
        for query in range(6):
            for doc in rng.choice(14, 4, replace=False).tolist():
                grades[query, doc] = float(rng.integers(0, 3))
        self.queries, self.docs, self.labels, self.known = [], [], [], []
        for query in rng.integers(0, 6, int(rng.integers(2, 6))).tolist():
            text = query_texts[query]
            # What is relevant for an equal query is relevant, and the own text is no negative.
            best = {}
            for (other, doc), grade in grades.items():
                if query_texts[other] == text and grade > 0:
                    best[doc_texts[doc]] = max(grade, best.get(doc_texts[doc], 0.0))
            known = [(doc_texts[d], g) for (q, d), g in grades.items() if q == query]
            known += list(best.items())
            known = [(t, float("nan") if t == text else best.get(t, g)) for t, g in known]
            if text in doc_texts:
                known.append((text, float("nan")))
            relevant = [d for (q, d), g in grades.items() if q == query and g > 0][:2]
            others = [d for d in range(14) if doc_texts[d] not in best and doc_texts[d] != text]
            negatives = rng.permutation(others)[: 3 - len(relevant)].tolist() if others else []
            docs = relevant + negatives
            self.queries.append(text)
            self.docs.append([doc_texts[d] for d in docs] + [-1] * (3 - len(docs)))
            labels = [grades[query, d] for d in relevant] + [0.0] * len(negatives)
            self.labels.append(labels + [0.0] * (3 - len(docs)))
            self.known.append(known)

    def embedded(self) -> tuple[RankingBatch, torch.Tensor, torch.Tensor]:
        """Lists, and embeddings of their queries and documents."""
        n_judged = max(map(len, self.known))
        rows = torch.full((len(self.queries), n_judged), -1)
        grades = torch.zeros(rows.shape)
        for place, known in enumerate(self.known):
            for column, (text, grade) in enumerate(known):
                rows[place, column] = text
                grades[place, column] = grade
        docs = torch.tensor(self.docs)
        lists = RankingBatch(
            labels=torch.tensor(self.labels),
            mask=docs >= 0,
            query_rows=100 + torch.tensor(self.queries),
            doc_rows=7 * docs.abs() + torch.arange(docs.numel()).view(docs.shape) * 100,
            judged_rows=torch.where(rows < 0, rows, 10**6 + rows),  # known by their hashes alone
            judged_grades=grades,
            doc_hashes=10 + docs,
            judged_hashes=torch.where(rows < 0, 0, 10 + rows),
        )
        queries = torch.tensor(self.queries).float().unsqueeze(1)
        return lists, queries, docs.float().unsqueeze(2)

    def texts(self):
        """(list, side, text, label, real) of the square's texts."""
        texts = [(b, "query", text, None, True) for b, text in enumerate(self.queries)]
        for b, pairs in enumerate(zip(self.docs, self.labels, strict=True)):
            for text, label in zip(*pairs, strict=True):
                texts.append((b, "doc", text, label, text >= 0))
        return texts

    def groups(self):
        """For each text of a query: what belongs to it, and what is judged for it."""
        groups = {text: ({text}, set()) for text in self.queries}
        for b, text in enumerate(self.queries):
            group, judged = groups[text]
            for other, grade in self.known[b]:
                judged.add(other)
                if grade > 0:
                    group.add(other)
            for other, label in zip(self.docs[b], self.labels[b], strict=True):
                if label > 0:
                    judged.add(other)
                    group.add(other)
        return groups

    def mask(self, i: int, j: int, *, by_own_judgements: bool = False) -> bool:
        """Whether anchor i is compared with text j of the square.

        Args:
            i, j: places among the texts.
            by_own_judgements: whether only what is judged for the query that the anchor is counts.
        """
        texts = self.texts()
        b, side, text, label, real = texts[i]
        other_b, other_side, other_text, _, other_real = texts[j]
        in_group = side == "query" or (real and label > 0)
        if not in_group or not other_real or (side, text) == (other_side, other_text):
            return False
        if b == other_b:
            return True
        same_as_other = [t for t in texts if t[4] and (t[1], t[2]) == (other_side, other_text)]
        if any(t[0] == b for t in same_as_other) or same_as_other[0] != texts[j]:
            return False
        if texts.index(texts[j]) != j:
            return False
        for query, (group, judged) in self.groups().items():
            if by_own_judgements and query != text:
                continue
            if text in group and other_text in judged or other_text in group and text in judged:
                return False
        return text != other_text


def test_masks_are_those_of_a_double_loop_over_strings():
    """Of 150 batches; each kind of equal texts is there."""
    n_twins = n_own = 0
    for seed in range(150):
        drawn = Drawn(seed)
        lists, *vectors = drawn.embedded()
        n_twins += len(drawn.queries) - len(set(drawn.queries))
        n_own += sum(any(np.isnan(g) for _, g in known) for known in drawn.known)
        size = range(len(drawn.texts()))
        expected = torch.tensor([[drawn.mask(i, j) for j in size] for i in size])
        square = all_against_all(lists, *vectors)
        assert square.mask.equal(expected), seed
        b = len(drawn.queries)
        for query in range(b):
            for column in range(b, len(size)):
                expected[query, column] = drawn.mask(query, column, by_own_judgements=True)
        assert queries_against_all(lists, *vectors).mask.equal(expected[:b, b:]), seed
    assert n_twins > 75 and n_own > 75


@pytest.mark.parametrize("n_ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_processes_have_the_masks_and_labels_of_one(n_ranks):
    def gathered(rank):
        """Of lists and embeddings, which the processes deal out."""
        dealt = (None if each is None else each[rank::n_ranks] for each in lists)
        return gather_lists(RankingBatch(*dealt), *(each[rank::n_ranks] for each in vectors))

    for seed in range(60):
        lists, *vectors = Drawn(seed).embedded()
        of_ranks = on_ranks(gathered, n_ranks)
        for form in (queries_against_all, all_against_all):
            whole = form(lists, *vectors)
            for of_rank in of_ranks:
                found = form(*of_rank)
                assert found.mask.equal(whole.mask) and found.labels.equal(whole.labels), seed


def test_a_query_that_is_a_document_by_hand():
    """ArguAna: "pro" asks for "con", and "con" for "pro"; both texts are documents."""
    nan = float("nan")
    vectors = (torch.zeros(2, 1), torch.zeros(2, 1, 1))
    lists = RankingBatch(
        labels=torch.ones(2, 1),
        mask=torch.ones(2, 1, dtype=torch.bool),
        query_rows=torch.tensor([0, 1]),
        doc_rows=torch.tensor([[1], [0]]),  # document 0 is "pro", 1 is "con"
        judged_rows=torch.tensor([[1, 0], [0, 1]]),
        judged_grades=torch.tensor([[1.0, nan], [1.0, nan]]),
    )
    assert queries_against_all(lists, *vectors).mask.equal(bools("10", "01"))
    own = all_against_all(lists, *vectors).mask
    assert own.equal(bools("00 10", "00 01", "10 00", "01 00"))
