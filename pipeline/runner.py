"""What every stage shares: arguments, parameters, its MLflow run, its wall time, its errors."""

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from primorl.config import params
from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.project.files import write_json
from primorl.project.restoration import restore_outputs
from primorl.tracking import StageRun, stage_run

Body = Callable[[Params, StageRun], None]


def run_stage(name: str, description: str, body: Body) -> int:
    """Run one DVC stage from the command line; return its exit status.

    Reads ``params.yaml``, opens the stage's MLflow run, calls ``body(params, run)`` in the
    working directory and writes ``metrics/seconds/<name>.json``. Errors become one line on stderr; the message of
    an exception nobody foresaw may quote private values, so only its type and place are shown.
    """
    parser = argparse.ArgumentParser(prog=f"python -m pipeline.{name}", description=description)
    parser.add_argument("--debug", action="store_true", help="show tracebacks (inside the trust boundary only)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)  # a scheduler's stop ends the MLflow run as Ctrl-C does
    status = guarded(name, lambda: _run(name, body), debug=arguments.debug)
    if status != 0:
        with suppress(OSError):  # a full disk may not have room for them; `dvc checkout` brings them back later
            restore_outputs(name)
    return status


def _run(name: str, body: Body) -> None:
    checked = params.load(Path("params.yaml"))
    started = time.perf_counter()
    suggested = checked.suggestions_line()
    if suggested is not None:
        print(f"{name}: {suggested}", file=sys.stderr)
    with stage_run(name, checked) as run:
        run.params({"suggested": checked.suggested()})
        body(checked, run)
    write_json(Path(f"metrics/seconds/{name}.json"), {"seconds": round(time.perf_counter() - started, 3)})


def guarded(name: str, work: Callable[[], None], *, debug: bool) -> int:
    """Do a stage's work; an error becomes one line on stderr. Returns the exit status."""
    try:
        work()
    except PipelineError as wrong:
        if debug:
            traceback.print_exc()
        print(f"error: {wrong}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "error: interrupted; the last good outputs are untouched; what was paid for is taken up when run again",
            file=sys.stderr,
        )
        return 130
    except OSError as refused:
        if debug:
            traceback.print_exc()
        print(f"error: {refused.filename or name}: {refused.strerror or type(refused).__name__}", file=sys.stderr)
        return 1
    except Exception as unforeseen:
        if debug:
            traceback.print_exc()
        frame = traceback.extract_tb(unforeseen.__traceback__)[-1]
        print(
            f"error: {name}: unforeseen {type(unforeseen).__name__} at {Path(frame.filename).name}:{frame.lineno}; "
            "its message may quote private values and is shown only with --debug",
            file=sys.stderr,
        )
        return 1
    return 0


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
