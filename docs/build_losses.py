"""Build docs/losses.md and its figures from the docstrings of ``ltr.losses``: python
docs/build_losses.py

What is said of a loss stands in its docstring, and what a figure shows in loss_figures.py; here is
only how a page is made of it.
"""

import inspect
import re
import textwrap
from functools import cache
from pathlib import Path

from loss_figures import caption, svg

import ltr.losses
import ltr.margins
from ltr.losses import LOSSES, Loss

DOCS = Path(__file__).parent
# From the first choices to the special ones; a file not named here comes last.
FILES = (
    "pairwise",
    "triplet",
    "lambdarank",
    "listwise",
    "list_mle",
    "approximate",
    "pointwise",
    "distillation",
    "combine",
)
MATH = ".. math::"
SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Use", "Cost", "References", "Example")

INTRODUCTION = """\
<!-- Built by `make docs` from the docstrings of ltr.losses: edit those. -->

# Losses

A ranking loss is a function of one labelled score matrix, `loss(scores, labels, mask, margin)`: a row is a query, a column a
document of its list, a higher score is better, and the mask is False at padding. Triplets are rows of one relevant document and
its negatives, in-batch negatives are longer rows, an online batch is the square matrix of all its texts; so every loss here works
with every model and every way of making batches. Padding changes nothing, and a row with nothing to learn gives 0, a zero
gradient, and does not dilute the mean.

The pairwise family is one formula, a sum or mean over chosen pairs whose labels differ:

```math
\\sum_{(i, j) \\in P} w_{ij} \\cdot \\mathrm{cost}(s_i - s_j,\\; m_{ij}), \\qquad P \\subseteq \\{(i, j) : y_i > y_j\\}
```

The *cost* is a hinge, its square, or logistic; the *pairs* are all, the hardest, semi-hard ones or neighbours; the *weights* are
equal, or what a swap does to a metric; a *margin* is a number, or one per negative or pair. The named losses are points of it.

**How to choose.** With one relevant document and negatives that are drawn or come from the batch, start with
[SoftmaxLoss](#softmaxloss), with graded lists start with [RankNetLoss](#ranknetloss), and if one metric decides, go on with
[LambdaRankLoss](#lambdarankloss) or [LambdaLoss](#lambdaloss). If you know how far apart two documents should be, take a margin
([MarginRankingLoss](#marginrankingloss), [AdaptiveMarginRankingLoss](#adaptivemarginrankingloss)); if a teacher gives the scores,
distil ([MarginMSELoss](#marginmseloss), [KLDivergenceLoss](#kldivergenceloss)). Scores that must mean something by themselves, a
probability or a grade, need a pointwise loss, alone or beside another in a [WeightedSum](#weightedsum), or
[SoftmaxLoss](#softmaxloss) with an `anchor`.

In a configuration: `loss: {class_path: ltr.losses.RankNetLoss, init_args: {sigma: 2.0}}`.

**Scores and their scale.** `model.transform: softmax` or `sigmoid` gives any loss probabilities in the place of scores: over the
row's list, or document by document. Margins are in units of probability then. An anchor is refused then, and with a similarity that is
minus a distance: no score could go below it, or above it. Every ranker has a `temperature` τ that divides its scores;
`learn_temperature: true` trains it, at a peak rate of at least 1e-3. For a logistic loss it is a steepness σ = 1/τ.
"""

LEGEND = """\
In the costs N is the documents of a list, P those of them that are more relevant than another one, B the rows, k the ranks that
count, and a *block* is as many documents as are compared with the whole list at once.

In the figures one document's score moves and the others stay: left the value, right its gradient on the moving score. Below 0 a
step of gradient descent raises the score, above 0 it lowers it.
"""

MARGINS = """\
## margins

A policy of `ltr.margins` gives the margin of each pair of a batch, in units of score, to a loss that uses one: `model.margin` in
a configuration. The docstrings in [margins](../ltr/margins) have all options, as has `ltr fit --model.margin.help NAME`.
Distances and similarities are those of the embeddings; mined negatives bring the distance in their index.

"""


def sections(doc: str) -> dict[str, str]:
    """The parts of a docstring by their names; what comes before the first one is ``""``."""
    parts: dict[str, list[str]] = {"": []}
    name = ""
    for line in inspect.cleandoc(doc).splitlines():
        heading = re.fullmatch(rf"({'|'.join(SECTIONS)}):(?: (.*))?", line)
        if heading:
            name = heading[1]
            parts[name] = []
            line = "    " + (
                heading[2] or ""
            )  # text behind the heading, as if on a line of its own
        parts[name].append(line)
    texts = {}
    for name, lines in parts.items():
        text = "\n".join(lines)
        texts[name] = inspect.cleandoc(text) if name else text.strip()
    return texts


def options(args: str) -> dict[str, str]:
    """Name and meaning of each argument."""
    entries = re.split(r"^(\w+): ", args, flags=re.MULTILINE)[1:]
    return {name: _line(text) for name, text in zip(entries[::2], entries[1::2], strict=True)}


def described(cls: type[Loss]) -> dict[str, str]:
    """The parts of a class's docstring; an option that it leaves to :class:`Loss` is described
    there.
    """
    parts = sections(cls.__doc__)
    entries = [parts.get("Args", "")]
    described_here = options(entries[0])
    shared = options(sections(Loss.__doc__)["Args"])
    for name in inspect.signature(cls).parameters:
        if name not in described_here:
            entries.append(f"{name}: {shared[name]}")
    return parts | {"Args": "\n".join(entries).strip()}


@cache
def by_file() -> dict[str, list[type[Loss]]]:
    """The exported classes by the file that they stand in, in the order of their definition."""

    def place(file: str) -> tuple[int, str]:
        return (FILES.index(file) if file in FILES else len(FILES)), file

    classes: dict[str, list[type[Loss]]] = {}
    for cls in sorted(LOSSES.values(), key=_first_line):
        classes.setdefault(_file(cls), []).append(cls)
    return {file: classes[file] for file in sorted(classes, key=place)}


def blocks(text: str) -> list[str]:
    """The paragraphs of a description; a formula is one that begins with ``.. math::``."""
    return re.split(r"\n\n(?=\S)", text.strip())


def markdown(text: str) -> str:
    """A docstring's paragraph with GitHub's marks: formulas, code, and names that link to their
    section.
    """
    if text.startswith(MATH):
        return f"```math\n{inspect.cleandoc(text.removeprefix(MATH))}\n```"

    def link(role: re.Match) -> str:
        name = role[1]
        cls = LOSSES.get(name.split(".")[-1])
        if cls is None:
            return f"`{name}`"
        return f"[`{name.removeprefix('ltr.losses.')}`](#{cls.__name__.lower()})"

    parts = re.split(r"(:math:`[^`]*`|``[^`]*``)", _line(text))
    marked = []
    for part in parts:
        if part.startswith(":math:"):
            marked.append(f"${part.removeprefix(':math:')}$")
        else:
            marked.append(part.replace("``", "`"))
    return re.sub(r":(?:func|class|data):`([\w.]+)`", link, "".join(marked))


def source(references: str) -> str:
    """Authors and years only; the first source as it is where none has a year."""
    sources = references.split("; ")
    short = []
    for text in sources:
        authors = re.match(r"(.*?\(\d{4}\))", text)
        if authors:
            short.append(authors[1])
    return "; ".join(short) or sources[0].removesuffix(".")


def table() -> str:
    """One row per class, under a row per file."""
    rows = [["loss", "when to use", "cost", "source"], ["---"] * 4]
    for file, classes in by_file().items():
        rows.append([f"**[{file}](#{file})**", "", "", ""])
        for cls in classes:
            parts = described(cls)
            name = cls.__name__
            cells = [f"[{name}](#{name.lower()})"]
            for text in (parts["Use"], parts["Cost"], source(_line(parts["References"]))):
                cells.append(markdown(text).replace("|", "\\|"))
            rows.append(cells)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def margins() -> str:
    """The section of the margin policies: a row per class, with its first sentence and formula."""
    rows = [("margin", "formula", "source, or work of the same kind"), ("---",) * 3]
    for name, cls in ltr.margins.MARGINS.items():
        parts = sections(cls.__doc__)
        first, *more = blocks(parts[""])
        formula = ""
        if more and more[0].startswith(MATH):
            formula = f" $`{_line(more[0].removeprefix(MATH))}`$"
        references = source(_line(parts.get("References", "")))
        rows.append((f"`{name}`", markdown(first) + formula, references))
    return MARGINS + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def section(cls: type[Loss]) -> str:
    """Formula, options, figure and source of a class."""
    name = cls.__name__
    parts = described(cls)
    parameters = inspect.signature(cls).parameters
    listed = []
    for option, text in options(parts["Args"]).items():
        listed.append(f"* `{option}` (`{parameters[option].default}`): {markdown(text)}")
    listed.append(f"* A margin of the batch is {'used' if cls().takes_margin else 'not used'}.")
    figure = f"![{name}: value and gradient](figures/{name}.svg)\n\n*{caption(name)}*"
    texts = [
        f"### {name}",
        *map(markdown, blocks(parts[""])),
        "\n".join(listed),
        figure,
        f"Source: {markdown(parts['References'])}",
    ]
    return "\n\n".join(texts) + "\n"


def page() -> str:
    """The whole of docs/losses.md."""
    parts = [INTRODUCTION, table(), LEGEND]
    for file, classes in by_file().items():
        about = blocks(getattr(ltr.losses, file).__doc__)[0]
        parts += [
            f"## {file}\n\n{markdown(about)} Code: [{file}.py](../ltr/losses/{file}.py).\n",
            *map(section, classes),
        ]
    return wrapped("\n".join([*parts, margins()]))


def wrapped(text: str, width: int = 140) -> str:
    """Break long lines of prose; not those of tables, of code, nor inside a formula, code or a
    link.
    """
    lines = []
    fenced = False
    for line in text.split("\n"):
        if line.startswith("```"):
            fenced = not fenced
        if fenced or len(line) <= width or line.startswith(("|", "!", "<")):
            lines.append(line)
            continue
        # \0 stands for the spaces where no line may break.
        whole = re.sub(
            r"\$`.*?`\$|`[^`]*`|\[[^]]*\]\([^)]*\)",
            lambda unit: unit[0].replace(" ", "\0"),
            line,
        )
        indent = "  " if line.startswith("* ") else ""
        broken = textwrap.wrap(
            whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        lines += [part.replace("\0", " ") for part in broken]
    return "\n".join(lines)


def main() -> None:
    """Write the page and the figures, and remove figures of losses that are no more."""
    (DOCS / "losses.md").write_text(page(), encoding="utf-8")
    (DOCS / "figures").mkdir(exist_ok=True)
    for old in (DOCS / "figures").glob("*.svg"):
        if old.stem not in LOSSES:
            old.unlink()
    for name in LOSSES:
        (DOCS / f"figures/{name}.svg").write_text(svg(name), encoding="utf-8")


def _line(text: str) -> str:
    return " ".join(text.split())


def _file(cls: type[Loss]) -> str:
    return cls.__module__.removeprefix("ltr.losses.")


def _first_line(cls: type[Loss]) -> int:
    return inspect.getsourcelines(cls)[1]


if __name__ == "__main__":
    main()
