"""A headless Chromium, driven through a pipe by its own protocol."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. ``requests`` are the addresses that it has asked for."""

    def __init__(self, executable: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (given, self._out), (told, taken) = os.pipe(), os.pipe()
        # Not 3 or 4, which are the browser's.
        ends = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (given, taken)]
        redirected = ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash"]
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        options += [f"--user-data-dir={self._profile.name}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        words = [*redirected, executable, *options]
        self._process = subprocess.Popen(words, pass_fds=ends, **quiet)
        for end in (given, taken, *ends):
            os.close(end)
        self._told = told
        self._unread = b""
        self._number = 0
        self.requests = list[str]()
        self._loaded = 0
        self._session: str | None = None
        targets = self.send("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **options: Any) -> dict:
        """Send a command and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": options}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict:
        while b"\0" not in self._unread:
            part = os.read(self._told, 65536)
            assert part, "the browser has ended"
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        found = json.loads(message)
        if found.get("method") == "Network.requestWillBeSent":
            self.requests.append(found["params"]["request"]["url"])
        self._loaded += found.get("method") == "Page.loadEventFired"
        return found

    def open(self, file: Path, width: int, dark: bool) -> None:
        """Load a page, as wide as this, in light or dark."""
        size = {"width": width, "height": 1600, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)
        before = self._loaded
        self.send("Page.navigate", url=file.absolute().as_uri())
        while self._loaded == before:
            self._read()

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, file: Path) -> bytes:
        """Of what is in the window, as PNG."""
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))
        return file.read_bytes()

    def close(self) -> None:
        """End it."""
        os.close(self._out)
        self._process.terminate()
        try:
            self._process.wait()
        finally:
            self._process.kill()
            os.close(self._told)
        self._profile.cleanup()
