"""What the name of a column says, in several languages: the one table that all readers of files ask."""

import re
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

Part = Literal["other", "class", "grade", "score", "negative", "positive", "query", "text"]
Id = Literal["id", "query_id", "document_id"]
Text = Literal["query", "text"]  # beside each other, the others say which text is the document
Label = Literal["grade", "score"]
Side = Literal["positive", "negative", "positive_scores", "negative_scores"]
OfPairs = Literal["positive_id", "negative_id", "distance"]
Role = Id | Text | Label | Side | OfPairs | Literal["class", "document", "label"]
IDS = get_args(Id)
TEXTS = get_args(Text)
LABELS = get_args(Label)
SIDES = get_args(Side)

# What the words of a name say.
WORDS: dict[Part, str] = {
    "other": """
        id idx index qid pid did docid rank language lang locale source split domain url
        nummer sprache quelle rang langue rang idioma fuente 编号 语言 来源
        """,
    "class": "class category intent klasse classe clase 类别",
    "grade": """
        label relevance relevant grade gold rating stars judgement judgment target duplicate entailment
        bewertung etikett wertung relevanz étiquette etiquette note pertinence etiqueta relevancia
        etichetta 标签 相关性 ラベル 레이블 метка оценка
        """,
    "score": "score similarity puntuación punteggio 分数",
    "negative": """
        negative neg negativ negatif négatif negativo falsch faux falso incorrect irrelevant 负例 負例
        """,
    "positive": "positive pos positiv positif positivo richtig correct 正例",
    "query": """
        query anchor anfrage consulta domanda frage keyword pergunta pregunta question requete requête
        search suchanfrage vraag zoekvraag вопрос запрос 查询 質問 问题 問題 질문
        """,
    "text": """
        document doc passage text sentence title answer response premise hypothesis
        context paragraph content body corpus product prompt dokument
        antwort satz titel réponse reponse phrase texte titre documento
        respuesta texto frase título risposta testo antwoord resposta
        答案 回答 文档 文本 段落 句子 文書 답변 문서 ответ документ текст
        """,
}
# Words that name no column of lines with tabs, where a first line may be a text itself.
MORE_TEXTS = {"ctx", "sent", "abstract", "article", "summary", "comment", "code"}
SMALL_WORDS = {"the", "hard", "of"}

# Whole names, as in_small_letters has them. Of several columns of pairs the one that comes first
# here counts.
NAMES: dict[Role, str] = {
    "id": "_id id",
    "query_id": "query_id qid queryid question_id questionid q_id topic_id topicid",
    # PyTerrier has a docid of its own beside docno
    "document_id": "doc_id docno pid docid corpus_id document_id passage_id corpus_ids psg_id p_id",
    "score": "score similarity",
    "grade": "relevance grade label is_relevant relevant rating gold judgement judgment rel gain",
    "distance": "distance",
    "positive": "pos positive",
    "negative": "neg negative",
    "positive_id": "pos_id positive_id",
    "negative_id": "neg_id negative_id",
    "positive_scores": "pos_scores pos_score",
    "negative_scores": "neg_scores neg_score",
    "query": WORDS["query"],
}
# Beside what is called as a grade is, keys of objects that say whether a text is relevant.
JUDGED = {"has_answer", "hasanswer"}
# Of several ids in an object the first of these counts, before other names.
IDS_IN_OBJECTS = ["docid", "doc_id", "_id", "id", "passage_id", "psg_id", "pid"]
# Words of texts that may have a title beside them; and those of a document, the surest first. Where
# several columns of texts are left, the document is the one whose word comes first.
BODY_WORDS = (
    *("passage", "ctx", "context", "document", "doc", "paragraph", "text", "content", "body"),
    *("article", "abstract"),
)
DOCUMENT_WORDS = (*BODY_WORDS[:-2], "answer", "response", "sentence", "hypothesis")
# What a text is often called beside its id, for errors; "text" comes before the others.
TEXTS_BESIDE_IDS = (
    *("text", "body", "passage", "document", "doc", "query", "question", "contents"),
    *("content", "abstract"),
)

WHOLE_NAMES = {name: place for place, name in enumerate(" ".join(NAMES.values()).split())}
ROLE_OF_NAME = {name: role for role, names in NAMES.items() for name in names.split()}
PART_OF_WORD = {word: part for part, words in WORDS.items() for word in words.split()}
IS_SO = re.compile(r"is_[a-z]+")  # is_relevant, is_correct, is_duplicate
INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
PARTS_OF_NAME = re.compile(r"[^\W\d_]+")


@lru_cache(1024)
def role_of(name: str) -> Role | None:
    """What a column of this name holds; None for a name that says nothing.

    >>> role_of("QuestionID"), role_of("hard_negative_ctxs"), role_of("pos_scores"), role_of("answers")
    ('query_id', 'negative', 'positive_scores', 'text')
    """
    whole = in_small_letters(name)
    if whole in ROLE_OF_NAME:
        return ROLE_OF_NAME[whole]
    if IS_SO.fullmatch(whole):
        return "grade"
    parts = {part_of(word) for word in words_of(name)}
    # One word of labels is enough, as in esci_label: a label must not be lost.
    if "score" in parts or "grade" in parts:
        if "positive" in parts:
            return "positive_scores"
        if "negative" in parts:
            return "negative_scores"
        return "score" if "score" in parts else "grade"
    if "class" in parts:
        return "class"
    if None in parts or "other" in parts:
        return None
    for part in ("negative", "positive", "query", "text"):
        if part in parts:
            return part
    return None


def is_certain(name: str) -> bool:
    """Whether a name has known words alone, so that a first line of such names holds no texts."""
    if IS_SO.fullmatch(name.strip().lower()):
        return True
    words = [word for word in PARTS_OF_NAME.findall(name.lower()) if word not in SMALL_WORDS]
    return bool(words) and all(word in PART_OF_WORD for word in words)


@lru_cache(1024)
def pair_columns(names: tuple[str, ...]) -> dict[Role, list[str]]:
    """The columns of each role in rows of pairs of ids, of some names. Those of positives and of
    negatives are all read, the hard ones first; of another role the first that has a value. Labels
    and scores have whole names here: target_lang is another thing. Titles belong to texts.

    >>> pair_columns(("qid", "similarity", "negative_2", "hard_negative_1"))
    {'query_id': ['qid'], 'score': ['similarity'], 'negative': ['hard_negative_1', 'negative_2']}
    """
    columns: dict[Role, list[str]] = {}
    for name in names:
        role = role_of(name)
        is_side = role in SIDES and not is_title(name)
        if role is not None and (is_side or in_small_letters(name) in ROLE_OF_NAME):
            columns.setdefault(role, []).append(name)
    topics = [name for name in names if in_small_letters(name) == "topic"]
    if topics and not columns.keys() & {"query_id", "query"}:
        columns["query_id"] = topics  # beside texts it is what they are about
    for role, found in columns.items():
        if role not in SIDES:  # these stay as the file has them, as their scores do
            found.sort(key=lambda name: WHOLE_NAMES.get(in_small_letters(name), len(WHOLE_NAMES)))
        found.sort(key=lambda name: "hard" not in name.lower())
    return columns


class TextColumns(NamedTuple):
    """The columns of texts with ids."""

    id: str
    text: str
    title: str | None
    instruction: str | None  # of a query


@lru_cache(1024)
def text_columns(names: tuple[str, ...], kind: str = "document") -> TextColumns | None:
    """The columns of texts with ids, of those of some names; None where these are not an id and one
    text. Beside queries, as those of a FAQ, their answers may stand.

    >>> text_columns(("docid", "title", "contents"))
    TextColumns(id='docid', text='contents', title='title', instruction=None)
    """
    ids = [name for name in names if name == "_id"] or [name for name in names if name == "id"]
    ids = ids or [name for name in names if role_of(name) in IDS]
    texts = [name for name in names if name == "text"]
    texts = texts or [name for name in names if role_of(name) in TEXTS and not is_title(name)]
    if kind == "query" and len(texts) > 1:
        texts = [name for name in texts if role_of(name) == "query"]
    if not ids or names.count(ids[0]) > 1 or len(texts) != 1:
        return None
    titles = [name for name in names if role_of(name) == "text" and is_title(name)]
    title = "title" if "title" in names else None
    if title is None and len(titles) == 1:
        title = titles[0]
    instruction = "instruction" if "instruction" in names else None
    return TextColumns(ids[0], texts[0], title, instruction)


def in_small_letters(name: str) -> str:
    """``hardNegatives`` and ``Hard-Negatives`` are ``hard_negatives``."""
    return re.sub(r"(?<=[^\W\d_A-Z])(?=[A-Z])|[-\s]+(?=.)", "_", name.strip()).lower()


def is_index(name: str) -> bool:
    """Whether pandas and Arrow call the numbers of rows so."""
    return INDEX.fullmatch(name.strip()) is not None


def is_title(name: str) -> bool:
    """Whether a column holds the titles of texts."""
    return "title" in words_of(name)


def words_of(name: str) -> list[str]:
    """The words of a name, each in its singular: ``passages`` is ``passage``."""
    words = []
    for word in PARTS_OF_NAME.findall(in_small_letters(name)):
        if part_of(word) is None and part_of(word.removesuffix("s")) is not None:
            word = word.removesuffix("s")
        if word not in SMALL_WORDS and len(word) > 1:
            words.append(word)
    return words


def part_of(word: str) -> Part | None:
    """What a word of a name says; None for one that is not known."""
    return "text" if word in MORE_TEXTS else PART_OF_WORD.get(word)
