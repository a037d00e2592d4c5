"""Take the screenshots of the docs: `python -m docs.tools.screens --project FOLDER`.

FOLDER is a project with results: its report, the card of its bundle ``out`` and its MLflow store
are shown. It needs Debian's `chromium` and `pip install playwright`.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

from docs.tools.markdown import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

FIGURES = ROOT / "docs" / "figures"
_WIDTH, _WIDE, _HEIGHT = 1280, 1760, 900  # MLflow's assistant takes the right of its pages
_TRAINING = "workflowType=machine_learning"
_BEST = (
    "searchFilter=metrics.epsilon%20%3C%3D%201"
    "&orderByKey=metrics.%60gain_over_today%60&orderByAsc=false"
)
_COLUMNS = ("epsilon", "gain_over_today", "delta", "units", "dynamics.model", "recommendation")
_HIDDEN = ("Dataset", "Source", "Models")
_PATIENCE = 120  # seconds until MLflow answers


def main() -> None:
    """Write docs/figures/screen-*.png."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--project", type=Path, required=True)
    project = parser.parse_args().project.resolve()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started, mlflow(project) as address:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        for picture, place, wait in (
            ("report", (project / "reports" / "latest.html").as_uri(), ".plot .main-svg"),
            ("mlflow-run", f"{address}/#/{newest_run(project)}?{_TRAINING}", "text=Description"),
            (
                "mlflow-runs",
                f"{address}/#/{newest_run(project).rpartition('/')[0]}?{_TRAINING}&{_BEST}",
                "text=Columns",
            ),
        ):
            page.set_viewport_size(
                {"width": _WIDE if picture.startswith("mlflow") else _WIDTH, "height": _HEIGHT}
            )
            page.goto(place)
            with suppress(Exception):  # the picture shows what is missing
                page.wait_for_selector(wait, timeout=30_000)
            page.wait_for_timeout(1500)
            for closed in page.get_by_role(
                "button", name="Close"
            ).all():  # MLflow's assistant covers a third of it
                with suppress(Exception):
                    closed.click(timeout=2000)
            if picture == "mlflow-runs":
                show_columns(page)
            page.screenshot(path=FIGURES / f"screen-{picture}.png")
        browser.close()


def show_columns(page: "Page") -> None:
    """Mark the columns that say most, as a user does under *Columns*."""
    page.locator("button:has-text('Columns')").first.click()
    for name in (*_COLUMNS, *_HIDDEN):
        page.get_by_placeholder("Search columns").fill(name)
        page.wait_for_timeout(600)
        with suppress(Exception):  # the picture shows what is missing
            page.locator(f"[role=dialog] >> text=/^{name}$/").first.click(timeout=2500)
    page.keyboard.press("Escape")
    page.wait_for_timeout(2000)


@contextmanager
def mlflow(project: Path) -> Iterator[str]:
    """MLflow's UI on the project's store, on a free port of the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        "-m",
        "mlflow",
        "ui",
        "--backend-store-uri",
        f"sqlite:///{project}/mlflow.db",
        "--port",
        str(port),
    ]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with subprocess.Popen([sys.executable, *words, "--workers", "1"], env=environment) as server:
        address, until = f"http://127.0.0.1:{port}", time.monotonic() + _PATIENCE
        try:
            while time.monotonic() < until:
                with suppress(OSError):
                    urlopen(address)
                    break
                time.sleep(0.5)
            yield address
        finally:
            server.terminate()


def newest_run(project: Path) -> str:
    """Return the path in MLflow of the newest result."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    (experiment,) = [
        each.experiment_id for each in client.search_experiments() if each.name != "Default"
    ]
    run = client.search_runs([experiment], "metrics.epsilon >= 0", max_results=1)[0].info.run_id
    return f"experiments/{experiment}/runs/{run}"


if __name__ == "__main__":
    main()
