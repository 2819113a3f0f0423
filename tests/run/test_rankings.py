"""What processes have ranked, brought together: as a plain sort of all of it has it."""

import numpy as np
import pytest
import torch
from torch import distributed

from ltr.data.query_lists import QueryLists
from ltr.run import rankings
from ltr.run.rankings import Rankings
from tests.child_processes import run_ranks


def batches() -> list[dict]:
    """Steps of 0 to 5 queries of up to 6 documents, with equal scores and lists without documents;
    41 queries in all, each once.
    """
    rng = np.random.default_rng(0)
    query_rows = rng.permutation(90)[:41]
    outputs = []
    for rows in np.split(query_rows, np.sort(rng.integers(42, size=16))):
        shape = (len(rows), int(rng.integers(1, 7)))
        doc_rows = np.argsort(rng.random((len(rows), 50)), axis=1)[:, : shape[1]]
        outputs.append(
            {
                "query_rows": torch.from_numpy(rows),
                "doc_rows": torch.from_numpy(doc_rows),
                "scores": torch.from_numpy(rng.integers(-1, 2, shape)).to(torch.bfloat16) / 8,
                "mask": torch.from_numpy(rng.random(shape) < 0.7),
                "per_query": {
                    "first": torch.from_numpy(rng.random(len(rows))),
                    "second": torch.from_numpy(rng.random(len(rows)).astype(np.float32)),
                },
            }
        )
    return outputs


def in_plain_python(outputs: list[dict]) -> list[tuple]:
    """Of each query its row, its documents with their scores, and its metrics."""
    found = []
    for step in outputs:
        for place, query_row in enumerate(step["query_rows"].tolist()):
            ranked = []
            for column, is_real in enumerate(step["mask"][place].tolist()):
                if is_real:
                    score = step["scores"][place, column].item()
                    ranked.append((score, step["doc_rows"][place, column].item()))
            metrics = [values[place].item() for values in step.get("per_query", {}).values()]
            found.append((query_row, sorted(ranked, reverse=True), metrics))
    return sorted(found)


def ranked(outputs: list[dict]) -> tuple[list[tuple], list[int]]:
    """The same of what is brought together here; and how many queries each block has."""
    own = Rankings()
    own.add(batches()[0])
    own.clear()
    for step in outputs:
        own.add(step)
    found = []
    sizes = []
    for lists, metrics in own.all_blocks():
        sizes.append(len(lists.query_rows))
        for query_row, values in zip(lists.query_rows.tolist(), metrics.tolist(), strict=True):
            doc_rows, scores = lists.of(query_row)
            documents = list(zip(scores.tolist(), doc_rows.tolist(), strict=True))
            found.append((query_row, documents, values))
    return found, sizes


@pytest.mark.parametrize("size", [1, 2, 7, 1024])
def test_blocks_of_any_size_hold_what_a_plain_sort_has(monkeypatch, size):
    monkeypatch.setattr(rankings, "QUERIES_AT_ONCE", size)
    found, sizes = ranked(batches())
    assert found == in_plain_python(batches())
    assert len(found) == 41 and max(sizes) == min(size, 41)


def test_predictions_have_no_metrics_and_float64_stays():
    """A third has no float32."""
    step = {
        "query_rows": torch.tensor([3, 1]),
        "doc_rows": torch.tensor([[7, 8], [9, 0]]),
        "scores": torch.tensor([[1 / 3, 0.5], [2.0, 0.0]], dtype=torch.float64),
        "mask": torch.tensor([[True, True], [True, False]]),
    }
    assert ranked([step])[0] == [(1, [(2.0, 9)], []), (3, [(0.5, 8), (1 / 3, 7)], [])]
    assert ranked([]) == ([], [])


def test_a_document_takes_12_bytes():
    own = Rankings()
    for step in batches():
        own.add(step)
    kept = sum(batch.lists.doc_rows.nbytes + batch.lists.values.nbytes for batch in own._batches)
    assert kept == 12 * sum(int(step["mask"].sum()) for step in batches())


def _process(number: int, folder: str) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=number, world_size=2
    )
    found = []
    for size in (1, 2, 1024):
        rankings.QUERIES_AT_ONCE = size
        found.append(ranked(batches()[number::2])[0])
        # One process has nothing at all.
        found.append(ranked(batches() if number == 1 else [])[0])
    torch.save(found, f"{folder}/{number}")
    distributed.destroy_process_group()


def test_the_first_of_two_processes_gets_what_one_has(tmp_path):
    run_ranks(_process, str(tmp_path))
    first, second = (torch.load(tmp_path / str(number)) for number in range(2))
    assert first == [in_plain_python(batches())] * 6
    assert second == [[]] * 6, "the other one has nothing but its own"


def test_lists_at_places_and_end_to_end():
    """Queries 2, 5 and 8 with 1, 0 and 2 documents; then query 3."""
    one = QueryLists(
        np.array([2, 5, 8]),
        np.array([0, 1, 1, 3]),
        np.array([10, 11, 12]),
        np.array([0.5, 1.5, 2.5], np.float32),
    )
    other = QueryLists.from_rows([3], [13], [3.5])
    both = QueryLists.end_to_end([one, other]).lists_at(np.array([3, 0, 2, 1]))
    assert both.query_rows.tolist() == [3, 2, 8, 5]
    assert both.offsets.tolist() == [0, 1, 2, 4, 4]
    assert both.doc_rows.tolist() == [13, 10, 11, 12]
    assert both.values.tolist() == [3.5, 0.5, 1.5, 2.5]
    assert len(QueryLists.end_to_end([]).query_rows) == 0
