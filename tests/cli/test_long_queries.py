"""A query that is longer than what a model reads is cut and counted by every command, never refused."""

import json

import pytest

from tests.world.collections import write_collection
from tests.world.commands import run_ltr
from tests.world.runs import trained_on_texts

SAID = {
    "cross": "1 of 24 queries leave no room for a document among max_length 20 tokens, and are cut to 8 tokens; the longest has 40, the first is",
    "dual": "1 of 24 queries have more tokens than max_length 20 reads, and are cut to 18 tokens; the longest has 40, the first is",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The third of 24 queries has 40 words."""
    folder = write_collection(tmp_path_factory.mktemp("long") / "c", n_queries=8)
    file = folder / "queries.jsonl"
    queries = [json.loads(line) for line in file.read_text().splitlines()]
    queries[2]["text"] = "w2 " * 40
    file.write_text("".join(json.dumps(query) + "\n" for query in queries))
    return folder


@pytest.mark.parametrize("kind", ["cross", pytest.param("dual", marks=pytest.mark.long)])
def test_every_command_cuts_and_counts(tmp_path, capsys, caplog, folder, backbone, kind):
    def told(line: str) -> str:
        caplog.clear()
        assert run_ltr(line) == 0, capsys.readouterr().err
        return caplog.text

    run = trained_on_texts(tmp_path, kind, folder, backbone)
    said = f"{SAID[kind]} 'train-q2'"
    output = "".join(capsys.readouterr())
    assert output.count(said) == 2, "fit and test, each once"
    assert "% of the queries" not in output and "tokens of the queries" not in output
    assert run_ltr(f"check {run}") == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "1 of 24 queries are cut: the longest has 40 tokens, the first is 'train-q2'" in page
    assert said in told(f"score {run} --data {folder} --output {tmp_path / 'scores'}")
    (tmp_path / "documents.txt").write_text("w2 w3\nw4\n")
    words = "w2 " * 40
    ranked = told(f'rank {run} --query "{words}" --documents {tmp_path / "documents.txt"}')
    assert "1 of 1 queries" in ranked and "the longest has 40" in ranked
    if kind == "dual":
        assert said in told(f"mine {run}")
        (tmp_path / "queries.tsv").write_text(f"a\tw3\nb\t{words}\n")
        found = told(
            f"search {run} --corpus {folder} --queries {tmp_path / 'queries.tsv'} --output {tmp_path / 'found.trec'}"
        )
        assert "1 of 2 queries" in found
