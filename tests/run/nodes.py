"""Nodes of a run: real processes that a launcher has started, by the variables of SLURM."""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from lightning.pytorch.utilities import rank_zero_only
from lightning_utilities.core.rank_zero import rank_zero_only as utilities_rank_zero_only

from tests.child_processes import forkserver, until
from tests.run.interrupted import written
from tests.run.kills import _run, exit_code, start

# Two processes share the lists of each step.
TWO = {"trainer.devices": 1, "trainer.num_nodes": 2, "trainer.strategy": "ddp"}


def free_port() -> int:
    """A port that nobody listens on, and that the system gives to no connection: a new program takes
    seconds until it listens.
    """
    while True:
        port = random.SystemRandom().randrange(15000, 32000)
        with suppress(OSError), socket.socket() as held:
            held.bind(("127.0.0.1", port))
            return port


def _run_node(args: list[str], output: Path, environment: dict[str, str], number: int) -> None:
    # As at the import of a new program.
    rank_zero_only.rank = utilities_rank_zero_only.rank = number
    _run(args, output, environment)


class Node:
    """``ltr fit`` on one of two nodes: forked from a server that has imported everything, or a new
    program, where the environment is to be read at its start.
    """

    def __init__(
        self,
        number: int,
        port: int,
        args: list[str],
        output: Path,
        environment: Mapping[str, str] | None = None,
        *,
        forked: bool = True,
    ) -> None:
        self.output = output
        job = {
            "SLURM_NTASKS": "2",
            "SLURM_NTASKS_PER_NODE": "1",
            "SLURM_NNODES": "2",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NAME": "train",
            "SLURM_PROCID": str(number),
            "SLURM_LOCALID": "0",
            "SLURM_NODEID": str(number),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        whole = os.environ | job | dict(environment or {})
        output.write_text("")
        if forked:
            arguments = (args, output, whole, number)
            self.process = forkserver().Process(target=_run_node, args=arguments)
            self.process.start()
        else:
            command = [sys.executable, "-m", "ltr", *args]
            told = open(output, "w")
            self.process = subprocess.Popen(command, env=whole, stdout=told, stderr=told)
            told.close()
        self.pid = self.process.pid

    def code(self) -> int | None:
        """The exit code; None as long as it runs."""
        return exit_code(self.process)

    def end(self) -> tuple[int, list[str]]:
        """The exit code and what it said."""
        until(lambda: self.code() is not None)
        return self.code(), self.output.read_text().splitlines()

    def kill(self) -> None:
        self.process.kill()
        until(lambda: self.code() is not None)


Starts = Callable[..., list[Node]]
Ends = Callable[..., list[tuple[int, list[str]]]]


@pytest.fixture
def nodes() -> Iterator[Starts]:
    """Starts a node for each run folder. What of them still runs at the end is killed."""
    started: list[Node] = []

    def start_each(
        file: Path,
        *runs: Path,
        options: tuple[list[str], ...] = ([], []),
        environments: tuple[dict[str, str], ...] = ({}, {}),
        forked: bool = True,
    ) -> list[Node]:
        port = free_port()
        for number, run in enumerate(runs):
            output = file.with_name(f"output{number}")
            args = start(run, file) + options[number]
            node = Node(number, port, args, output, environments[number], forked=forked)
            started.append(node)
        return started[-len(runs) :]

    yield start_each
    for node in started:
        node.kill()


@pytest.fixture
def ends(world, tmp_path, nodes: Starts) -> Ends:
    """Runs two processes with these options, to the end: how each has ended, and what it said. The
    run folder is ``run``, unless the folder of each is named.
    """

    def end_each(changes: dict, runs: tuple[Path, ...] = (), **options) -> list:
        file = written(world, tmp_path, TWO | changes)
        both = nodes(file, *(runs or [tmp_path / "run"] * 2), **options)
        return [node.end() for node in both]

    return end_each


def until_written(file: Path, both: list[Node]) -> None:
    """Return when the nodes have written a file."""
    codes = [node.code for node in both]
    until(file.exists, *codes, said=lambda: "\n".join(node.output.read_text() for node in both))
