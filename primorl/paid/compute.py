"""Device, threads, memory and processes of a stage, as the `compute` block of params.yaml asks for them."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psutil
import torch
from torch import distributed as dist

from primorl.base.errors import PipelineError
from primorl.base.paths import PARAMS
from primorl.base.processes import ONE_THREAD_UP_TO, cores, environment, when_parent_ends
from primorl.base.reporting import exit_status
from primorl.config import params
from primorl.config.blocks import Compute
from primorl.config.params import Params
from primorl.engine.distributed import Group, ProcessLostError
from primorl.engine.settings import CHUNK_BYTES, Execution

_PROBE_PRODUCTS = 40
_PROBE_EVERY_SECONDS, _PROBE_SHARE = 2.0, 0.02  # probes take at most this share of the time
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Place:
    """Which process this is among all that train together, and among those of this machine.

    Attributes:
        process: its number, from 0.
        processes: of all machines.
        local_process: its number on this machine.
        local_processes: of this machine.
        launched: whether torchrun started the other processes.
    """

    process: int = 0
    processes: int = 1
    local_process: int = 0
    local_processes: int = 1
    launched: bool = False

    @classmethod
    def of(cls, compute: Compute) -> "Place":
        """Read torchrun's variables; without them, this is process 0 of ``compute.processes`` and starts the others.

        Raises:
            PipelineError: if some of the variables are missing or not numbers.
        """
        if _VARIABLES[0] not in os.environ:
            count = compute.processes or (
                torch.cuda.device_count() if _takes_gpu(compute) else _cores()
            )
            return cls(processes=count, local_processes=count)
        try:
            process, processes, local, of_machine = (int(os.environ[name]) for name in _VARIABLES)
        except (KeyError, ValueError):
            raise PipelineError(
                f"environment: RANK is set, and of {', '.join(_VARIABLES)} one is missing or not a number; start all "
                "processes with torchrun, or unset RANK"
            ) from None
        return cls(process, processes, local, of_machine, launched=True)


ALONE = Place()


def kept_bytes(compute: Compute, place: Place = ALONE) -> int:
    """Bytes of rows that this process may keep in memory: its share of ``data_mb``, or of half the free memory."""
    whole = (
        compute.data_mb << 20
        if compute.data_mb is not None
        else int(psutil.virtual_memory().available) // 2
    )
    return whole // place.local_processes


def chosen_device(compute: Compute, place: Place = ALONE) -> torch.device:
    """Set the number of threads and return the device; ``auto`` takes a GPU if there is one.

    Several processes on a machine share its cores, and each has a GPU of its own if there are enough.

    Raises:
        PipelineError: if ``cuda`` was asked for and there is none.
    """
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    elif place.local_processes > 1:
        torch.set_num_threads(max(1, _cores() // place.local_processes))
    if compute.device == "cuda" and not torch.cuda.is_available():
        raise PipelineError(
            "params.yaml: compute.device: found cuda, but torch sees no GPU; use auto or cpu"
        )
    if not _takes_gpu(compute):
        return torch.device("cpu")
    device = torch.device("cuda", place.local_process % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def policy_device(compute: Compute, width: int) -> torch.device:
    """The device of `chosen_device` for SAC. Small networks get one thread, unless params.yaml sets ``threads``.

    Up to 192 units a second thread saves a sixth of the time at best. Beyond, it saves a third and more
    (docs/performance.md). The number is not changed during training, so that equal seeds give equal policies.
    """
    device = chosen_device(compute)
    if compute.threads is None and width <= ONE_THREAD_UP_TO:
        torch.set_num_threads(1)
    return device


class ThreadChoice:
    """Keeps torch at one thread or at all of this process's threads, whichever is faster at the moment.

    The threads of a product wait for each other at its end. On an idle machine two threads halve the time of a round.
    Where other processes keep the cores busy, one thread of the two waits for its core at every product, and a round
    takes several times as long as with one thread. So a few products of random numbers are timed now and then.

    The number of threads changes rounding errors of a sum and nothing else. It is chosen without any data, and only
    for the private rounds, since their result is random anyway: seeded work keeps its number of threads.

    Args:
        compute: the settings; with ``threads`` set, that number stays.
        device: where the rounds run; on a GPU the number stays as well.
    """

    def __init__(self, compute: Compute, device: torch.device) -> None:
        self._most = torch.get_num_threads()
        self._fixed = compute.threads is not None or device.type != "cpu" or self._most == 1
        self._due = 0.0

    def update(self) -> None:
        """Measure again if it is time to; call it between rounds, on the thread that computes them."""
        started = time.monotonic()
        if self._fixed or started < self._due:
            return
        seconds = {threads: _probe(threads) for threads in (1, self._most)}
        torch.set_num_threads(min(seconds, key=lambda threads: seconds[threads]))
        now = time.monotonic()
        self._due = now + max(_PROBE_EVERY_SECONDS, (now - started) / _PROBE_SHARE)


def _probe(threads: int) -> float:
    """Seconds that a few batched products of a usual size take with so many threads."""
    torch.set_num_threads(threads)
    rows, weights = torch.ones(64, 16, 64), torch.ones(64, 64, 64)
    torch.bmm(rows, weights)  # starts the threads
    started = time.perf_counter()
    for _ in range(_PROBE_PRODUCTS):
        torch.bmm(rows, weights)
    return time.perf_counter() - started


def execution(compute: Compute, place: Place) -> Execution:
    """Choose the device and the bound on a chunk's memory for the rounds of a training; see `chosen_device`."""
    device = chosen_device(compute, place)
    chunk_bytes = (
        compute.memory_mb << 20 if compute.memory_mb is not None else CHUNK_BYTES[device.type]
    )
    return Execution(device, chunk_bytes)


def _takes_gpu(compute: Compute) -> bool:
    return compute.device != "cpu" and torch.cuda.is_available()


def _cores() -> int:
    usable = cores()
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


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
                else stack.enter_context(
                    started(place.processes, (sys.executable, "-m", f"pipeline.{stage}"))
                )
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
    paths = os.pathsep.join(
        path for path in sys.path if path
    )  # they run the same code as this process
    theirs = {**os.environ, **common, _LEADER: str(os.getpid()), "PYTHONPATH": paths}
    others: list[subprocess.Popen[bytes]] = []

    def watch() -> None:
        for process, other in enumerate(others, start=1):
            if other.poll():
                how = (
                    f"was killed by signal {-other.returncode}"
                    if other.returncode < 0
                    else "failed"
                )
                raise ProcessLostError(f"process {process} of {count} {how}")

    try:
        for rank in range(1, count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            others.append(
                subprocess.Popen(
                    command, env=theirs | own, stdin=subprocess.DEVNULL, start_new_session=True
                )
            )
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
