"""A model is opened once, whatever is asked of it."""

from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoConfig

from ltr.data.template import Template
from ltr.data.windows import Windows
from ltr.models import DecoderRanker, DualEncoder, PairWiseBertRanker
from ltr.models.encoder.loading.model_folder import ModelFolder
from ltr.models.named import ranker_named
from tests.world.decoders import save_decoder


def saved(kind: str, backbone: str, folder: Path) -> str:
    """The name of a model of this kind."""
    if kind == "plain encoder":
        return backbone
    if kind == "language model":
        return save_decoder(folder)
    if kind == "dual":
        DualEncoder(backbone, template=Template("{query} w1", "{document}")).save(folder)
    elif kind == "cross":
        PairWiseBertRanker(backbone, max_length=20, windows=Windows(6, 4)).save(folder)
    else:
        decoder = save_decoder(folder.parent / "decoder")
        DecoderRanker(decoder, Template(pair="{query} {document} yes?"), max_length=60).save(folder)
    return str(folder)


@pytest.mark.parametrize("kind", ["plain encoder", "language model", "dual", "cross", "decoder"])
def test_each_file_is_read_once(kind, backbone, tmp_path, monkeypatch):
    name = saved(kind, backbone, tmp_path / "saved")
    reads = Counter()
    read_json = ModelFolder._read_json
    read_config = AutoConfig.from_pretrained

    def counted_json(folder, file):
        reads[file] += 1
        return read_json(folder, file)

    def counted_config(source, *args, **options):
        if not args and list(options) == ["trust_remote_code"]:  # ours, not that of a library
            reads["config"] += 1
        return read_config(source, *args, **options)

    monkeypatch.setattr(ModelFolder, "_read_json", counted_json)
    monkeypatch.setattr(AutoConfig, "from_pretrained", counted_config)
    ranker_named(name, "source")
    assert reads["ltr.json"] == 1 and set(reads.values()) == {1}
