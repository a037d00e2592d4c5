"""The processes of this machine that train together: they are started, joined, and end with the first."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import distributed as dist

from primorl.config import params
from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.project.paths import PARAMS
from primorl.project.processes import environment, when_parent_ends
from primorl.project.reporting import exit_status
from primorl.setup.compute import Place
from primorl.training.distributed import Group, ProcessLostError

_HERE = "127.0.0.1"
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_LEADER = "PRIMORL_LEADER"
_GRACE_SECONDS = 5.0


@contextmanager
def joined(place: Place, stage: str, *, needed: bool) -> Iterator[Group | None]:
    """The group of all processes, of which this is process 0; None if there is no other process.

    Raises:
        PipelineError: if a process ended or hangs.
    """
    if place.processes == 1 or not (place.launched or needed):
        yield None
        return
    try:
        with ExitStack() as stack:
            watch = (
                None
                if place.launched
                else stack.enter_context(started(place.processes, (sys.executable, "-m", f"pipeline.{stage}")))
            )
            yield stack.enter_context(Group(watch=watch))
    except ProcessLostError as lost:
        raise PipelineError(
            f"{stage}: {lost}; a round that had begun is spent, and the next `dvc repro` resumes the others that "
            "were paid for, with any number of processes (compute.processes)"
        ) from None


@contextmanager
def started(count: int, command: Sequence[str]) -> Iterator[Callable[[], None]]:
    """Start processes 1 to ``count`` - 1 on this machine, and end them when the block ends.

    They connect over the loopback interface only. Each has a session of its own, so that the terminal's Ctrl-C reaches
    this process alone, also while the others import.

    Yields:
        A function that raises `ProcessLostError` if one of them has failed.
    """
    with socket.create_server((_HERE, 0)) as server:
        port = server.getsockname()[1]
        # As under torchrun, the store exists before the processes and outlives them.
        store = dist.TCPStore(  # type: ignore[attr-defined]
            _HERE, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
        )
    common = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": _HERE,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "GLOO_SOCKET_IFNAME": _LOOPBACK,
    }
    paths = os.pathsep.join(path for path in sys.path if path)  # they run the same code as this process
    theirs = {**os.environ, **common, _LEADER: str(os.getpid()), "PYTHONPATH": paths}
    others: list[subprocess.Popen[bytes]] = []

    def watch() -> None:
        for process, other in enumerate(others, start=1):
            if other.poll():
                how = f"was killed by signal {-other.returncode}" if other.returncode < 0 else "failed"
                raise ProcessLostError(f"process {process} of {count} {how}")

    try:
        for rank in range(1, count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            others.append(subprocess.Popen(command, env=theirs | own, stdin=subprocess.DEVNULL, start_new_session=True))
        with environment(common | {"RANK": "0", "LOCAL_RANK": "0"}):
            yield watch
        _ended(others)
    finally:
        for other in others:
            other.kill()
            other.wait()
        del store


def _ended(others: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Wait a few seconds for processes that were told to stop."""
    until = time.monotonic() + _GRACE_SECONDS
    for other in others:
        try:
            other.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return


def run_worker(name: str, work: Callable[[Params], None]) -> int:
    """Run a stage's part in every process but process 0; return the exit status.

    A worker has no MLflow run and writes no files. Its own errors are reported as any stage's are. If it loses process
    0 it ends silently: process 0 or torchrun reports that.
    """
    begin_worker()

    def numbered() -> None:
        try:
            work(params.load(PARAMS))
        except ProcessLostError:
            end_worker()
        except PipelineError as wrong:
            raise PipelineError(f"process {os.environ['RANK']}: {wrong}") from wrong

    status = exit_status(name, numbered, debug="--debug" in sys.argv)
    if status:
        end_worker(status)
    return status


def begin_worker() -> None:
    """End this process when the one that started it ends (even if it already has), and ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = int(os.environ.get(_LEADER, os.getppid()))  # torchrun does not set it
    when_parent_ends(parent, lambda: os._exit(1))


def end_worker(status: int = 1) -> None:
    """End at once. Closing broken connections in order might hang."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
