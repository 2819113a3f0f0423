"""What the columns of a file are called, in several languages, and what such a column holds."""

import re
from typing import Literal

Kind = Literal["text", "positive", "negative", "label", "other"]

# What columns are called, in small letters, by the words of their names.
KIND_OF_NAME: dict[str, Kind] = {}
NAMES: dict[Kind, str] = {
    "other": """
        id idx index qid pid did docid rank language lang locale source split domain url
        nummer sprache quelle rang langue rang idioma fuente 编号 语言 来源
        """,
    "label": """
        label class category intent score relevance relevant grade gold rating stars similarity judgement
        judgment target duplicate entailment bewertung etikett klasse wertung relevanz étiquette etiquette
        classe note pertinence etiqueta clase puntuación relevancia etichetta punteggio 标签 分数 相关性 类别
        ラベル 레이블 метка оценка
        """,
    "negative": """
        negative neg negativ negatif négatif negativo falsch faux falso incorrect irrelevant 负例 負例
        """,
    "positive": "positive pos positiv positif positivo richtig correct 正例",
    "text": """
        query question anchor document doc passage text sentence title answer response premise hypothesis
        context paragraph content body corpus keyword search product prompt frage anfrage suchanfrage dokument
        antwort satz titel réponse reponse requête requete phrase texte titre pregunta consulta documento
        respuesta texto frase título domanda risposta testo vraag antwoord zoekvraag pergunta resposta
        问题 問題 查询 答案 回答 文档 文本 段落 句子 質問 文書 질문 답변 문서 вопрос запрос ответ документ текст
        """,
}
for _kind, _names in NAMES.items():
    KIND_OF_NAME |= dict.fromkeys(_names.split(), _kind)
SMALL_WORDS = {"the", "hard", "of"}
PARTS_OF_NAME = re.compile(r"[^\W\d_]+")


def kind_of_name(name: str) -> Kind | None:
    """What a column of this name holds; None for a word that names no column.

    >>> kind_of_name("query"), kind_of_name("hard_negative_2"), kind_of_name("is_relevant")
    ('text', 'negative', 'label')
    """
    parts = PARTS_OF_NAME.findall(name.lower())
    if re.fullmatch(r"is_[a-z]+", name.strip().lower()):  # is_relevant, is_correct, is_duplicate
        return "label"
    kinds = {KIND_OF_NAME.get(part) for part in parts if part not in SMALL_WORDS}
    if None in kinds or not kinds:
        return None
    for kind in NAMES:
        if kind in kinds:
            return kind
    return None
