"""How a server makes token ids of texts: as the ranker does, or not quite.

A text passes four stages: the template, the tokenizer, the special tokens, the cut. :class:`Reading`
says where a server departs.
"""

import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ltr.data.layouts import ApartTexts, JoinedPairs, Reads
from ltr.data.template import PLAIN_TEMPLATE
from ltr.data.templated_pairs import TemplatedPairs
from ltr.use.proof.network import Kind, TokenRow

Template = Literal["own", "lost", "twice", "swapped", "one text"]
Change = Literal["none", "lower-cased", "lower-cased, without accents", "spaces collapsed"]
Special = Literal["own", "no first", "first twice", "no last", "last twice", "none"]
Cut = Literal["own", "longest first", "left"]


@dataclass(frozen=True)
class Reading:
    """How texts become token ids; the defaults are as in the contract.

    Args:
        template: ``lost``: the fields as they are; ``twice``: it is put around what was rendered;
            ``swapped``: query and document, or their prompts, have changed places; ``one text``:
            query and document with a space between.
        change: of the texts.
        special: which special tokens are there.
        max_length: tokens at which it is cut; None: as in the contract; 0: nowhere.
        cut: what is cut of a pair that is too long, and on which side.
        types: whether the token types of the contract are given; without, all are 0.
    """

    template: Template = "own"
    change: Change = "none"
    special: Special = "own"
    max_length: int | None = None
    cut: Cut = "own"
    types: bool = True


def is_rendered_by_caller(form: str, reads: Reads) -> bool:
    """Whether texts are put into the template by whoever asks for scores: no prompt and no chat
    template in a folder of this form says it.
    """
    if isinstance(reads, ApartTexts):
        return reads.prompts is None
    if not isinstance(reads, JoinedPairs) or isinstance(reads, TemplatedPairs):
        return False
    in_folder = reads.prompts if form == "sentence-transformers" else None
    return reads.template != PLAIN_TEMPLATE and in_folder is None


class SpecialTokens(NamedTuple):
    """The ids that a tokenizer puts before, between and behind the texts that it reads."""

    before: list[int]
    between: list[int]
    after: list[int]


class Text(NamedTuple):
    """What is read: a text, or a query with a document.

    Attributes:
        fields: as a user gives them, cut to the budgets of the template; put into it already where
            nothing in the folder does that.
        rendered: as they go into the tokenizer: one or two texts.
    """

    fields: list[str]
    rendered: list[str]


def special_tokens(tokenizer: Any, n_texts: int) -> SpecialTokens:
    """Which special tokens stand around one text or two."""
    encoding = tokenizer(*["a"] * n_texts)
    ids = encoding["input_ids"]
    slots = encoding.sequence_ids()
    places = [place for place, slot in enumerate(slots) if slot is not None]
    if not places:
        return SpecialTokens(ids, [], [])
    first, last = places[0], places[-1]
    between = [ids[place] for place in range(first, last) if slots[place] is None]
    return SpecialTokens(ids[:first], between, ids[last + 1 :])


def token_rows(
    texts: Sequence[Text],
    kind: Kind,
    tokenizer: Any,
    max_length: int,
    templates: dict[str, str | None],
    reading: Reading = Reading(),
    adds_special: bool = True,
) -> list[TokenRow] | None:
    """Token ids of texts, by the tokenizer alone, as a server gets them.

    Args:
        texts: of one kind.
        kind: what they are.
        tokenizer: of transformers.
        max_length: of the contract.
        templates: of the contract: what is put around a query and a document.
        reading: how a server reads them.
        adds_special: whether the tokenizer adds special tokens; a template may hold its own.

    Returns:
        None where this way of reading can't be told from that of the contract, such as without a
        first token where there is none.
    """
    sources = [_rendered(text, kind, reading.template, templates) for text in texts]
    if None in sources:
        return None
    given = [[_changed(part, reading.change) for part in source or []] for source in sources]
    departs = reading.template != "own" or reading.change != "none"
    if departs and given == [text.rendered for text in texts]:
        return None
    n_texts = len(given[0])
    if reading.cut == "longest first" and n_texts == 1:
        return None
    special = special_tokens(tokenizer, n_texts)
    if not adds_special:
        special = SpecialTokens([], [], [])
    length = max_length if reading.max_length is None else reading.max_length
    strategy: str | bool = "only_second" if n_texts == 2 else True
    if reading.cut == "longest first":
        strategy = "longest_first"
    options: dict[str, Any] = {"truncation": strategy if length else False, "verbose": False}
    if length:
        options["max_length"] = length
    if reading.special == "none" or (not adds_special and reading.template != "lost"):
        options["add_special_tokens"] = False
    own_side = tokenizer.truncation_side
    if reading.cut == "left":
        tokenizer.truncation_side = "left" if own_side == "right" else "right"
    columns = [list(column) for column in zip(*given, strict=True)]
    try:
        encoding = _encoded(tokenizer, columns, options)
    finally:
        tokenizer.truncation_side = own_side
    has_types = "token_type_ids" in tokenizer.model_input_names
    if not reading.types and not has_types:
        return None
    rows = []
    for place, ids in enumerate(encoding["input_ids"]):
        types = list(encoding["token_type_ids"][place]) if has_types else None
        row = _with_special(TokenRow(list(ids), types), special, reading.special)
        if row is None or not row.ids:
            return None
        if not reading.types:
            row = row._replace(types=[0] * len(row.ids))
        rows.append(row)
    return rows


def _encoded(tokenizer: Any, columns: Sequence[list[str]], options: dict[str, Any]) -> Any:
    """What the tokenizer makes of texts. Where the first of two leaves no room for the other one,
    which alone is cut, the longer one is.
    """
    encoding = None
    with suppress(Exception):  # some tokenizers raise, others leave the pair too long
        encoding = tokenizer(*columns, **options)
    longest = 0 if encoding is None else max(map(len, encoding["input_ids"]))
    if encoding is not None and longest <= options.get("max_length", longest):
        return encoding
    return tokenizer(*columns, **options | {"truncation": "longest_first"})


def _rendered(
    text: Text, kind: Kind, template: Template, templates: dict[str, str | None]
) -> list[str] | None:
    """The texts that go into the tokenizer; None where there is no template to depart from."""
    if template == "own":
        return text.rendered
    if template == "lost":
        return text.fields
    if template == "one text":
        return [" ".join(text.fields)] if kind == "pair" else None
    if template == "swapped":
        if kind == "pair":
            query, document = text.fields
            return rendered_pair(templates, document, query)
        other = "document" if kind == "query" else "query"
        return [filled(templates[other], other, text.fields[0])]
    if kind == "pair":  # twice
        return rendered_pair(templates, *text.rendered) if len(text.rendered) == 2 else None
    return [filled(templates[kind], kind, text.rendered[0])]


def rendered_pair(templates: dict[str, str | None], query: str, document: str) -> list[str]:
    """What goes into the tokenizer for a query and a document: two texts, or one with both."""
    query = filled(templates["query"], "query", query)
    document = filled(templates["document"], "document", document)
    pair = templates["pair"]
    if pair is None:
        return [query, document]
    before, _, behind = pair.partition("{query}")  # braces of the texts are text
    return [filled(before, "document", document) + query + filled(behind, "document", document)]


def filled(template: str | None, field: str, text: str) -> str:
    """A template with a text in the place of a field; None: the text alone."""
    return text if template is None else template.replace("{" + field + "}", text)


def _changed(text: str, change: Change) -> str:
    if change == "lower-cased":
        return text.lower()
    if change == "lower-cased, without accents":
        decomposed = unicodedata.normalize("NFD", text.lower())
        return "".join(letter for letter in decomposed if unicodedata.category(letter) != "Mn")
    if change == "spaces collapsed":
        return " ".join(text.split())
    return text


def _with_special(row: TokenRow, special: SpecialTokens, which: Special) -> TokenRow | None:
    """The row with other special tokens at its ends; None where there are none of that kind."""
    ids, types = row
    n_before, n_after = len(special.before), len(special.after)
    if which in ("own", "none"):
        return row
    if which in ("no first", "first twice") and not n_before:
        return None
    if which in ("no last", "last twice") and not n_after:
        return None
    if which == "no first":
        return TokenRow(ids[n_before:], None if types is None else types[n_before:])
    if which == "first twice":
        first = None if types is None else [types[0], *types]
        return TokenRow([special.before[0], *ids], first)
    if which == "no last":
        return TokenRow(ids[:-n_after], None if types is None else types[:-n_after])
    return TokenRow([*ids, special.after[-1]], None if types is None else [*types, types[-1]])
