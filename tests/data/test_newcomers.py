"""Files that people have at hand when they come: each is read as what it is, with a line where that is
not plain, or refused in one line. None is read as something else.

A row of the tables below has the kind of the file, what stands in it, and what comes: judgements
(texts or ids), the words of a refusal, or both judgements and the words of a warning.
"""

import bz2
import gzip
import logging
import random
import re

import pytest

from ltr.data.collection import open_collection
from ltr.data.labelled_texts import open_labelled_texts
from ltr.data.tab_separated import LineLayout, layout_of
from ltr.data.text_files import open_texts
from ltr.errors import InputError

# Longer than a few words, as passages are; the first eight words of each query differ.
ASKED = ["capital of France", "capital of Spain", "river of Paris", "who wrote Faust"]
RIGHT = ["Paris is the capital", "Madrid is the capital", "the Seine flows there", "it was Goethe"]
WRONG = [
    "Lyon lies on the Rhone",
    "Seville is a warm town",
    "the Rhine is longer",
    "not Schiller he",
]


def lines(*columns, ends="\n", between="\t", header=None):
    rows = list(zip(*columns, strict=True))
    if header:
        rows = [header.split("\t"), *rows]
    return "".join(between.join(row) + ends for row in rows)


def many(column, n=40):
    """A column of n texts, each of its own: three words and a number in letters."""
    return [f"{column} text {'abcdefgh'[i % 8]} {'ijklmnop'[i // 8]}" for i in range(n)]


def cycle(values, n=40):
    return [values[i % len(values)] for i in range(n)]


PAIRS = dict(zip(ASKED, [{text: 1} for text in RIGHT], strict=True))
TRIPLES = {q: {p: 1, n: 0} for q, p, n in zip(ASKED, RIGHT, WRONG, strict=True)}
TWICE = [*ASKED, *ASKED]
BOTH = [*RIGHT, *WRONG]
ONES = ["1"] * 4 + ["0"] * 4
LABELS = "query<TAB>document<TAB>label as the first line"
AS_TEXTS = "where these are texts, write query<TAB>positive<TAB>negative as the first line"
NAMES = "columns must be called"

READ = {
    # kind: (content of train.tsv, judgements)
    "pairs": (lines(ASKED, RIGHT), PAIRS),
    "triples": (lines(ASKED, RIGHT, WRONG), TRIPLES),
    "triples with Windows line ends and a byte order mark": (
        "\ufeff" + lines(ASKED, RIGHT, WRONG, ends="\r\n"),
        TRIPLES,
    ),
    "triples with U+2028 inside": (
        lines(ASKED, [f"{p}\u2028" for p in RIGHT], WRONG),
        {q: {f"{p}\u2028": 1, n: 0} for q, p, n in zip(ASKED, RIGHT, WRONG, strict=True)},
    ),
    "pairs, a header": (lines(ASKED, RIGHT, header="Question\tAnswer"), PAIRS),
    "triples, sentence-transformers' header": (
        lines(ASKED, RIGHT, WRONG, header="anchor\tpositive\tnegative"),
        TRIPLES,
    ),
    "triples, a German header": (
        lines(ASKED, RIGHT, WRONG, header="Frage\tAntwort\tFalsch"),
        TRIPLES,
    ),
    "labelled pairs of WikiQA, its header": (
        lines(TWICE, BOTH, ONES, header="Question\tSentence\tLabel"),
        TRIPLES,
    ),
    "labelled pairs, is_relevant": (
        lines(TWICE, BOTH, ONES, header="Question\tSentence\tis_relevant"),
        TRIPLES,
    ),
    "labelled pairs, a French header": (
        lines(TWICE, BOTH, ONES, header="Requête\tDocument\tÉtiquette"),
        TRIPLES,
    ),
    "labelled pairs, a Chinese header": (
        lines(TWICE, BOTH, ONES, header="查询\t文档\t标签"),
        TRIPLES,
    ),
    "grades from 0 to 3, a header": (
        lines(ASKED, RIGHT, "0123", header="query\tdocument\tgrade"),
        {q: {p: g} for g, (q, p) in enumerate(zip(ASKED, RIGHT, strict=True))},
    ),
    "labels -1 and 1, a header": (
        lines(TWICE, BOTH, ["1"] * 4 + ["-1"] * 4, header="query\tdoc\tlabel"),
        TRIPLES,
    ),
    "numbers as answers": (
        lines(["2+2", "3+3"], "46", "57"),
        {"2+2": {"4": 1, "5": 0}, "3+3": {"6": 1, "7": 0}},
    ),
    "years as answers": (
        lines(ASKED, ["1969", "1789", "1492", "1808"]),
        dict(zip(ASKED, [{"1969": 1}, {"1789": 1}, {"1492": 1}, {"1808": 1}], strict=True)),
    ),
    "labels' words as texts, a header": (
        lines(ASKED, RIGHT, ["no"] * 4, header="query\tpositive\tnegative"),
        {q: {p: 1, "no": 0} for q, p in zip(ASKED, RIGHT, strict=True)},
    ),
    "yes and no as answers": (
        lines(ASKED, ["yes", "no", "yes", "no"], ["no", "yes", "no", "yes"]),
        {q: {"yes": i % 2 == 0, "no": i % 2 == 1} for i, q in enumerate(ASKED)},
    ),
    "short words as texts": (
        "how\tmany\tfew\nwho\tme\tyou\n",
        {"how": {"many": 1, "few": 0}, "who": {"me": 1, "you": 0}},
    ),
    "all negatives equal": (
        lines(ASKED, RIGHT, ["Nobody knows it at all"] * 4),
        {q: {p: 1, "Nobody knows it at all": 0} for q, p in zip(ASKED, RIGHT, strict=True)},
    ),
    "quotes over two sentences": (
        lines([*ASKED, 'who said "no"'], [*RIGHT, '"I did'], [*WRONG, 'not me" he said']),
        TRIPLES | {'who said "no"': {'"I did': 1, 'not me" he said': 0}},
    ),
    "is_correct": (
        lines(TWICE, BOTH, ONES, header="question\tanswer\tis_correct"),
        TRIPLES,
    ),
    "questions with is": (
        "is it hot\tit is\nis it cold\tthat is so\nis it dry\tno it is not\n",
        {
            "is it hot": {"it is": 1},
            "is it cold": {"that is so": 1},
            "is it dry": {"no it is not": 1},
        },
    ),
    "Chinese texts, a short one first": (
        lines(
            ["天气", "法国的首都", "西班牙的首都", "英国的首都"], ["晴", "巴黎吧", "马德里", "伦敦"]
        ),
        {
            "天气": {"晴": 1},
            "法国的首都": {"巴黎吧": 1},
            "西班牙的首都": {"马德里": 1},
            "英国的首都": {"伦敦": 1},
        },
    ),
    "Chinese texts": (
        lines(["法国的首都", "西班牙的首都"], ["巴黎", "马德里"], ["里昂", "塞维利亚"]),
        {"法国的首都": {"巴黎": 1, "里昂": 0}, "西班牙的首都": {"马德里": 1, "塞维利亚": 0}},
    ),
}

TOLD = {
    # kind: (content, judgements, words of the one warning)
    "labelled pairs, 1 and 0": (
        lines(TWICE, BOTH, ONES),
        TRIPLES,
        "column 3 holds 0 and 1 alone: each line is read as a query, a document and its label",
    ),
    "labelled pairs, 1.0 and 0.0": (
        lines(TWICE, BOTH, [f"{x}.0" for x in ONES]),
        TRIPLES,
        "column 3 holds 0 and 1 alone: each line is read as a query, a document and its label",
    ),
    "labelled pairs, all 1": (
        lines(ASKED, RIGHT, ["1"] * 4),
        PAIRS,
        "column 3 holds 0 and 1 alone: each line is read as a query, a document and its label",
    ),
    "triples, and a labelled pair behind them": (
        lines(ASKED, RIGHT, WRONG) + "who\tit was nobody\t1\n",
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
        lines(ASKED, RIGHT, WRONG) + "who\tfirst half\tsecond half\tnobody\n",
        TRIPLES | {"who": {"first half": 1, "second half": 0, "nobody": 0}},
        "train.tsv:5: 1 of 5 lines have another number of columns than most, which have 3, as this one with 4",
    ),
    "a line end inside a passage": (
        lines(ASKED, RIGHT, WRONG) + "who\tfirst half\nsecond half\tnobody\n",
        TRIPLES | {"who": {"first half": 1}, "second half": {"nobody": 1}},
        "train.tsv:5: 2 of 6 lines have another number of columns than most",
    ),
    "code with tabs": (
        "sort a list\tdef f(x):\treturn sorted(x)\tpass\nread a file\topen(name)\tclose(name)\nadd\ta\t+\tb\t;\n",
        {
            "sort a list": {"def f(x):": 1, "return sorted(x)": 0, "pass": 0},
            "read a file": {"open(name)": 1, "close(name)": 0},
            "add": {"a": 1, "+": 0, "b": 0, ";": 0},
        },
        "2 of 3 lines have another number of columns than most",
    ),
    "quotes of a spreadsheet": (
        lines(ASKED[:1], ['"the ""City of Light"""']),
        {ASKED[0]: {'"the ""City of Light"""': 1}},
        "train.tsv:1: 'capital of France.*: 1 lines hold quotes as spreadsheets write",
    ),
    "few lines, a language": (
        lines(ASKED, RIGHT, ["en"] * 4),
        {q: {p: 1, "en": 0} for q, p in zip(ASKED, RIGHT, strict=True)},
        "every column must hold texts, .* got single words \\(en\\) in column 3; .* read as texts",
    ),
    "many intents read as pairs": (
        lines(many("asked", 60), [f"card_{'abcdefghijkl'[i % 12]}" for i in range(60)]),
        {f"{q}": {f"card_{'abcdefghijkl'[i % 12]}": 1} for i, q in enumerate(many("asked", 60))},
        "got 12 different values \\(card_a, card_b, card_c, …\\) in column 2",
    ),
    "few lines, labels that nobody knows": (
        lines(ASKED, RIGHT, ["passt", "quer", "passt", "quer"]),
        {q: {p: 1, w: 0} for q, p, w in zip(ASKED, RIGHT, ["passt", "quer"] * 2, strict=True)},
        "got single words \\(passt, quer\\) in column 3",
    ),
    "few lines, ids of documents": (
        lines(ASKED, RIGHT, ["D12", "D7", "D31", "D4"]),
        {q: {p: 1, d: 0} for q, p, d in zip(ASKED, RIGHT, ["D12", "D7", "D31", "D4"], strict=True)},
        "got ids in column 3",
    ),
    "few lines, sentiment read as pairs": (
        lines(BOTH, ["positive", "negative"] * 4),
        {q: {["positive", "negative"][i % 2]: 1} for i, q in enumerate(BOTH)},
        "got 2 different values \\(negative, positive\\) in column 2",
    ),
}

REFUSED = {
    # kind: (content, words of the refusal)
    "STS, with fractions": (
        lines(ASKED, RIGHT, ["4.75", "0.2", "5.0", "3.1"]),
        f"got numbers .*{LABELS}.*{AS_TEXTS}",
    ),
    "STS, its header": (
        lines(ASKED, RIGHT, ["4.75", "0.2", "5.0", "3.1"], header="sentence1\tsentence2\tscore"),
        "train.tsv:2: a grade must be a whole number .*'4.75'",
    ),
    "grades from 0 to 3, no header": (
        lines(ASKED, RIGHT, "0123"),
        f"got numbers \\(0, 1, 2, …\\) in column 3; .*{LABELS}.*{AS_TEXTS}",
    ),
    "stars": (lines(many("q"), many("d"), cycle("12345")), f"in column 3; .*{LABELS}"),
    "ranks": (lines(ASKED, RIGHT, ["1", "2", "3", "4"]), "got numbers .* in column 3"),
    "scores of a model": (
        lines(ASKED, RIGHT, ["-1.5e-3", "0.99", "12.1", "0.5"]),
        "got numbers in column 3|got numbers \\(",
    ),
    "decimal commas": (
        lines(ASKED, RIGHT, ["0,5", "0,99", "1,0", "0,1"]),
        "got numbers .* in column 3",
    ),
    "relevant and irrelevant": (
        lines(TWICE, BOTH, ["relevant"] * 4 + ["irrelevant"] * 4),
        f"words that judge .*{LABELS}.*{AS_TEXTS}",
    ),
    "one labelled pair": (
        "capital of France\tParis is it\trelevant\n",
        "words that judge \\(relevant\\) in column 3",
    ),
    "words of NLI": (
        lines(ASKED, RIGHT, ["entailment", "neutral", "contradiction", "neutral"]),
        "words that judge",
    ),
    "words of NLI, its header": (
        lines(
            ASKED,
            RIGHT,
            ["entailment", "neutral", "contradiction", "neutral"],
            header="premise\thypothesis\tlabel",
        ),
        "train.tsv:2: a grade must be a whole number .*'entailment'",
    ),
    "German labels": (
        lines(ASKED, RIGHT, ["ja", "nein", "nein", "ja"]),
        "words that judge \\(ja, nein\\)",
    ),
    "Chinese labels": (
        lines(["法国的首都", "西班牙的首都"], ["巴黎是首都", "里昂"], ["相关", "不相关"]),
        "words that judge",
    ),
    "True and False, as pandas writes them": (
        lines(TWICE, BOTH, ["True"] * 4 + ["False"] * 4),
        "words that judge \\(False, True\\)",
    ),
    "labels that nobody knows": (
        lines(many("q"), many("d"), cycle(["passt gut", "geht so"])),
        "got 2 different values",
    ),
    "a label in front": (lines(ONES, TWICE, BOTH), "got numbers \\(0, 1\\) in column 1"),
    "a label in the middle": (lines(TWICE, ONES, BOTH), "got numbers \\(0, 1\\) in column 2"),
    "a column of languages": (
        lines(many("q"), many("d"), many("n"), cycle(["en", "de", "fr"])),
        "single words \\(de, en, fr\\) in column 4",
    ),
    "a language in front": (
        lines(cycle(["en", "de"]), many("q"), many("d")),
        "got 2 different values \\(de, en\\) in column 1",
    ),
    "a column of sources": (
        lines(many("q"), many("d"), cycle(["quora", "wiki"])),
        "single words .* in column 3",
    ),
    "a column of addresses": (
        lines(many("q"), many("d"), [f"https://a.org/{i}" for i in range(40)]),
        "in column 3",
    ),
    "MS MARCO's qidpidtriples": (
        lines(["1185869", "1185868", "597651"], ["0", "16", "49"], ["3141", "275", "88"]),
        "got numbers in column 1|got numbers \\(",
    ),
    "qidpidtriples with ids of words": (
        lines(
            [f"q{i}" for i in range(40)],
            [f"D{i}" for i in range(40)],
            [f"D{i}" for i in range(9, 49)],
        ),
        "got ids in column 1",
    ),
    "MS MARCO's collection": (lines("0123", RIGHT), "got numbers .* in column 1"),
    "MS MARCO's top1000": (lines("1234", "5678", ASKED, RIGHT), "got numbers .* in column 1"),
    "MS MARCO's top1000, its header": (
        lines("1234", "5678", ASKED, RIGHT, header="qid\tpid\tquery\tpassage"),
        f"train.tsv:1: {NAMES}",
    ),
    "judgements as qrels": (
        lines("1234", ["0"] * 4, "5678", ["1"] * 4),
        "got numbers .* in column 1",
    ),
    "Quora's six columns": (
        lines(
            "1234",
            "1357",
            "2468",
            ASKED,
            RIGHT,
            "0101",
            header="id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        ),
        f"train.tsv:1: {NAMES}",
    ),
    "Quora's six columns, no header": (
        lines("1234", "1357", "2468", ASKED, RIGHT, "0101"),
        "got numbers .* in column 1",
    ),
    "question, context, answer": (
        lines(ASKED, RIGHT, WRONG, header="question\tcontext\tanswer"),
        f"train.tsv:1: {NAMES}",
    ),
    "negatives before positives": (
        lines(ASKED, WRONG, RIGHT, header="query\tnegative\tpositive"),
        f"train.tsv:1: {NAMES}",
    ),
    "a header in a language nobody knows": (
        lines(ASKED, RIGHT, WRONG, header="kysymys\tvastaus\tväärin"),
        f"train.tsv:1: {NAMES}",
    ),
    "labels under such a header": (
        lines(TWICE, BOTH, ONES, header="kysymys\tasiakirja\tarvio"),
        f"train.tsv:1: {NAMES}",
    ),
    "a header, written by pandas with an index": (
        lines("0123", ASKED, RIGHT, header="\tquery\tdocument"),
        "train.tsv:1: column 1 is empty",
    ),
    "labelled pairs with a tab inside": (
        lines(TWICE, BOTH, ONES) + "who\tfirst half\tsecond half\t1\n",
        "train.tsv:9: expected 3 columns \\(query<TAB>document<TAB>label\\), got 4",
    ),
    "one pair with two labels": (
        lines(ASKED[:1] * 2, RIGHT[:1] * 2, "10"),
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
        lines(ASKED, RIGHT, WRONG) + 'who\t"first half\nsecond half"\tnobody\n',
        "train.tsv:6: a text must hold no line end",
    ),
    "one quoted tab": (
        lines(ASKED, RIGHT, WRONG) + 'who\t"first half\tsecond half"\tnobody\n',
        "train.tsv:5: a text must hold no tab",
    ),
    "three names, four columns": (
        lines(ASKED, RIGHT, WRONG, WRONG[::-1], header="query\tpositive\tnegative"),
        "train.tsv:1: each column must have a name, got 3 names, and most lines have 4",
    ),
    "a quoted tab": (
        'who\t"first\thalf"\tnobody\n',
        "train.tsv:1: a text must hold no tab, got one between quotes",
    ),
    "semicolons": (
        lines(ASKED, RIGHT, between=";"),
        "got one column: .* where semicolons stand between the columns",
    ),
    "commas": (
        lines(ASKED, RIGHT, between=","),
        "where commas stand between the columns, write tabs",
    ),
    "bars": (lines(ASKED, RIGHT, between="|"), "where bars stand between the columns, write tabs"),
    "JSON lines in a .tsv": ('{"query": "a", "pos": ["b"]}\n', "JSON is read from corpus.jsonl"),
    "UTF-16": (
        lines(ASKED, RIGHT).encode("utf-16"),
        "train.tsv: the file must hold text as UTF-8, got UTF-16",
    ),
    "gzip under another name": (
        gzip.compress(lines(ASKED, RIGHT).encode()),
        "got gzip; give its name the end .gz",
    ),
    "bzip2 under another name": (
        bz2.compress(lines(ASKED, RIGHT).encode()),
        "got bzip2; unpack it",
    ),
    "an .xlsx under another name": (b"PK\x03\x04\x14\0\6\0", "got ZIP, or a spreadsheet"),
    "Parquet under another name": (b"PAR1\x15\x04\x15\x06", "got Parquet"),
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
    with pytest.raises(InputError, match=words) as error:
        open_collection(written(tmp_path, content))
    assert "\n" not in str(error.value) and "train.tsv" in str(error.value)


OF_TEXTS_AND_LABELS = {
    # kind: (content of train.tsv, labels by text or words of the refusal, words of the warning)
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
        lines(["neg", "pos", "neg", "pos"], RIGHT),
        "train.tsv:3: a text must have one label, .* a line is text<TAB>label, in this order",
        None,
    ),
    "a header": (
        "text\tlabel\nso bad\tneg\n",
        "train.tsv:1: every line must hold texts, got the names",
        None,
    ),
    "a German header": (
        "Text\tBewertung\nso bad\tneg\n",
        "train.tsv:1: every line must hold texts",
        None,
    ),
    "semicolons": ("so bad;neg\n", "got 1: .* where semicolons stand between the columns", None),
    "three columns": ("1\tso bad\tneg\n", "expected 2 columns .*, got 3", None),
}

OF_DOCUMENTS = {
    # kind: (content of docs.tsv, texts by id or words of the refusal, words of the warning)
    "id and text": ("d1\tone text\nd2\tanother\n", {"d1": "one text", "d2": "another"}, None),
    "MS MARCO's documents": (
        "D1\thttps://a.org\ttitle\tbody\nD2\thttps://b.org\ttitle\tbody\n",
        {"D1": "https://a.org\ttitle\tbody", "D2": "https://b.org\ttitle\tbody"},
        "2 of 2 lines have 4 columns: all that stands behind the id is the text",
    ),
    "a tab inside a text": (
        "d1\tone\nd2\ttwo\nd3\tthree\tfour\n",
        {"d1": "one", "d2": "two", "d3": "three\tfour"},
        "docs.tsv:3: 1 of 3 lines have more than 2 columns",
    ),
    "a header": ("docid\tpassage\nd1\tone text\n", "docs.tsv:1: every line must hold texts", None),
    "text and id": ("one text\td1\n", "docs.tsv:1: a .tsv must hold id<TAB>text here", None),
    "commas": ("d1,one text\n", "got no tab: .* where commas stand between the columns", None),
    "the same document twice": (
        "d1\tone\nd1\tone\n",
        {"d1": "one"},
        "1 times a document stands again with the same text",
    ),
    "an id with two texts": (
        "d1\tone\nd1\ttwo\n",
        "docs.tsv:2: document id 'd1' stands twice",
        None,
    ),
}


def labels_of(file):
    texts = open_labelled_texts(str(file))
    names = [texts.label_names[number] for number in texts.labels["train"]]
    return dict(zip(texts.tables["train"].texts, names, strict=True))


def texts_of(file):
    table = open_texts(str(file), "document", "--documents")
    return dict(zip(table.ids, table.texts, strict=True))


@pytest.mark.parametrize(
    ("name", "read", "row"),
    [
        *[
            pytest.param("train.tsv", labels_of, row, id=f"{k} labels")
            for k, row in OF_TEXTS_AND_LABELS.items()
        ],
        *[
            pytest.param("docs.tsv", texts_of, row, id=f"{k} documents")
            for k, row in OF_DOCUMENTS.items()
        ],
    ],
)
def test_labelled_texts_and_documents(tmp_path, caplog, name, read, row):
    content, expected, words = row
    (tmp_path / name).write_text(content)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected) as error:
            read(tmp_path / name)
        assert "\n" not in str(error.value)
        return
    assert read(tmp_path / name) == expected
    messages = warnings_in(caplog)
    assert len(messages) == (words is not None)
    assert words is None or re.search(words, messages[0])


def test_49_kinds_and_more():
    tables = (READ, TOLD, REFUSED, OF_TEXTS_AND_LABELS, OF_DOCUMENTS)
    assert sum(map(len, tables)) >= 49


def random_texts(rng, n, words):
    """n texts of some words: names, numbers and short words among them."""
    letters = "abcdefghijklmnop"
    texts = []
    for _ in range(n):
        length = rng.randint(*words)
        texts.append(
            " ".join(
                rng.choice([*letters, "2019", "B52", "who", "Paris"]) + rng.choice(letters)
                for _ in range(length)
            )
        )
    return texts


def test_of_random_files_none_is_read_as_something_else(tmp_path):
    """100 files of 1 to 60 lines. Those of texts, short ones too, are read so; those with a column of
    labels, ranks or numbers are labelled pairs or refused, whichever column that is.
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
        with pytest.raises(InputError, match=rf"in column {place + 1}; "):
            layout_of(file)
