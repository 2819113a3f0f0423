"""Templates in folders: what sentence-transformers can express is its prompts, a chat template makes
one text of two, and the rest is said; ``ltr.load`` reads the whole template again.
"""

import json
from contextlib import redirect_stdout
from io import StringIO
from runpy import run_path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer

from ltr.data.template import Template
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use.export import export
from ltr.use.load import load
from ltr.use.rankers import TextRanker
from ltr.use.retriever import Retriever
from ltr.use.verify.verification import verify
from tests.use.proof.exported import classifier_folder, make_cased_backbone

MAX_LENGTH = 600
PROMPTS = Template("Do {instruction}: {query}", "{document}", instruction="find")
TWO_PROMPTS = Template("Do {instruction}: {query}", "Read: {document}", instruction="find")
BEHIND = Template("{query} ({instruction})", "Read: {document}", instruction="find", query_tokens=6)
BOTH = "{query}\n{document}\nAnswer:"
PAIR = Template("Do {instruction}: {query}", "Read: {document}", BOTH, "find")
QUERY = "Where is the river wide?"
DOCS = ["Rivers are wide.", "The bridge is old and the water deep.", "a " * 900]
PAIRS = [(QUERY, document) for document in DOCS]


@pytest.fixture(scope="module")
def cased(tmp_path_factory) -> str:
    return str(make_cased_backbone(tmp_path_factory.mktemp("cased") / "backbone"))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> str:
    return str(classifier_folder(tmp_path_factory.mktemp("cased") / "classifier"))


def cross(backbone, template):
    torch.manual_seed(1)
    ranker = PairWiseBertRanker(backbone, MAX_LENGTH, template=template)
    if not ranker.has_own_head:
        torch.nn.init.normal_(ranker.head.weight)
    return ranker


def dual(backbone, template):
    torch.manual_seed(1)
    ranker = DualEncoder(backbone, projection=8, max_length=MAX_LENGTH, template=template)
    torch.nn.init.normal_(ranker.query_tower.head[0].linear.weight)
    return ranker


def check_loaded(ranker, folder):
    again = load(folder, "32-true", "cpu")
    assert again.model.reads.template == ranker.reads.template
    assert again.score(PAIRS) == pytest.approx(TextRanker(ranker).score(PAIRS), abs=1e-5)
    other = TextRanker(ranker).score(PAIRS, "explain")
    assert again.score(PAIRS, "explain") == pytest.approx(other, abs=1e-5)
    assert np.abs(other - again.score(PAIRS)).max() > 1e-3, "an instruction says something"


@pytest.mark.parametrize("template", [PROMPTS, TWO_PROMPTS, BEHIND, PAIR, "classifier"])
def test_cross_encoders_as_sentence_transformers_reads_them(cased, classifier, tmp_path, template):
    """Of texts as they are where it can say the template, else of texts that are put into it. A
    classifier keeps its head in a template of both.
    """
    ranker = cross(classifier, PAIR) if template == "classifier" else cross(cased, template)
    ranker.save(tmp_path / "saved")
    check_loaded(ranker, tmp_path / "saved")
    pairs = PAIRS
    if template in (TWO_PROMPTS, BEHIND):
        pairs = [tuple(ranker.reads.rendered(*pair)) for pair in PAIRS]
    theirs = CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(pairs)
    assert theirs == pytest.approx(TextRanker(ranker).score(PAIRS), abs=1e-5)


@pytest.mark.parametrize("template", [TWO_PROMPTS, BEHIND])
def test_dual_encoders_as_sentence_transformers_reads_them(cased, tmp_path, template):
    ranker = dual(cased, template)
    ranker.save(tmp_path / "saved")
    check_loaded(ranker, tmp_path / "saved")
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    ours = Retriever(ranker)
    queries = [QUERY, "Why?"]
    expected = [ours.encode(queries, "query"), ours.encode(DOCS)]
    docs = DOCS
    if template is BEHIND:
        forms = ranker.reads
        queries = [forms.queries.rendered(query)[0] for query in queries]
        docs = [forms.docs.rendered(document)[0] for document in docs]
        assert queries[1] == "Why? (find)"
    assert theirs.encode_query(queries) == pytest.approx(expected[0], abs=1e-5)
    assert theirs.encode_document(docs) == pytest.approx(expected[1], abs=1e-5)


# The ranker, its template, the form, and whether texts must be put into the template before.
EXPORTS = {
    "cross, prompt": (cross, PROMPTS, "sentence-transformers", False),
    "cross, two prompts": (cross, TWO_PROMPTS, "sentence-transformers", True),
    "cross, one text": (cross, PAIR, "sentence-transformers", False),
    "cross, graph": (cross, PROMPTS, "onnx", True),
    "classifier, prompt": (cross, PROMPTS, "transformers", True),
    "classifier, one text": (cross, PAIR, "transformers", False),
    "dual, prompts": (dual, TWO_PROMPTS, "sentence-transformers", False),
    "dual, text behind": (dual, BEHIND, "sentence-transformers", True),
    "dual, graph": (dual, BEHIND, "onnx", True),
}


@pytest.mark.long
@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_proves_itself_and_says_what_it_can_not_do(cased, classifier, tmp_path, name):
    made, template, to, by_caller = EXPORTS[name]
    ranker = made(classifier if name.startswith("classifier") else cased, template)
    ranker.save(tmp_path / "own")
    folder = tmp_path / "exported"
    note = export(tmp_path / "own", folder, to).note
    said = StringIO()
    with redirect_stdout(said), pytest.raises(SystemExit) as stopped:
        run_path(str(folder / "proof/check.py"), run_name="__main__")
    assert (stopped.value.code, said.getvalue()) == (0, "pass\n")
    verified = verify(folder)
    assert verified.finding is None and not verified.changed
    contract = json.loads((folder / "proof/contract.json").read_text())
    assert contract["rendered_by_caller"] == by_caller == ("put texts into it before" in note)
    assert note in (folder / "README.md").read_text()
    assert contract["budgets"]["query"] == template.query_tokens
    assert ("queries to 6 tokens" in note) == (template is BEHIND)
    if to == "onnx":
        assert Template(**json.loads((folder / "ltr.json").read_text())["template"]) == template
    else:
        check_loaded(ranker, folder)


def test_templates_and_prompts_that_say_two_things_are_refused(cased, tmp_path):
    with pytest.raises(InputError, match="template and query_prompt or doc_prompt say the same"):
        DualEncoder(cased, template=TWO_PROMPTS, query_prompt="")
    with pytest.raises(InputError, match="reads queries and documents apart, got template.pair"):
        DualEncoder(cased, template=PAIR)
    DualEncoder(cased, template=TWO_PROMPTS).save(tmp_path / "saved")
    saved = str(tmp_path / "saved")
    assert DualEncoder(saved).reads.template == TWO_PROMPTS
    assert DualEncoder(saved, query_prompt="", doc_prompt="").reads.template is None
    with pytest.raises(InputError, match="backbone and doc_backbone have templates of their own"):
        DualEncoder(saved, doc_backbone=cased)
    pair = PairWiseBertRanker(cased, MAX_LENGTH, template=PAIR)
    pair.save(tmp_path / "pair")
    assert PairWiseBertRanker(str(tmp_path / "pair"), MAX_LENGTH).template == PAIR


def test_instructions_in_use(cased):
    """One for all, or one of each; those of a text alone are read, and where none is, it is said."""
    ranker = TextRanker(cross(cased, PROMPTS))
    one, other = ranker.score(PAIRS[:1], "explain"), ranker.score(PAIRS[:1])
    assert ranker.score(PAIRS[:1] * 2, ["explain", ""]) == pytest.approx([one[0], other[0]])
    ranked = ranker.rank(QUERY, DOCS, instruction="explain")
    scores = ranker.score(PAIRS, "explain")
    assert [hit.score for hit in ranked] == sorted(scores.tolist(), reverse=True)
    with pytest.raises(InputError, match="one for all, or one for each of 3, got 2"):
        ranker.score(PAIRS, ["explain", "find"])
    plain = TextRanker(cross(cased, None), name="plain")
    with pytest.raises(InputError, match=r"plain reads no instruction: .* no \{instruction\}"):
        plain.rank(QUERY, DOCS, instruction="explain")

    retriever = Retriever(DualEncoder(cased, template=TWO_PROMPTS))
    embeddings = retriever.encode([QUERY, QUERY], "query", ["explain", ""])
    asked = Retriever(DualEncoder(cased, query_prompt="Do explain: ", doc_prompt="Read: "))
    assert embeddings[0] == pytest.approx(asked.encode([QUERY], "query")[0], abs=1e-6)
    assert embeddings[1] == pytest.approx(retriever.encode([QUERY], "query")[0], abs=1e-6)
    with pytest.raises(InputError, match="an instruction is of queries"):
        retriever.encode(DOCS, "document", "explain")
    found = retriever.search(QUERY, DOCS, instruction="explain")
    expected = asked.search(QUERY, DOCS)
    assert [hit.place for hit in found] == [hit.place for hit in expected]
    assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], abs=1e-6)
