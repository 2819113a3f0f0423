"""Files damaged in many ways: cut, emptied, of another encoding, each entry gone or of another type."""

import copy
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import yaml

VALUES = {
    "null": None,
    "true": True,
    "a list": [1],
    "an empty list": [],
    "a text": "x",
    "a number": 5,
    "a large number": 10**400,
    "a negative number": -(10**30),
    "an object": {},
    "nested objects": {"x": {"y": 1}},
}
# What is damaged, and what makes the new content: a function, since most are never asked for.
Damage = tuple[str, Callable[[], bytes]]


def _bytes(content: bytes) -> Callable[[], bytes]:
    return lambda: content


def of_text(raw: bytes) -> Iterator[Damage]:
    """Any text file."""
    yield "empty", _bytes(b"")
    yield "cut", _bytes(raw[: len(raw) // 2])
    yield "Latin-1", _bytes(b"\xe9" + raw)
    yield "UTF-16", _bytes(raw.decode().encode("utf-16"))
    yield "NUL", _bytes(b"\0" * 20)
    for text in ("[]", "{}", "null", "5", '"x"', "[[]]", "true"):
        yield text, _bytes(text.encode())
    yield "deep lists", _bytes(b"[" * 100_000 + b"]" * 100_000)
    yield "deep objects", _bytes(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)


def of_json(raw: bytes) -> Iterator[Damage]:
    """A file of JSON: as text, and each of its entries."""
    yield from of_text(raw)
    content = json.loads(raw)
    for where, changed in _entries(content, VALUES):
        yield where, lambda changed=changed: json.dumps(changed()).encode()
    for name in content if isinstance(content, dict) else ():
        deep = "[" * 100_000 + "]" * 100_000
        text = json.dumps(content | {name: "DEEP"}).replace('"DEEP"', deep)
        yield f"{name} = deep lists", _bytes(text.encode())


def of_yaml(raw: bytes) -> Iterator[Damage]:
    """A file of YAML: as text, and each of its entries."""
    yield from of_text(raw)
    yield "an anchor within itself", _bytes(b"more: &more\n  more: *more\n" + raw)
    yield "no date", _bytes(b"more: 2001-99-99\n" + raw)
    yield "a list as key", _bytes(b"? [1]\n: 2\n" + raw)
    for where, changed in _entries(yaml.safe_load(raw), VALUES):
        yield where, lambda changed=changed: yaml.safe_dump(changed()).encode()


def of_array(raw: bytes) -> Iterator[Damage]:
    """A .npy file: as bytes, and its shape, type and numbers."""
    array = np.load(io.BytesIO(raw))

    def saved(changed: np.ndarray) -> bytes:
        stream = io.BytesIO()
        np.save(stream, changed, allow_pickle=True)
        return stream.getvalue()

    def with_value(place: int, value: float) -> Callable[[], bytes]:
        changed = array.copy()
        changed.reshape(-1)[place] = value
        return lambda: saved(changed)

    yield "empty", _bytes(b"")
    yield "cut", _bytes(raw[: len(raw) // 2])
    yield "the header alone", _bytes(raw[:20])
    yield "text", _bytes(b"hello")
    yield "[1, P]", lambda: saved(array[None])
    yield "[P, 1]", lambda: saved(array[..., None])
    yield "flat", lambda: saved(array.reshape(-1))
    yield "a number", lambda: saved(array.reshape(-1)[0])
    yield "short", lambda: saved(array[:-1])
    yield "none", lambda: saved(array[:0])
    yield "long", lambda: saved(np.concatenate([array, array]))
    yield "reversed", lambda: saved(array[::-1])
    yield "object", lambda: saved(array.astype(object))
    yield "records", lambda: saved(np.zeros(array.shape, [("a", "i4")]))
    for kind in ("int8", "uint64", "int64", "float16", "float64", "complex64", "bool", "U5", ">i8"):
        yield kind, lambda kind=kind: saved(array.astype(kind))
    for place in (0, -1):
        for value in (10**6, -7):
            yield f"{value} at {place}", with_value(place, value)
    if array.dtype.kind == "f":
        for value in (np.nan, np.inf, -np.inf):
            yield f"{value}", with_value(0, value)


def of_checkpoint(raw: bytes) -> Iterator[Damage]:
    """A checkpoint: as bytes, and the entries at its top and below."""
    content = torch.load(io.BytesIO(raw), weights_only=True)

    def saved(changed: Any) -> bytes:
        stream = io.BytesIO()
        torch.save(changed, stream)
        return stream.getvalue()

    yield "empty", _bytes(b"")
    yield "cut", _bytes(raw[: len(raw) // 2])
    yield "text", _bytes(b"hello")
    for name, value in VALUES.items():
        yield name, lambda value=value: saved(value)
    values = VALUES | {"numbers as keys": {1: 2}}
    for where, changed in _entries(content, values, depth=2):
        yield where, lambda changed=changed: saved(changed())


def _entries(
    content: Any, values: dict[str, Any], depth: int = 4
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The content with one entry gone or of another value, for each entry and value."""

    def changed(path: tuple[Any, ...], value: Any, gone: bool) -> Any:
        result = copy.deepcopy(content)
        inner = result
        for name in path[:-1]:
            inner = inner[name]
        if gone:
            del inner[path[-1]]
        else:
            inner[path[-1]] = value
        return result

    for path in _paths(content, depth):
        where = ".".join(map(str, path))
        yield f"{where} gone", lambda path=path: changed(path, None, gone=True)
        for name, value in values.items():
            yield f"{where} = {name}", lambda path=path, value=value: changed(path, value, False)


def _paths(content: Any, depth: int, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(content, dict) and len(above) < depth:
        for name, value in content.items():
            yield (*above, name)
            yield from _paths(value, depth, (*above, name))
