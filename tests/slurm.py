"""A real SLURM on this machine: a controller and nodes, all of them on the loopback interface."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

SBIN = f"{os.environ['PATH']}:/usr/sbin"
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch")

# Jobs of the partition "urgent" take the nodes of others, which go back into the queue. A job that
# did so starts again when its credentials have expired: after two minutes, but for cred_expire.
CONFIGURATION = """
ClusterName=ltr
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=20
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
SlurmctldTimeout=600
SlurmdTimeout=600
MinJobAge=3600
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=defer,batch_sched_delay=1,sched_interval=2,bf_interval=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Why there can be no SLURM here; None where there can."""
    if any(shutil.which(command, path=SBIN) is None for command in COMMANDS):
        return "SLURM is not installed"
    if os.getuid() != 0:
        return "only root can start the nodes of SLURM"
    return None


@contextmanager
def cluster(environment: dict[str, str], *, n_nodes: int = 2, cpus: int = 1) -> Iterator[Path]:
    """A cluster; at the end all processes of it are killed.

    Args:
        environment: of its daemons. ``SLURM_CONF`` is added, by which commands find the cluster.
        n_nodes: the nodes are called n1, n2, …
        cpus: of each node, which need not exist.

    Yields:
        The folder with the logs of the daemons.
    """
    # Names of sockets must be short, and those of the folders of tests are not.
    with tempfile.TemporaryDirectory(prefix="slurm", dir="/tmp") as root:
        for trial in range(5):
            folder = Path(root) / str(trial)
            environment["SLURM_CONF"] = str(folder / "slurm.conf")
            daemons = _start(folder, environment, n_nodes, cpus)
            if daemons:
                break
        else:
            raise AssertionError((folder / "daemons.log").read_text())
        try:
            yield folder
        finally:
            kill_all_with(f"SLURM_CONF={folder}/slurm.conf")
            for daemon in daemons:
                daemon.wait()


def _start(
    folder: Path, environment: dict[str, str], n_nodes: int, cpus: int
) -> list[subprocess.Popen]:
    """Start a controller and nodes, and wait until they are ready. None is left where another
    program has taken one of their ports.
    """
    (folder / "state").mkdir(parents=True)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    port, *ports_of_nodes = free_ports(1 + n_nodes)
    names = [f"n{number}" for number in range(1, 1 + n_nodes)]
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port_of_node} CPUs={cpus}"
        for name, port_of_node in zip(names, ports_of_nodes, strict=True)
    )
    configuration = CONFIGURATION.format(folder=folder, host=host, port=port, nodes=nodes)
    (folder / "slurm.conf").write_text(configuration)
    files = {
        "key-file": "key",
        "socket": "socket",
        "pid-file": "pid",
        "log-file": "log",
        "seed-file": "seed",
    }
    of_munge = [f"--{option}={folder}/munge.{name}" for option, name in files.items()]
    daemons = []
    for command in (
        ["munged", "--foreground", "--force", *of_munge],
        ["slurmctld", "-D", "-c"],
        *(["slurmd", "-D", "-N", name] for name in names),
    ):
        command[0] = shutil.which(command[0], path=SBIN) or command[0]
        with open(folder / "daemons.log", "a") as log:
            daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    while all(daemon.poll() is None for daemon in daemons):
        asked = ["sinfo", "--noheader", "--partition=all", "--format=%D %T"]
        states = subprocess.run(asked, env=environment, capture_output=True, text=True).stdout
        if states.split() == [str(n_nodes), "idle"]:
            return daemons
        time.sleep(0.5)
    for daemon in daemons:
        daemon.kill()
        daemon.wait()
    return []


def environment_of(folder: Path, warm_python: str) -> dict[str, str]:
    """For the processes of a test, in which ``python`` has imported everything; its cache tells
    them from others.
    """
    return os.environ | {
        "LTR_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(warm_python).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }


def kill_all_of(environment: dict[str, str]) -> None:
    """Kill all processes of a test that still run."""
    kill_all_with(f"LTR_CACHE={environment['LTR_CACHE']}")


def free_ports(n: int) -> list[int]:
    """So many ports that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def kill_all_with(entry: str) -> None:
    """Kill all processes that were started with this entry of the environment, and those that they
    start meanwhile.
    """
    while True:
        processes = [
            each for each in Path("/proc").glob("[0-9]*") if has_in_environment(each, entry)
        ]
        if not processes:
            return
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        time.sleep(0.1)


def has_in_environment(process: Path, entry: str) -> bool:
    """Whether a process of ``/proc`` was started with this entry."""
    try:
        return entry.encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return False
