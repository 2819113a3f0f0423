"""A server that is asked over HTTP, in the two forms that servers have: ``/rerank`` gives scores of
documents for a query, ``/embeddings`` embeddings of texts.
"""

import http.client
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

import numpy as np

from ltr.entries import parse_json, shown
from ltr.errors import InputError

TIMEOUT = 120.0  # seconds for an answer
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ROUTES = {"rerank": ("/rerank", "/v1/rerank"), "embeddings": ("/embeddings", "/v1/embeddings")}
NOT_HERE = (404, 405, 501)  # what a server says that has no such route


class Server:
    """A server of rankings or of embeddings.

    Args:
        url: of the server, or of its route.
        route: what is asked where the URL ends in no route: ``rerank`` or ``embeddings``.
        model: its name, for servers that want one.

    Raises:
        InputError: if it is no URL.
    """

    def __init__(self, url: str, route: str, model: str) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError:  # such as http://[::1
            parts = urllib.parse.urlsplit("")
        is_printable = url.isprintable() and " " not in url
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_printable:
            raise InputError(f"--with must be a library or a URL (http://HOST:PORT), got {url!r}")
        own = parts.path.rstrip("/").rpartition("/")[2]
        self.route = own if own in ROUTES else route
        base = url.rstrip("/")
        self._urls = [base] if own in ROUTES else [base + each for each in ROUTES[self.route]]
        self.url = url
        self._model = model
        # Loopback is reached without the proxies of the environment.
        handlers = [urllib.request.ProxyHandler({})] if parts.hostname in LOOPBACK else []
        self._opener = urllib.request.build_opener(*handlers)
        self._form: str | None = None  # of /rerank: the name that documents have

    def rerank(self, query: str, documents: Sequence[str]) -> np.ndarray:
        """``[N]``, the scores of documents, in the order in which they are given.

        Raises:
            InputError: if it can't be reached, or answers something else.
        """
        texts = list(documents)
        forms: dict[str, dict[str, Any]] = {
            "texts": {"query": query, "texts": texts, "raw_scores": True, "truncate": True},
            "documents": {"model": self._model, "query": query, "documents": texts},
        }
        names = list(forms) if self._form is None else [self._form]
        refusal: InputError | None = None
        for name in names:
            try:
                content = self._post(forms[name])
            except _Refused as error:
                refusal = refusal or InputError(error.message)
                continue
            results = content.get("results") if isinstance(content, dict) else content
            scores = self._numbers(results, len(texts), ("score", "relevance_score"))
            self._form = name
            return np.array(scores, np.float64)
        assert refusal is not None, "a form was refused"
        raise refusal

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """``[N, dim]``, the embeddings of texts.

        Raises:
            InputError: if it can't be reached, or answers something else.
        """
        body = {"model": self._model, "input": list(texts)}
        try:
            content = self._post(body)
        except _Refused as error:
            raise InputError(error.message) from None
        data = content.get("data") if isinstance(content, dict) else content
        rows = self._numbers(data, len(texts), ("embedding",))
        widths = {len(row) for row in rows}
        if len(widths) != 1:
            raise InputError(f"{self.url}: embeddings must have one size, got {sorted(widths)}")
        return np.array(rows, np.float64)

    def _post(self, body: dict[str, Any]) -> Any:
        """The content of the answer, of the first route that is there."""
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        while True:
            url = self._urls[0]
            request = urllib.request.Request(url, data, headers, method="POST")
            try:
                with self._opener.open(request, timeout=TIMEOUT) as response:
                    answer = response.read()
            except urllib.error.HTTPError as error:
                if error.code in NOT_HERE and len(self._urls) > 1:
                    self._urls.pop(0)
                    continue
                said = " ".join(error.read(2000).decode(errors="replace").split())[:160]
                raise _Refused(
                    f"{url}: the server must answer a POST to /{self.route}, and says {error.code} {said}; name its route: --with http://HOST:PORT/{self.route}"
                ) from None
            # A ValueError is of a URL that HTTP can't spell.
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = error.reason if isinstance(error, urllib.error.URLError) else error
                raise InputError(f"{url}: the server can't be reached ({reason})") from None
            try:
                return parse_json(answer)
            except ValueError as error:
                raise InputError(
                    f"{url}: the server must answer in JSON, and does not ({error})"
                ) from None

    def _numbers(self, results: Any, n: int, names: Sequence[str]) -> list[Any]:
        """The numbers of an answer in the order of what was asked."""
        wanted = f"[{{index, {names[-1]}}}, …] for {n} texts"
        if not isinstance(results, list) or len(results) != n:
            got = f"{len(results)} of them" if isinstance(results, list) else shown(results)
            raise InputError(f"{self.url}: the server must answer {wanted}, got {got}")
        numbers: list[Any] = [None] * n
        for result in results:
            index = result.get("index") if isinstance(result, dict) else None
            if type(index) is not int or not 0 <= index < n:
                raise InputError(
                    f"{self.url}: the server must answer {wanted}, got {shown(result)}"
                )
            name = next((one for one in names if one in result), names[0])
            value = result.get(name)
            if not _is_finite(value, is_list=names[0] == "embedding"):
                raise InputError(
                    f"{self.url}: {name} must be of finite numbers, got {shown(value)}"
                )
            numbers[index] = value
        if any(number is None for number in numbers):
            raise InputError(f"{self.url}: each index must occur once, got some twice")
        return numbers


class _Refused(Exception):
    """A server has refused a request."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def _is_finite(value: Any, *, is_list: bool) -> bool:
    """Whether a number, or all of a list of numbers, are finite."""
    if is_list:
        is_right = isinstance(value, list) and len(value) > 0
        return is_right and all(_is_finite(each, is_list=False) for each in value)
    # A whole number may be larger than any float.
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
