"""A Python that has imported everything: programs of it begin in a tenth of a second instead of ten.

with warm_python(folder, environment) as python: …     python stands for sys.executable

``python`` is a small program. It hands its arguments, its environment, its folder and its open files
to a server, which forks: the fork runs the module that the arguments name. It ends when the small
program is killed, and the small program ends as it does. Signals to the small program are passed on.
"""

import json
import os
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
IMPORTED = (
    "ltr.cli.training",
    "ltr.callbacks",
    "ltr.datamodules",
    "ltr.losses",
    "ltr.models",
    "sentence_transformers",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "tests.faults",
)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
PROGRAM = f"""#!{sys.executable} -IS
import json, os, signal, socket, sys
address = os.path.join(os.path.dirname(os.path.abspath(__file__)), "socket")
signals = {[int(number) for number in SIGNALS]}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # they are sent behind the words
server = socket.socket(socket.AF_UNIX)
server.connect(address)
words = {{"argv": sys.argv[1:], "environ": dict(os.environ), "cwd": os.getcwd(), "self": __file__}}
text = json.dumps(words).encode()
socket.send_fds(server, [len(text).to_bytes(4, "big")], [0, 1, 2])
server.sendall(text)
for number in signals:
    signal.signal(number, lambda number, frame: server.send(bytes([number])))
signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
status = server.recv(4)
code = int.from_bytes(status, "big", signed=True) if status else -9
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if code != -9 else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextmanager
def warm_python(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """The path of a program that stands for ``sys.executable``.

    Args:
        folder: a new one, with a short path.
        environment: of the server, for what is read when modules are imported.
    """
    folder.mkdir()
    server = start_server(folder, environment, owner=os.getpid())
    try:
        yield str(folder / "python")
    finally:
        os.kill(server, signal.SIGKILL)


def start_server(folder: Path, environment: dict[str, str], owner: int) -> int:
    """Write the program, and start the server, which ends soon after another process. It is no child
    of this process, and its number is returned once it serves.

    Args:
        folder: is there, and empty.
        environment: of the server.
        owner: the number of that other process.
    """
    program = folder / "python"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    words = shlex.join([sys.executable, __file__, str(folder), str(owner)])
    script = f"{words} > {folder}/output 2>&1 & echo $!"
    told = subprocess.run(
        script, shell=True, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    server = psutil.Process(int(told.stdout))
    # Here, as the program that this file is as well does without.
    from tests.child_processes import until

    until(
        (folder / "ready").exists,
        lambda: None if server.is_running() else 1,
        said=(folder / "output").read_text,
    )
    return server.pid


def serve(folder: Path, owner: int) -> None:
    """Fork for each program that asks, and tell it how its fork has ended."""
    sys.path.insert(0, str(ROOT))
    for module in IMPORTED:
        __import__(module)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    listener.listen(64)
    # A fork that ends wakes the loop.
    ours, waking = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(ours, selectors.EVENT_READ)
    programs: dict[int, socket.socket] = {}  # by the number of the fork
    (folder / "ready").touch()
    while psutil.pid_exists(owner):
        for key, _ in selector.select(timeout=1):
            if key.fileobj is ours:
                ours.recv(64)
                tell_ends(programs)
            else:
                program, _ = listener.accept()
                header, files, _, _ = socket.recv_fds(program, 4, 3)
                words = read_words(program, int.from_bytes(header, "big"))
                if words is None:
                    program.close()
                    close_all(files)
                    continue
                child = os.fork()
                if child == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for each in (listener, ours, waking, *programs.values()):
                        each.close()
                    run(words, files, program)
                programs[child] = program
                close_all(files)
    shutil.rmtree(folder, ignore_errors=True)


def tell_ends(programs: dict[int, socket.socket]) -> None:
    """Tell each program whose fork has ended."""
    while programs:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        program = programs.pop(child)
        with suppress(OSError):  # it was killed
            program.send(code.to_bytes(4, "big", signed=True))
        program.close()


def read_words(program: socket.socket, length: int) -> dict[str, Any] | None:
    """What a program sends; None where it was killed meanwhile."""
    text = b""
    while len(text) < length:
        part = program.recv(length - len(text))
        if not part:
            return None
        text += part
    return json.loads(text) if text else None


def close_all(files: list[int]) -> None:
    """Close the files of a program, which its fork has open."""
    for file in files:
        os.close(file)


def run(words: dict[str, Any], files: list[int], program: socket.socket) -> None:
    """In a fork: be the program. It does not return."""
    os.setsid()
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    os.environ.clear()
    os.environ.update(words["environ"])
    os.chdir(words["cwd"])
    sys.executable = words["self"]
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(":")):
        custom = Path(folder, "sitecustomize.py")
        if custom.exists():
            runpy.run_path(str(custom))
    # Lightning reads it when it is imported.
    from lightning.fabric.utilities.rank_zero import _get_rank, rank_zero_only

    rank_zero_only.rank = _get_rank() or 0

    def listen() -> None:
        while True:
            for number in program.recv(16) or [signal.SIGKILL]:  # none: the program is gone
                os.kill(os.getpid(), number)

    threading.Thread(target=listen, daemon=True).start()
    arguments = [word for word in words["argv"] if word != "-u"]
    code = 1
    try:
        warnings.simplefilter("ignore", RuntimeWarning)  # the module is imported already
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.path.insert(0, words["cwd"])
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            sys.path.insert(0, words["cwd"])
            exec(arguments[1], {"__name__": "__main__"})
        else:
            sys.argv = arguments
            sys.path.insert(0, os.path.dirname(arguments[0]))
            runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
