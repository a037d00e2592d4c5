"""What git says of the project's code."""

import subprocess

from primorl.project.files import home, workspace
from primorl.project.paths import STATE


def git_commit() -> str | None:
    """The commit that is checked out, or None outside a repository."""
    return _git("rev-parse", "HEAD")


def git_tags() -> dict[str, str]:
    """The commit and whether anything differs from it, as MLflow's tags; empty outside a repository."""
    commit = git_commit()
    if commit is None:
        return {}
    # DVC itself rewrites dvc.lock after every stage
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!dvc.lock")
    return {"mlflow.source.git.commit": commit, "git_dirty": str(bool(changed)).lower()}


def _git(*arguments: str) -> str | None:
    # Not in the folder of a sweep's trial, which git ignores.
    folder = home() if workspace().resolve().is_relative_to(home() / STATE) else workspace()
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
