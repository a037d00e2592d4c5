"""Files about the project: they can be read, they agree with the code, and nothing private enters an image."""

import json
import re
import tomllib
from pathlib import Path

import yaml

import primorl

ROOT = Path(__file__).resolve().parent.parent


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_is_of_this_version_and_every_extra_of_a_how_to_exists() -> None:
    citation, project = yaml.safe_load(text("CITATION.cff")), tomllib.loads(text("pyproject.toml"))["project"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys(), "what the format needs"
    assert (citation["version"], citation["license"]) == (primorl.__version__, project["license"])
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for found in re.findall(r"primorl\[([\w,-]+)\]", page) for name in found.split(",")}
    assert named <= project["optional-dependencies"].keys()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in text("constraints.txt").splitlines()}
    assert {"zensical", "dvc-s3", "moto", "riskcal"} <= pinned
    assert "mlflow>=3.11" in text("pyproject.toml"), "older ones have known holes"


def test_what_git_ignores_enters_no_image() -> None:
    """Private rows, the ledger, the secret and DVC's cache would otherwise leave with the image."""
    kept_out = text(".dockerignore").splitlines()
    ignored = [line.strip("/") for line in text(".gitignore").splitlines() if line and not line.startswith("#")]
    for path in [*ignored, ".git", ".dvc/cache", ".dvc/config.local", "data/withdrawals/*", "data/consent/*"]:
        parts = Path(path).parts
        above = {"/".join(parts[: n + 1]) for n in range(len(parts))} | {f"{parts[0]}/*", f"**/{parts[-1]}"}
        caught = above & set(kept_out) or (path.endswith("_cache") and ".*_cache" in kept_out)
        assert caught, path


def test_the_container_runs_as_a_user_without_rights() -> None:
    dockerfile = text("Dockerfile")
    assert re.findall(r"^USER (\d+)", dockerfile, re.MULTILINE)[-1] != "0"
    assert "COPY --chown=primorl:primorl pyproject.toml constraints.txt" in dockerfile
    assert "-c constraints.txt" in text("Makefile"), "make setup installs the pinned versions"
    container = json.loads(text(".devcontainer/devcontainer.json"))
    assert f"AS {container['build']['target']}\n" in dockerfile
