"""A database of Milvus Lite, read and searched by pymilvus."""

import pytest

from ltr.errors import InputError
from ltr.use.handover.hand_over import hand_over
from tests.use.handover.corpora import COUNT, check_same_best, each_similarity, write_encoding

pymilvus = pytest.importorskip("pymilvus", reason="needs pip install pymilvus milvus-lite")
pytest.importorskip("milvus_lite", reason="needs pip install pymilvus milvus-lite")


@pytest.fixture
def open_client():
    """Opens a database, whose server ends with the test."""
    from milvus_lite.server_manager import server_manager_instance

    opened = []

    def opens(database):
        opened.append((pymilvus.MilvusClient(str(database)), str(database)))
        return opened[-1][0]

    yield opens
    for client, database in opened:
        client.close()
        server_manager_instance.release_server(database)


@each_similarity("dot", "cosine", "euclidean")
def test_milvus_finds_the_same(tmp_path, open_client, similarity, numbers):
    def search(output, queries):
        client = open_client(output / "milvus.db")
        assert client.list_collections() == ["corpus"]
        client.load_collection("corpus")
        (counted,) = client.query("corpus", output_fields=["count(*)"])
        assert counted["count(*)"] == COUNT
        metric = client.describe_index("corpus", "embedding")["metric_type"]
        assert metric == {"dot": "IP", "cosine": "COSINE", "euclidean": "L2"}[similarity]
        found = client.search("corpus", data=queries.tolist(), limit=10, output_fields=["id"])
        return [[hit["id"] for hit in hits] for hits in found]

    check_same_best(tmp_path, "milvus", similarity, numbers, search)


def test_an_id_that_is_too_long_is_refused(tmp_path):
    """Of 65,536 bytes, in 32,768 letters."""
    write_encoding(tmp_path / "encoded", "dot", count=2, ids=["a", "é" * 32_768])
    with pytest.raises(
        InputError, match="must have at most 65535 bytes for Milvus, got one of 65536"
    ):
        hand_over(tmp_path / "encoded", "milvus", tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["encoded"]
