"""The words of a text, for BM25 and for the comparison of texts."""

import re
import unicodedata
from operator import add

# Characters that are written without spaces between words, or with particles behind them: kana and
# Chinese characters (but for the two punctuation marks among them), Hangul, Thai, Lao, Myanmar,
# Khmer; and emoji.
_UNSPACED = (
    r"\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    r"\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff"
    r"\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf"
    r"\u1000-\u103f\u1050-\u109f\uaa60-\uaa7f\u1780-\u17d3\u17d7\u17dc-\u17dd"
    r"\u2600-\u27bf\U0001f000-\U0001faff"
)


def _class_of_marks() -> str:
    """Unicode's marks, such as the vowels of Devanagari, for a class of a regular expression: they
    belong to the letter before, and \\w has none of them.
    """
    marks = []
    for place in range(0x300, 0x1F000):
        if unicodedata.category(chr(place)).startswith("M"):
            marks.append(chr(place))
    return "".join(marks)


_MARKS = _class_of_marks()
# A run of characters without spaces, or of any other letters and digits.
_RUN = re.compile(
    rf"((?:[{_UNSPACED}][{_MARKS}]*)+)|[^\W{_UNSPACED}]+(?:[{_MARKS}]+[^\W{_UNSPACED}]*)*"
)
_CHARACTER = re.compile(rf".[{_MARKS}]*")
# All ASCII characters that are no part of a word, as spaces.
_ASCII_SPACES = {place: " " for place in range(128) if not re.match(r"\w", chr(place))}

# What no reader sees: Unicode's Default_Ignorable_Code_Point (soft hyphens, zero-width spaces, marks
# of direction, variation selectors, the byte order mark), and the marks of annotations.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


def folded(text: str) -> str:
    """A text as its readers see it, whatever its code: after NFKC, without case and without
    characters that show nothing. An underscore parts words.

    >>> folded("Ｗord_ＴＷＯ, in\u200bvi\u00adsible")
    'word two, invisible'
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _UNSEEN.sub("", text))
    return text.casefold().replace("_", " ")


def terms(text: str) -> list[str]:
    """The words of a text as its readers see it (:func:`folded`). Of Chinese, Japanese, Korean, Thai,
    Lao, Burmese and Khmer each character (with its marks), and each two that touch.

    >>> terms("The ﬁle, ２"), terms("서울은")
    (['the', 'file', '2'], ['서', '울', '은', '서울', '울은'])
    """
    text = folded(text)
    if text.isascii():  # the same, six times as fast
        return text.translate(_ASCII_SPACES).split()
    words = []
    pairs: list[str] = []
    for run in _RUN.finditer(text):
        if run[1] is None:
            words.append(run[0])
            continue
        characters = _CHARACTER.findall(run[1])
        words += characters
        pairs += map(add, characters, characters[1:])
    return words + pairs
