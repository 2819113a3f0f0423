"""What jsonargparse and Lightning say of arguments that don't fit, in words for the user."""

import re

LONGEST = 400  # letters of what the parser says
# A pattern in what the parser says, and what is said instead; applied in this order. refused.py looks
# for some of what is said instead: "there is no", "must be str".
REWORDED = [
    (r"Does not validate against any of the Union subtypes Subtypes: \[.*?\] Errors: - ", ""),
    (r" - Expected a <class '\w+'>(?= - Expected a )", ""),
    (
        r" - Expected a <class 'NoneType'> Given value type: <class '\w+'> Given value: (.*)",
        r", got \1",
    ),
    (r" - Expected a <class .*| Given value type:.*| - Not a valid subclass of .*", ""),
    (r"\. Got value: (.*)", r", got \1"),
    (r", got NestedArg\(.*", ""),
    (r"- Expected a path but \S+ either not accessible or invalid - ", ""),
    (r", got \{'class_path': .*", ""),
    (r'^Parser key "([^"]+)": ', r"\1: "),
    (r'^Parser key "([^"]+)" element \d+: ', r"\1: "),
    (
        r"Import path (\S+) does not correspond to a subclass of (\w+)",
        r"\1 is no \2; name a class that derives from it",
    ),
    (r"Expected a dot import path string: (\w+)", r"there is no \1"),
    (r"Problem with given class_path '([^']+)': ", r"\1: "),
    (r'^(\S+): \S+: Parser key "([^"]+)": ', r"\1.\2: "),
    (r"Expected a typing\.Literal\[([^\]]*)\]", r"must be one of \1"),
    (r"(?:\w+\.)+(\w+): module '[^']*' has no attribute '\w+'", r"there is no \1"),
    (r"typing\.Literal\[([^\]]*)\]", r"\1"),
    (r"<class '([^']*)'>", r"\1"),
    (r"Expected a (int|float|bool|str)\b", r"must be \1"),
    (r"Expected a list, got ([\w@/]+)$", r"must be a list, got \1; write [\1]"),
]


def unknown_words(text: str) -> list[str]:
    """The options, without their values, that the parser did not know; else the first word that it
    did not. None for another complaint.
    """
    match = re.search(r"unrecognized arguments: (.*)", text, re.IGNORECASE)
    if match is None:
        return []
    words = match[1].split()
    options = [word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)]
    return options or words[:1]


def parser_reason(text: str) -> str:
    """What the parser has against a value, without the other types that it has tried, and without
    the value again.
    """
    for pattern, better in REWORDED:
        text = re.sub(pattern, better, text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
