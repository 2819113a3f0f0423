"""Files that people have at hand when they come: each is read as what it is, with a line where that
is not plain, or refused in one line. None is read as something else.

A row of the tables below has the kind of the file, what stands in it, and what comes: judgements
(texts or ids), the words of a refusal, or both judgements and the words of a warning.
"""

import logging
import random
import re

import pytest

from ltr.data.collection import open_collection
from ltr.data.labelled_texts import open_labelled_texts
from ltr.data.tab_separated import LineLayout, layout_of
from ltr.data.text_files import open_texts
from tests.world.refusals import refused

# Longer than a few words, as passages are; the first eight words of each query differ.
ASKED = ["capital of France", "capital of Spain", "river of Paris", "who wrote Faust"]
RIGHT = ["Paris is the capital", "Madrid is the capital", "the Seine flows there", "it was Goethe"]
WRONG = [
    "Lyon lies on the Rhone",
    "Seville is a warm town",
    "the Rhine is longer",
    "not Schiller he",
]


def in_columns(columns):
    """Each is a list, or a string of words."""
    return [column.split() if isinstance(column, str) else column for column in columns]


def lines(*columns, ends="\n", between="\t", header=""):
    rows = list(zip(*in_columns(columns), strict=True))
    if header:
        rows = [header.split(), *rows]
    return "".join(between.join(row) + ends for row in rows)


def as_pairs(*columns, **options):
    """Lines, and their judgements where each is a query and what is relevant to it."""
    judgements = {query: {doc: 1} for query, doc in zip(*in_columns(columns), strict=True)}
    return lines(*columns, **options), judgements


def as_triples(*columns, **options):
    """The same where what is not relevant stands behind them."""
    rows = zip(*in_columns(columns), strict=True)
    judgements = {query: {right: 1, wrong: 0} for query, right, wrong in rows}
    return lines(*columns, **options), judgements


def many(column, n=40):
    """A column of n texts, each of its own: three words and a number in letters."""
    return [f"{column} text {'abcdefgh'[i % 8]} {'ijklmnop'[i // 8]}" for i in range(n)]


def cycle(values, n=40):
    """n values of a column, which come again and again."""
    (column,) = in_columns([values])
    return [column[i % len(column)] for i in range(n)]


_, PAIRS = as_pairs(ASKED, RIGHT)
PLAIN, TRIPLES = as_triples(ASKED, RIGHT, WRONG)
TWICE = [*ASKED, *ASKED]
BOTH = [*RIGHT, *WRONG]
ONES = "1 1 1 1 0 0 0 0"
LABELS = "query<TAB>document<TAB>label as the first line"
AS_TEXTS = "where these are texts, write query<TAB>positive<TAB>negative as the first line"

HEADERS_OF_TRIPLES = ["anchor positive negative", "Frage Antwort Falsch"]
HEADERS_OF_LABELLED_PAIRS = [
    "Question Sentence Label",  # as WikiQA's
    "Question Sentence is_relevant",
    "question answer is_correct",
    "Requête Document Étiquette",
    "查询 文档 标签",
]
READ = {
    # kind: (content of train.tsv, judgements)
    **{
        f"triples, {h}": (lines(ASKED, RIGHT, WRONG, header=h), TRIPLES) for h in HEADERS_OF_TRIPLES
    },
    **{
        f"labelled pairs, {header}": (lines(TWICE, BOTH, ONES, header=header), TRIPLES)
        for header in HEADERS_OF_LABELLED_PAIRS
    },
    "pairs": as_pairs(ASKED, RIGHT),
    "pairs, a header": as_pairs(ASKED, RIGHT, header="Question Answer"),
    "triples": (PLAIN, TRIPLES),
    "triples with Windows line ends and a byte order mark": (
        "\ufeff" + lines(ASKED, RIGHT, WRONG, ends="\r\n"),
        TRIPLES,
    ),
    "triples with U+2028 inside": as_triples(ASKED, [f"{p}\u2028" for p in RIGHT], WRONG),
    "grades from 0 to 3, a header": (
        lines(ASKED, RIGHT, "0 1 2 3", header="query document grade"),
        {q: {p: g} for g, (q, p) in enumerate(zip(ASKED, RIGHT, strict=True))},
    ),
    "STS, with fractions, a header": (
        lines(ASKED, RIGHT, "0.25 4.75 5.0 3.125", header="sentence1 sentence2 score"),
        {q: {p: g} for g, q, p in zip((0.25, 4.75, 5, 3.125), ASKED, RIGHT, strict=True)},
    ),
    "labels -1 and 1, a header": (
        lines(TWICE, BOTH, "1 1 1 1 -1 -1 -1 -1", header="query doc label"),
        TRIPLES,
    ),
    "numbers as answers": as_triples("2+2 3+3", "4 6", "5 7"),
    "years as answers": as_pairs(ASKED, "1969 1789 1492 1808"),
    "labels' words as texts, a header": as_triples(
        ASKED, RIGHT, "no no no no", header="query positive negative"
    ),
    "yes and no as answers": as_triples(ASKED, "yes no yes no", "no yes no yes"),
    "short words as texts": as_triples("how who", "many me", "few you"),
    "all negatives equal": as_triples(ASKED, RIGHT, ["Nobody knows it at all"] * 4),
    "quotes over two sentences": as_triples(
        [*ASKED, 'who said "no"'], [*RIGHT, '"I did'], [*WRONG, 'not me" he said']
    ),
    "questions with is": as_pairs(
        ["is it hot", "is it cold", "is it dry"], ["it is", "that is so", "no it is not"]
    ),
    "Chinese texts, a short one first": as_pairs(
        "天气 法国的首都 西班牙的首都 英国的首都", "晴 巴黎吧 马德里 伦敦"
    ),
    "Chinese texts": as_triples("法国的首都 西班牙的首都", "巴黎 马德里", "里昂 塞维利亚"),
}

OF_0_AND_1 = "column 3 holds 0 and 1 alone: each line is read as a query, a document and its label"
INTENTS = cycle([f"card_{letter}" for letter in "abcdefghijkl"], 60)
TOLD = {
    # kind: (content, judgements, words of the one warning)
    "labelled pairs, 1 and 0": (lines(TWICE, BOTH, ONES), TRIPLES, OF_0_AND_1),
    "labelled pairs, 1.0 and 0.0": (
        lines(TWICE, BOTH, [f"{label}.0" for label in ONES.split()]),
        TRIPLES,
        OF_0_AND_1,
    ),
    "labelled pairs, all 1": (lines(ASKED, RIGHT, "1 1 1 1"), PAIRS, OF_0_AND_1),
    "triples, and a labelled pair behind them": (
        PLAIN + "who\tit was nobody\t1\n",
        TRIPLES | {"who": {"it was nobody": 1, "1": 0}},
        "got numbers in 1 of 5 lines in column 3; where these are labels",
    ),
    "MS MARCO's triples, four queries in 40 lines": (
        lines(cycle(ASKED), cycle(RIGHT), many("wrong")),
        {
            q: {p: 1} | dict.fromkeys(many("wrong")[i::4], 0)
            for i, (q, p) in enumerate(zip(ASKED, RIGHT, strict=True))
        },
        "40 lines hold 4 queries; the lines of one query are one list",
    ),
    "a tab inside a passage": (
        PLAIN + "who\tfirst half\tsecond half\tnobody\n",
        TRIPLES | {"who": {"first half": 1, "second half": 0, "nobody": 0}},
        "train.tsv:5: 1 of 5 lines have another number of columns than most, "
        "which have 3, as this one with 4",
    ),
    "a line end inside a passage": (
        PLAIN + "who\tfirst half\nsecond half\tnobody\n",
        TRIPLES | {"who": {"first half": 1}, "second half": {"nobody": 1}},
        "train.tsv:5: 2 of 6 lines have another number of columns than most",
    ),
    "code with tabs": (
        "sort a list\tdef f(x):\treturn sorted(x)\tpass\n"
        "read a file\topen(name)\tclose(name)\nadd\ta\t+\tb\t;\n",
        {
            "sort a list": {"def f(x):": 1, "return sorted(x)": 0, "pass": 0},
            "read a file": {"open(name)": 1, "close(name)": 0},
            "add": {"a": 1, "+": 0, "b": 0, ";": 0},
        },
        "2 of 3 lines have another number of columns than most",
    ),
    "quotes of a spreadsheet": (
        *as_pairs(ASKED[:1], ['"the ""City of Light"""']),
        "train.tsv:1: 'capital of France.*: 1 lines hold quotes as spreadsheets write",
    ),
    "few lines, a language": (
        *as_triples(ASKED, RIGHT, "en en en en"),
        r"every column must hold texts, .* got single words \(en\) in column 3; .* read as texts",
    ),
    "many intents read as pairs": (
        *as_pairs(many("asked", 60), INTENTS),
        r"got 12 different values \(card_a, card_b, card_c, …\) in column 2",
    ),
    "few lines, labels that nobody knows": (
        *as_triples(ASKED, RIGHT, "passt quer passt quer"),
        r"got single words \(passt, quer\) in column 3",
    ),
    "few lines, ids of documents": (
        *as_triples(ASKED, RIGHT, "D12 D7 D31 D4"),
        "got ids in column 3",
    ),
    "few lines, sentiment read as pairs": (
        *as_pairs(BOTH, cycle("positive negative", 8)),
        r"got 2 different values \(negative, positive\) in column 2",
    ),
}

# Files that begin with a column of numbers.
NUMBERS = {
    "MS MARCO's collection": ["0 1 2 3", RIGHT],
    "MS MARCO's top1000": ["1 2 3 4", "5 6 7 8", ASKED, RIGHT],
    "judgements as qrels": ["1 2 3 4", "0 0 0 0", "5 6 7 8", "1 1 1 1"],
    "Quora's six columns": ["1 2 3 4", "1 3 5 7", "2 4 6 8", ASKED, RIGHT, "0 1 0 1"],
}
# What stands in the third of 40 lines, and the words of the refusal.
OF_40_LINES = {
    "stars": ("1 2 3 4 5", f"in column 3; .*{LABELS}"),
    "labels that nobody knows": (["passt gut", "geht so"], "got 2 different values"),
    "a column of sources": ("quora wiki", "single words .* in column 3"),
    "a column of addresses": ([f"https://a.org/{i}" for i in range(40)], "in column 3"),
}
# What stands in a column that holds no texts, beside two that do, and the words of the refusal.
THIRD_COLUMNS = {
    "STS, with fractions": ("4.75 0.2 5.0 3.1", f"got numbers .*{LABELS}.*{AS_TEXTS}"),
    "grades from 0 to 3": (
        "0 1 2 3",
        rf"got numbers \(0, 1, 2, …\) in column 3; .*{LABELS}.*{AS_TEXTS}",
    ),
    "ranks": ("1 2 3 4", "got numbers .* in column 3"),
    "scores of a model": ("-1.5e-3 0.99 12.1 0.5", r"got numbers in column 3|got numbers \("),
    "decimal commas": ("0,5 0,99 1,0 0,1", "got numbers .* in column 3"),
    "words of NLI": ("entailment neutral contradiction neutral", "words that judge"),
    "German labels": ("ja nein nein ja", r"words that judge \(ja, nein\)"),
}
WRONG_NAMES = {
    "MS MARCO's top1000": ("qid pid query passage", NUMBERS["MS MARCO's top1000"]),
    "Quora's six columns": (
        "id qid1 qid2 question1 question2 is_duplicate",
        NUMBERS["Quora's six columns"],
    ),
    "question, context, answer": ("question context answer", [ASKED, RIGHT, WRONG]),
    "negatives before positives": ("query negative positive", [ASKED, WRONG, RIGHT]),
    "a language that nobody knows": ("kysymys vastaus väärin", [ASKED, RIGHT, WRONG]),
    "labels, in such a language": ("kysymys asiakirja tarvio", [TWICE, BOTH, ONES]),
}
REFUSED = {
    # kind: (content, words of the refusal)
    **{kind: (lines(*columns), "got numbers .* in column 1") for kind, columns in NUMBERS.items()},
    **{kind: (lines(ASKED, RIGHT, third), words) for kind, (third, words) in THIRD_COLUMNS.items()},
    **{
        kind: (lines(many("q"), many("d"), cycle(values)), words)
        for kind, (values, words) in OF_40_LINES.items()
    },
    **{
        f"{kind}, a header": (lines(*columns, header=header), "train.tsv:1: columns must be called")
        for kind, (header, columns) in WRONG_NAMES.items()
    },
    "STS with a missing score, its header": (
        lines(ASKED, RIGHT, "4.75 nan 5.0 3.1", header="sentence1 sentence2 score"),
        "train.tsv:3: a grade must be a number .*'nan'",
    ),
    "scores below 0, their header": (
        lines(ASKED, RIGHT, "0.75 0.2 -0.5 1", header="sentence1 sentence2 score"),
        "train.tsv:4: a grade with a fraction must not be negative, got '-0.5'",
    ),
    "words of ESCI, their header": (
        lines(ASKED, RIGHT, "E S C I", header="query product label"),
        "train.tsv:2: a grade must be a number .* for E, S, C and I of ESCI.*, got 'E'",
    ),
    "words of NLI, its header": (
        lines(ASKED, RIGHT, THIRD_COLUMNS["words of NLI"][0], header="premise hypothesis label"),
        "train.tsv:1: a label must be a grade, .*got classes, 'premise",
    ),
    "numbers of NLI, whose 2 is a contradiction": (
        lines(ASKED, RIGHT, "0 1 2 0", header="premise hypothesis label"),
        "train.tsv:1: a label must be a grade, .*got classes, 'premise",
    ),
    "numbers of a category": (
        lines(ASKED, RIGHT, "0 1 2 0", header="question answer category"),
        "train.tsv:1: a label must be a grade, .*got classes, 'question",
    ),
    "relevant and irrelevant": (
        lines(TWICE, BOTH, ["relevant"] * 4 + ["irrelevant"] * 4),
        f"words that judge .*{LABELS}.*{AS_TEXTS}",
    ),
    "one labelled pair": (
        "capital of France\tParis is it\trelevant\n",
        r"words that judge \(relevant\) in column 3",
    ),
    "Chinese labels": (
        lines("法国的首都 西班牙的首都", "巴黎是首都 里昂", "相关 不相关"),
        "words that judge",
    ),
    "True and False, as pandas writes them": (
        lines(TWICE, BOTH, ["True"] * 4 + ["False"] * 4),
        r"words that judge \(False, True\)",
    ),
    "a label in front": (lines(ONES, TWICE, BOTH), r"got numbers \(0, 1\) in column 1"),
    "a label in the middle": (lines(TWICE, ONES, BOTH), r"got numbers \(0, 1\) in column 2"),
    "a column of languages": (
        lines(many("q"), many("d"), many("n"), cycle("en de fr")),
        r"single words \(de, en, fr\) in column 4",
    ),
    "a language in front": (
        lines(cycle("en de"), many("q"), many("d")),
        r"got 2 different values \(de, en\) in column 1",
    ),
    "MS MARCO's qidpidtriples": (
        lines("1185869 1185868 597651", "0 16 49", "3141 275 88"),
        r"got numbers in column 1|got numbers \(",
    ),
    "qidpidtriples with ids of words": (
        lines(*[[f"{name}{i}" for i in range(40)] for name in ("q", "D", "D1")]),
        "got ids in column 1",
    ),
    "a header, written by pandas with an index": (
        "\tquery\tdocument\n" + lines("0 1 2 3", ASKED, RIGHT),
        "train.tsv:1: column 1 is empty",
    ),
    "labelled pairs with a tab inside": (
        lines(TWICE, BOTH, ONES) + "who\tfirst half\tsecond half\t1\n",
        r"train.tsv:9: expected 3 columns \(query<TAB>document<TAB>label\), got 4",
    ),
    "one pair with two labels": (
        lines(ASKED[:1] * 2, RIGHT[:1] * 2, "1 0"),
        "train.tsv:2: a text has two labels",
    ),
    "a quoted line end": (
        'who\t"first half\nsecond half"\tnobody\n',
        "train.tsv:2: a text must hold no line end, got one between quotes",
    ),
    "quoted line ends everywhere": (
        "".join(f'q {q}\t"{p}\n it is"\tno\n' for q, p in zip(ASKED, RIGHT, strict=True)),
        "train.tsv:2: a text must hold no line end",
    ),
    "one quoted line end": (
        PLAIN + 'who\t"first half\nsecond half"\tnobody\n',
        "train.tsv:6: a text must hold no line end",
    ),
    "one quoted tab": (
        PLAIN + 'who\t"first half\tsecond half"\tnobody\n',
        "train.tsv:5: a text must hold no tab",
    ),
    "a quoted tab": (
        'who\t"first\thalf"\tnobody\n',
        "train.tsv:1: a text must hold no tab, got one between quotes",
    ),
    "three names, four columns": (
        lines(ASKED, RIGHT, WRONG, WRONG[::-1], header="query positive negative"),
        "train.tsv:1: each column must have a name, got 3 names, and most lines have 4",
    ),
    "semicolons": (
        lines(ASKED, RIGHT, between=";"),
        "got one column: .* where semicolons stand between the columns",
    ),
    "commas": (lines(ASKED, RIGHT, between=","), "where commas stand between the columns, write"),
    "bars": (lines(ASKED, RIGHT, between="|"), "where bars stand between the columns, write tabs"),
    "JSON lines in a .tsv": (
        '{"query": "a", "pos": ["b"]}\n',
        "JSON is read from files called .jsonl",
    ),
    "UTF-16": (
        lines(ASKED, RIGHT).encode("utf-16"),
        "train.tsv: the file must hold text as UTF-8, got UTF-16",
    ),
    "a line without a tab": ("only\n", "train.tsv:1: expected query<TAB>positive"),
    "an empty text": ("q\tp\nq\t\tn\n", "train.tsv:2: column 2 is empty"),
    "a header below empty lines": (
        "\n\nquery\ttitle\tbody\nw1\tw2\tw3\n",
        "train.tsv:3: columns must be called",
    ),
    "Latin-1": (
        "café\tau lait\n".encode("latin-1"),
        "train.tsv:1: text must be UTF-8, got byte 0xe9",
    ),
}


def written(folder, content):
    file = folder / "train.tsv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def judged(collection):
    """The grades of all documents, by the texts of queries and documents."""
    lists = collection.judgements("train")
    grades = {}
    for row in lists.query_rows.tolist():
        docs, values = lists.of(row)
        texts = [collection.corpus.texts[doc] for doc in docs]
        grades[collection.queries.texts[row]] = dict(zip(texts, values.tolist(), strict=True))
    return grades


def warnings_in(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", READ)
def test_what_is_plain_is_read_without_a_word(tmp_path, caplog, kind):
    content, expected = READ[kind]
    assert judged(open_collection(written(tmp_path, content))) == expected
    assert not warnings_in(caplog)


@pytest.mark.parametrize("kind", TOLD)
def test_what_is_not_plain_is_said_in_one_line_at_each_opening(tmp_path, caplog, kind):
    content, expected, words = TOLD[kind]
    file = written(tmp_path, content)
    for _ in range(2):
        caplog.clear()
        assert judged(open_collection(file)) == expected
        (message,) = warnings_in(caplog)
        assert re.search(words, message), message


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_file_of_texts_is_refused_in_one_line(tmp_path, kind):
    content, words = REFUSED[kind]
    with refused(words) as error:
        open_collection(written(tmp_path, content))
    assert "train.tsv" in str(error.value)


# kind: (content, what is read, words of a warning), or (content, words of a refusal)
OF_TEXTS_AND_LABELS = {
    "text and label": (
        "so bad\tneg\nvery good\tpos\n",
        {"so bad": "neg", "very good": "pos"},
        None,
    ),
    "numbers of classes": ("so bad\t0\nvery good\t1\n", {"so bad": "0", "very good": "1"}, None),
    "scores": (
        "so bad\t0.25\nvery good\t4.75\n",
        {"so bad": "0.25", "very good": "4.75"},
        "most labels are numbers with a fraction",
    ),
    "label and text": (
        lines("neg pos neg pos", RIGHT),
        "train.tsv:3: a text must have one label, .* a line is text<TAB>label, in this order",
    ),
    "a header": (
        "text\tlabel\nso bad\tneg\n",
        "train.tsv:1: every line must hold texts, got the names",
    ),
    "a German header": ("Text\tBewertung\nso bad\tneg\n", "tsv:1: every line must hold texts"),
    "names in quotes": ('"text"\t"label"\nso bad\tneg\n', "tsv:1: every line must hold texts"),
    "semicolons": ("so bad;neg\n", "got 1: .* where semicolons stand between the columns"),
    "three columns": ("1\tso bad\tneg\n", "expected 2 columns .*, got 3"),
}
OF_DOCUMENTS = {
    "id and text": ("d1\tone text\nd2\tanother\n", {"d1": "one text", "d2": "another"}, None),
    "MS MARCO's documents": (
        "D1\thttps://a.org\ttitle\tbody\nD2\thttps://b.org\ttitle\tbody\n",
        {"D1": "title body", "D2": "title body"},
        None,
    ),
    "a tab inside a text": (
        "d1\tone\nd2\ttwo\nd3\tthree\tfour\n",
        {"d1": "one", "d2": "two", "d3": "three\tfour"},
        "1 texts hold tabs, first that at docs.tsv:3: all that stands behind the id is the text",
    ),
    "the same document twice": (
        "d1\tone\nd1\tone\n",
        {"d1": "one"},
        "1 times a document stands again with the same text",
    ),
    "names": ("docid\tpassage\nd1\tone text\n", {"d1": "one text"}, None),
    "text and id": ("one text\td1\n", "docs.tsv:1: a .tsv must hold id<TAB>text here"),
    "commas": ("d1,one text\n", "got no tab: .* where commas stand between the columns"),
    "an id with two texts": ("d1\tone\nd1\ttwo\n", "docs.tsv:2: document id 'd1' stands twice"),
}


def labels_of(file):
    texts = open_labelled_texts(str(file))
    names = [texts.label_names[number] for number in texts.labels["train"]]
    return dict(zip(texts.tables["train"].texts, names, strict=True))


def texts_of(file):
    table = open_texts(str(file), "document", "--documents")
    return dict(zip(table.ids, table.texts, strict=True))


OTHERS = [("train.tsv", labels_of, kind, row) for kind, row in OF_TEXTS_AND_LABELS.items()]
OTHERS += [("docs.tsv", texts_of, kind, row) for kind, row in OF_DOCUMENTS.items()]


@pytest.mark.parametrize("name, read, kind, row", OTHERS)
def test_labelled_texts_and_documents(tmp_path, caplog, name, read, kind, row):
    (tmp_path / name).write_text(row[0])
    if len(row) == 2:
        with refused(row[1]):
            read(tmp_path / name)
        return
    _, expected, words = row
    assert read(tmp_path / name) == expected
    messages = warnings_in(caplog)
    assert len(messages) == (words is not None)
    assert words is None or re.search(words, messages[0])


def random_texts(rng, n, words):
    """n texts of some words: names, numbers and short words among them."""
    letters = "abcdefghijklmnop"
    texts = []
    for _ in range(n):
        names = rng.choices([*letters, "2019", "B52", "who", "Paris"], k=rng.randint(*words))
        texts.append(" ".join(name + rng.choice(letters) for name in names))
    return texts


def test_of_random_files_none_is_read_as_something_else(tmp_path):
    """100 files of 1 to 60 lines. Those of texts, short ones too, are read so; those with a column
    of labels, ranks or numbers are labelled pairs or refused, whichever column that is.
    """
    rng = random.Random(0)
    file = tmp_path / "train.tsv"
    for number in range(100):
        n = rng.randint(1, 60)
        n_columns = rng.randint(2, 4)
        columns = [random_texts(rng, n, (2, 9)) for _ in range(n_columns)]
        labels = rng.choice(
            [None, "01", "1", "12345", ["relevant", "irrelevant"], ["ja", "nein"], "rank", "float"]
        )
        if labels is None:
            file.write_text(lines(*columns))
            assert layout_of(file) == LineLayout(0, has_labels=False), number
            continue
        if labels == "rank":
            column = [str(rank + 1) for rank in range(n)]
        elif labels == "float":
            column = [f"{rng.uniform(-1, 5):.2f}" for _ in range(n)]
        else:
            column = [rng.choice(labels) for _ in range(n)]
        place = rng.choice([0, *range(2, n_columns + 1)])
        columns.insert(place, column)
        file.write_text(lines(*columns))
        if n_columns == 2 and place == 2 and {*column} <= {"0", "1"}:
            assert layout_of(file) == LineLayout(0, has_labels=True), number
            continue
        with refused(rf"in column {place + 1}; "):
            layout_of(file)
