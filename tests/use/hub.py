"""A stand-in of the hub: repositories of models behind its HTTP interface, as far as a push and a
download use it. Large files go by LFS, others in the commit.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants, hf_api
from transformers.utils import hub as transformers_hub

TOKEN = "hf_of_a_test"
NAME = "user/name"
LARGE = 3_000  # bytes from which a file goes by LFS


@dataclass
class Repository:
    """What a repository holds: by branch its commits, each the files by name."""

    private: bool
    branches: dict[str, list[dict[str, bytes]]]

    def commit_of(self, revision: str) -> dict[str, bytes] | None:
        """The files of a branch's last commit, or of a commit by its id; None where there is none."""
        if revision in self.branches:
            return self.branches[revision][-1]
        for commits in self.branches.values():
            for commit in commits:
                if oid_of(commit) == revision:
                    return commit
        return None


@dataclass
class Hub:
    """The state of the stand-in.

    Attributes:
        url: where it listens.
        repositories: by ``USER/NAME``.
        blobs: what came by LFS, by digest.
        asked: the requests, as ``POST /api/repos/create``.
        answers: what is answered to requests whose line has these words: a status, or None for a
            connection that breaks.
    """

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    answers: dict[str, int | None] = field(default_factory=dict)

    def create(self, name: str, private: bool = True) -> Repository:
        """A new repository, with the one commit that the hub itself makes."""
        commit = {".gitattributes": b"*.safetensors filter=lfs\n"}
        self.repositories[name] = Repository(private, {"main": [commit]})
        return self.repositories[name]

    def environment(self, cache: Path) -> dict[str, str]:
        """What a process has in its environment that takes it for the hub."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(cache),
        }


def oid_of(commit: dict[str, bytes]) -> str:
    """The id of a commit, which follows from its files."""
    files = sorted((name, hashlib.sha1(content).hexdigest()) for name, content in commit.items())
    return hashlib.sha1(json.dumps(files).encode()).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    """Inside the block a stand-in listens."""
    hub = Hub()

    class Handler(_Handler):
        of = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    of: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        path = urlsplit(self.path).path
        line = f"{self.command} {unquote(path)}"
        self.of.asked.append(line)
        for words, status in self.of.answers.items():
            if words in line:
                if status is None:
                    self.close_connection = True
                    self.connection.close()
                    return
                self._send(status, {"error": f"refused with {status}"})
                return
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" and "/lfs-put/" not in path:
            self._send(401, {"error": "Invalid credentials in Authorization header"})
            return
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match [self.command, *parts]:
            case ["POST", "api", "repos", "create"]:
                self._create(json.loads(body))
            case ["POST", "api", "validate-yaml"]:
                self._send(200, {"errors": [], "warnings": []})
            case ["PUT", "lfs-put", digest]:
                assert hashlib.sha256(body).hexdigest() == digest
                self.of.blobs[digest] = body
                self._send(200, {})
            case ["POST", user, name, "info", "lfs", "objects", "batch"]:
                self._batch(f"{user}/{name.removesuffix('.git')}", json.loads(body))
            case [_, "api", "models", user, name, *rest]:
                self._of_repository(f"{user}/{name}", rest, body)
            case [_, user, name, "resolve", revision, *file]:
                self._file(f"{user}/{name}", revision, "/".join(file))
            case _:
                self._send(404, {"error": f"the stand-in does not know {line}"})

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.of.repositories:
            self._send(409, {"error": "You already created this model repo"})
            return
        private = asked.get("visibility") == "private" or asked.get("private") is True
        self.of.create(name, private)
        self._send(200, {"url": f"{self.of.url}/{name}", "name": name})

    def _batch(self, name: str, asked: dict[str, Any]) -> None:
        objects = []
        for each in asked["objects"]:
            answer = {"oid": each["oid"], "size": each["size"]}
            if each["oid"] not in self.of.blobs:
                answer["actions"] = {"upload": {"href": f"{self.of.url}/lfs-put/{each['oid']}"}}
            objects.append(answer)
        self._send(200, {"transfer": "basic", "objects": objects})

    def _of_repository(self, name: str, rest: list[str], body: bytes) -> None:
        repository = self.of.repositories.get(name)
        if repository is None:
            self._send(404, {"error": "Repository not found"}, code="RepoNotFound")
            return
        kind = rest[0] if rest else "revision"
        revision = rest[1] if len(rest) > 1 else "main"
        if kind == "branch":
            self._send(409 if revision in repository.branches else 200, {})
            repository.branches.setdefault(revision, list(repository.branches["main"]))
            return
        commit = repository.commit_of(revision)
        if commit is None:
            self._send(404, {"error": "Revision not found"}, code="RevisionNotFound")
        elif kind == "revision":
            siblings = [{"rfilename": file} for file in sorted(commit)]
            info = {"id": name, "sha": oid_of(commit), "private": repository.private}
            self._send(200, info | {"siblings": siblings, "tags": [], "downloads": 0, "likes": 0})
        elif kind == "tree" and len(rest) > 2:
            self._send(404, {"error": "no such folder"}, code="EntryNotFound")
        elif kind == "tree":
            files = []
            for file, content in sorted(commit.items()):
                oid = hashlib.sha1(content).hexdigest()
                files.append({"type": "file", "path": file, "size": len(content), "oid": oid})
            self._send(200, files)
        elif kind == "preupload":
            modes = []
            asked = json.loads(body)
            patterns = asked.get("gitIgnore") or commit.get(".gitignore", b"").decode()
            for file in asked["files"]:
                mode = "lfs" if file["size"] >= LARGE else "regular"
                ignored = any(fnmatch(file["path"], pattern) for pattern in patterns.split("\n"))
                modes.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": ignored})
            self._send(200, {"files": modes})
        elif kind == "commit":
            self._commit(name, revision, [json.loads(line) for line in body.splitlines()])
        else:
            self._send(404, {"error": f"the stand-in does not know {kind}"})

    def _commit(self, name: str, branch: str, lines: list[dict[str, Any]]) -> None:
        commits = self.of.repositories[name].branches[branch]
        header = lines[0]["value"]
        if header.get("parentCommit", oid_of(commits[-1])) != oid_of(commits[-1]):
            self._send(412, {"error": "A commit has happened since"})
            return
        files = dict(commits[-1])
        for line in lines[1:]:
            value = line["value"]
            match line["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.of.blobs[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        commits.append(files)
        url = f"{self.of.url}/{name}/commit/{oid_of(files)}"
        self._send(200, {"success": True, "commitOid": oid_of(files), "commitUrl": url})

    def _file(self, name: str, revision: str, file: str) -> None:
        repository = self.of.repositories.get(name)
        commit = None if repository is None else repository.commit_of(revision)
        if commit is None:
            code = "RepoNotFound" if repository is None else "RevisionNotFound"
            self._send(404, {"error": "not found"}, code=code)
        elif file not in commit:
            self._send(404, {"error": "no such file"}, code="EntryNotFound", commit=oid_of(commit))
        else:
            self._send(200, commit[file], commit=oid_of(commit))

    def _send(self, status: int, content: Any, code: str = "", commit: str = "") -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if not isinstance(content, bytes):
            self.send_header("Content-Type", "application/json")
        if status >= 400 and isinstance(content, dict):
            self.send_header("X-Error-Message", content.get("error", ""))
        if code:
            self.send_header("X-Error-Code", code)
        if commit:
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A stand-in, which this process takes for the hub."""
    with serving() as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        files = served.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        # The module's functions are methods of this object.
        monkeypatch.setattr(hf_api.api, "endpoint", served.url)
        # transformers keeps an object of its own, which would go on asking the hub of an earlier test.
        monkeypatch.setattr(transformers_hub, "_hf_api", None, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield served


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder by name."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def held(hub: Hub, branch: str = "main") -> dict[str, bytes]:
    """What the repository holds, but for what the hub itself has put there."""
    files = hub.repositories[NAME].branches[branch][-1]
    return {name: content for name, content in files.items() if name != ".gitattributes"}
