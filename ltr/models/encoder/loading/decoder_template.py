"""What a decoder is asked about a query and a document, where nobody says otherwise, and how
sentence-transformers asks the same.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ltr.data.template import Template
from ltr.errors import InputError

# Of Qwen3-Reranker, as its authors publish it.
JUDGE = "Judge whether the Document meets the requirements based on the Query and the Instruct provided."
ANSWER = 'Note that the answer can only be "{yes}" or "{no}".'
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
QUERY = "<Instruct>: {instruction}\n<Query>: {query}"
DOCUMENT = "<Document>: {document}"
PAIR = "{query}\n{document}"
# What stands behind the document where the tokenizer has no chat template.
ANSWER_FOLLOWS = "\n<Answer>:\n"
# Llama's chat templates write the date of today, but for this variable: scores must not change with it.
DATE = "26 Jul 2024"


def judge_template(
    tokenizer: PreTrainedTokenizerBase, words: Sequence[str] | None = ("yes", "no")
) -> Template:
    """The template of Qwen3-Reranker, in the tokenizer's chat template where it has one.

    Args:
        tokenizer: of transformers.
        words: the answers that a document is relevant, and that it is not; None: none is asked for.
    """
    system = JUDGE
    if words is not None:
        system += " " + ANSWER.format(yes=words[0], no=words[1])
    if tokenizer.chat_template is None:
        pair = f"{system}\n\n{PAIR}{ANSWER_FOLLOWS}"
    else:
        pair = _in_chat(tokenizer, system)
        if PAIR not in pair:
            raise InputError(
                "the tokenizer's chat template must show what the user says, and it does not; set template",
                option="template",
            )
    return Template(query=QUERY, document=DOCUMENT, pair=pair, instruction=INSTRUCTION)


def _in_chat(tokenizer: PreTrainedTokenizerBase, system: str) -> str:
    """A conversation up to the answer, without thoughts where the template can leave them out."""
    user = {"role": "user", "content": PAIR}
    options: dict[str, Any] = {
        "tokenize": False,
        "add_generation_prompt": True,
        "enable_thinking": False,
        "date_string": DATE,
    }
    try:
        return str(
            tokenizer.apply_chat_template([{"role": "system", "content": system}, user], **options)
        )
    except TemplateError:  # Gemma's has no such role
        user["content"] = f"{system}\n\n{PAIR}"
        return str(tokenizer.apply_chat_template([user], **options))


def chat_template_of(template: Template, before: str = "", after: str = "") -> str:
    """The chat template by which sentence-transformers, and ``apply_chat_template`` of a tokenizer,
    make the same string of a message of the role ``query`` and one of the role ``document``. A
    message of the role ``system`` takes the place of the instruction.

    Args:
        template: what is read.
        before, after: the special tokens that a tokenizer adds: under a chat template it adds none.
    """
    assert template.pair is not None, "a decoder reads one text"
    sides = {"query": template.query, "document": template.document}
    expressions = []
    for side, text in _parts(before + template.pair + after, tuple(sides)):
        if side is None:
            expressions.append(_literal(text))
            continue
        for field, own_text in _parts(sides[side], (side, "instruction")):
            if field is None:
                expressions.append(_literal(own_text))
            elif field == "instruction":
                expressions.append(f"content('system') or {_literal(template.instruction)}")
            else:
                expressions.append(f"content({field!r})")
    return CONTENT + "".join(f"{{{{ {expression} }}}}" for expression in expressions)


# The text of the message of a role: a string, or the first of several parts.
CONTENT = (
    "{%- macro content(role) -%}{%- for message in messages if message.role == role -%}"
    "{{ message.content if message.content is string else message.content[0].text }}"
    "{%- endfor -%}{%- endmacro -%}"
)


def _parts(text: str, fields: tuple[str, ...]) -> list[tuple[str | None, str]]:
    """A text cut at its fields: (None, literal) and (name of a field, the field)."""
    pieces = re.split("({(?:" + "|".join(fields) + ")})", text)
    parts: list[tuple[str | None, str]] = []
    for number, piece in enumerate(pieces):
        if number % 2:
            parts.append((piece[1:-1], piece))
        elif piece:
            parts.append((None, piece))
    return parts


def _literal(text: str) -> str:
    """A string as Jinja writes it."""
    return json.dumps(text, ensure_ascii=False)


def template_of_roles(tokenizer: PreTrainedTokenizerBase, prompt: str = "") -> Template | None:
    """The template of a tokenizer whose chat template reads the roles ``query`` and ``document``, as
    those that sentence-transformers ranks with; None where it reads others. A prompt is a message of
    the role ``system``.
    """
    if tokenizer.chat_template is None:
        return None
    messages = [
        {"role": "query", "content": "{query}"},
        {"role": "document", "content": "{document}"},
    ]
    if prompt:
        messages.insert(0, {"role": "system", "content": prompt})
    try:
        pair = str(tokenizer.apply_chat_template(messages, tokenize=False))
    except (TemplateError, TypeError):
        return None
    if "{query}" not in pair or "{document}" not in pair:
        return None
    return Template(pair=pair)
