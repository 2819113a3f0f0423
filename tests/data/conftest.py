"""Tables of queries that several files read."""

import json

import pytest

from ltr.data.record_files import open_text_files


@pytest.fixture
def queries(tmp_path):
    """Makes tables of three queries, of which some have instructions."""

    def made(**own):
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        with open(file, "w") as opened:
            for id_, text in (("a", "w1"), ("b", "w2"), ("c", "w3")):
                record = {"_id": id_, "text": text}
                if id_ in own:
                    record["instruction"] = own[id_]
                opened.write(json.dumps(record) + "\n")
        return open_text_files(file, "query")

    return made
