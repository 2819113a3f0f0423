"""What is read of a text in a template: its fields cut to their budgets, and the text around them. A
text without a template has the plain :class:`ltr.data.tokens.Rendering`.
"""

from collections.abc import Callable
from functools import cached_property

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ltr.data.template import Side, Template
from ltr.data.tokens import Rendering, backend_without_cutting
from ltr.errors import InputError


class Cutter:
    """Counts the tokens of texts, and cuts texts to a number of tokens.

    Args:
        tokenizer: a fast one. It cuts on its own side.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.cuts_left = tokenizer.truncation_side == "left"

    @cached_property
    def backend(self) -> Tokenizer:
        """The backend of the tokenizer; a large one takes a second to copy, so it is made when it is
        asked for.
        """
        return backend_without_cutting(self._tokenizer)

    def n_tokens(self, text: str, special: bool = False) -> int:
        """Tokens of a text alone, with those that the tokenizer adds or without them."""
        if not text and not special:
            return 0
        return len(self.backend.encode(text, add_special_tokens=special).ids)

    def cut(self, text: str, n_tokens: int | None) -> str:
        """The first tokens of a text, or its last ones where the tokenizer cuts at the left; fewer
        where the cut would part a character of several tokens. None: all.
        """
        if n_tokens is None:
            return text
        offsets = self.backend.encode(text, add_special_tokens=False).offsets
        n_left_out = len(offsets) - n_tokens
        if n_left_out <= 0:
            return text
        if self.cuts_left:
            first = n_left_out
            while first < len(offsets) and offsets[first][0] < offsets[first - 1][1]:
                first += 1
            return text[offsets[first][0] :] if first < len(offsets) else ""
        stop = n_tokens
        while stop > 0 and offsets[stop][0] < offsets[stop - 1][1]:
            stop -= 1
        return text[: offsets[stop - 1][1]] if stop > 0 else ""

    def fitting(
        self, text: str, around: Callable[[str], str], room: int, special: bool = False
    ) -> str | None:
        """So much of a text that the whole has no more tokens than there is room for.

        Args:
            text: what is cut.
            around: makes the whole of it.
            room: tokens of the whole.
            special: whether those count that the tokenizer adds.

        Returns:
            None where the whole has too many tokens even around nothing.
        """
        kept = text
        n_kept: int | None = None
        # Once, as a rule. A cut may part a token that the text shares with what is around it.
        while (n_tokens := self.n_tokens(around(kept), special)) > room:
            if n_kept == 0:
                return None
            if n_kept is None:
                n_kept = self.n_tokens(text)
            n_kept = max(0, n_kept - (n_tokens - room))
            kept = self.cut(text, n_kept)
        return kept


class TemplateRendering(Rendering):
    """What is read of the texts of a side, in a template.

    Args:
        template: has the text around a query and a document, and their budgets.
        side: whose texts these are.
        cutter: counts and cuts tokens.
        room: tokens of the whole; None: a later cut may take the end of the whole, where the text
            stands.
    """

    def __init__(
        self,
        template: Template,
        side: Side,
        cutter: Cutter,
        room: int | None = None,
    ) -> None:
        self.template = template
        self.side = side
        self.reads_instructions = side == "query" and template.reads_instructions
        self._cutter = cutter
        self._room = room
        self._budget = template.budget(side)
        parts_of_side: list[object] = [template.document]
        if side == "query":
            parts_of_side = [template.query, template.instruction, template.instruction_tokens]
        self.key = [side, *parts_of_side, self._budget, room]
        # With the instruction cut to its budget, which the template's own prompt does not do.
        self.prompt = None if template.prompt(side) is None else self.around("")

    def __call__(self, text: str, instruction: str = "") -> str:
        """See :meth:`ltr.data.tokens.Rendering.__call__`; an InputError where an instruction leaves
        no room.
        """
        field = self.field(text)
        if self._room is None:
            return self.around(field, instruction)
        fitting = self._cutter.fitting(
            field, lambda kept: self.around(kept, instruction), self._room
        )
        if fitting is None:
            raise InputError(
                f"an instruction must leave room for a text among {self._room} tokens, got {instruction[:60]!r}; raise max_length, or set template.instruction_tokens",
                option="max_length",
            )
        return self.around(fitting, instruction)

    def field(self, text: str) -> str:
        """See :meth:`ltr.data.tokens.Rendering.field`."""
        return self._cutter.cut(text, self._budget)

    def around(self, field: str, instruction: str = "") -> str:
        """See :meth:`ltr.data.tokens.Rendering.around`."""
        if self.side == "document":
            return self.template.document_text(field)
        instruction = instruction or self.template.instruction
        instruction = self._cutter.cut(instruction, self.template.instruction_tokens)
        return self.template.query_text(field, instruction)


def rendering_of(
    template: Template, side: Side, cutter: Cutter, room: int | None = None
) -> Rendering:
    """What is read of the texts of a side. Where that is a prompt and the text, it is the rendering
    of that prompt, so that keys are the same.

    Args:
        template: of both sides.
        side: which one.
        cutter: of the tokenizer.
        room: tokens of the whole; None: it is cut later.
    """
    prompt = template.prompt(side)
    reads_instructions = side == "query" and template.reads_instructions
    if prompt is not None and template.budget(side) is None and not reads_instructions:
        return Rendering(prompt)
    is_safe_to_cut_later = prompt is not None and not cutter.cuts_left
    return TemplateRendering(template, side, cutter, None if is_safe_to_cut_later else room)
