"""A folder that has lost a file is refused, not read as another ranker."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoConfig

from ltr.data.template import Template
from ltr.data.windows import Windows
from ltr.errors import InputError
from ltr.models import DecoderRanker, DualEncoder, PairWiseBertRanker
from ltr.models.encoder.loading.model_folder import ModelFolder
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.named import ranker_named
from ltr.use.export import export
from tests.world.decoders import save_decoder

KINDS = ["dual", "dual with a template", "cross", "decoder", "decoder for transformers"]


def saved(kind: str, backbone: str, folder: Path) -> str:
    """The name of a ranker of this kind."""
    if kind == "plain encoder":
        return backbone
    if kind == "language model":
        return save_decoder(folder)
    if kind == "dual":
        encoder = TextEncoder.Options(pooling="cls")
        DualEncoder(backbone, projection=4, query_prompt="w1 ", encoder=encoder).save(folder)
    elif kind == "dual with a template":
        DualEncoder(backbone, template=Template("{query} w1", "{document}")).save(folder)
    elif kind == "cross":
        PairWiseBertRanker(backbone, max_length=20, windows=Windows(6, 4)).save(folder)
    else:
        template = Template(pair="{query} {document} yes?")
        decoder = save_decoder(folder.parent / "decoder")
        DecoderRanker(decoder, template, max_length=60).save(folder)
    return str(folder)


@pytest.fixture(scope="module", params=KINDS)
def exported(request, backbone, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    saved(request.param, backbone, folder / "own")
    to = "transformers" if request.param.endswith("for transformers") else "sentence-transformers"
    export(folder / "own", folder / "whole", to)
    return folder / "whole"


@pytest.mark.parametrize("proven", [True, False])
def test_each_file_that_the_proof_or_the_card_lists_is_needed(exported, tmp_path, proven):
    files = [file.relative_to(exported) for file in exported.rglob("*") if file.is_file()]
    names = [str(file) for file in files if file.parts[0] not in ("proof", "README.md")]
    assert "config.json" in names and len(names) >= 5
    whole = tmp_path / "whole"
    shutil.copytree(exported, whole)
    if not proven:
        shutil.rmtree(whole / "proof")
    ranker_named(whole, "source")
    for name in names:
        (whole / name).rename(tmp_path / "lost")
        with pytest.raises(InputError, match=f"has lost {name}|without {name}|no run, checkpoint"):
            ranker_named(whole, "source")
        for kind in (DualEncoder, PairWiseBertRanker):
            with pytest.raises(InputError, match=f"has lost {name}"):
                kind(str(whole))
        (tmp_path / "lost").rename(whole / name)
    if proven:
        (whole / "proof/contract.json").unlink()
        with pytest.raises(InputError, match="has lost proof/contract.json, as its proof tells"):
            ranker_named(whole, "source")


# What is missing: a dual encoder without config_… is any model of sentence-transformers without
# prompts, and nothing tells.
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, "modules.json") for kind in KINDS[:-1]),
        *((kind, "config_sentence_transformers.json") for kind in KINDS[1:-1]),
    ],
)
def test_a_saved_folder_tells_what_it_has_lost(kind, name, backbone, tmp_path):
    """By what is still there: ltr.json, or the other of the two files."""
    saved(kind, backbone, tmp_path / "own")
    (tmp_path / "own" / name).unlink()
    with pytest.raises(InputError):
        ranker_named(tmp_path / "own", "source")


def test_a_contract_that_lists_no_files_is_refused(backbone, tmp_path):
    DualEncoder(backbone).save(tmp_path / "own")
    (tmp_path / "own/proof").mkdir()
    (tmp_path / "own/proof/contract.json").write_text('{"files": []}')
    with pytest.raises(InputError, match="must list the files of the folder"):
        ranker_named(tmp_path / "own", "source")


@pytest.mark.parametrize(
    "kind", ["plain encoder", "language model", "dual with a template", "cross", "decoder"]
)
def test_each_file_is_read_once(kind, backbone, tmp_path, monkeypatch):
    """A model is opened once, whatever is asked of it."""
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
