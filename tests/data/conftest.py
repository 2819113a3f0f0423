"""Tables of queries that several files read."""

import pytest

from ltr.data.record_files import open_record_files
from tests.world.collections import write_jsonl


@pytest.fixture
def queries(tmp_path):
    """Makes tables of three queries, of which some have instructions."""

    def made(**own):
        records = [{"_id": id_, "text": f"w{n}"} for n, id_ in enumerate("abc", start=1)]
        for record in records:
            if record["_id"] in own:
                record["instruction"] = own[record["_id"]]
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        write_jsonl(file, records)
        return open_record_files(file, "query")

    return made
