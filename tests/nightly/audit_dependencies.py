"""Known vulnerabilities of the pinned dependencies: `make audit`.

Where no service answers, it says so loudly.
"""

import json
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
# Advisories that do not concern this project, each with the reason.
IGNORED: dict[str, str] = {}
_MINUTES = 5


def main() -> int:
    """Ask the service about every pin; 1 where one is known to be vulnerable."""
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(CONSTRAINTS), *options]
    command += [f"--ignore-vuln={name}" for name in IGNORED]
    try:
        output = subprocess.run(
            command, capture_output=True, text=True, timeout=60 * _MINUTES
        ).stdout
    except subprocess.TimeoutExpired:
        output = ""
    status, text = verdict(output)
    print(text)
    return status


def verdict(output: str) -> tuple[int, str]:
    """Exit status and words for what pip-audit printed.

    It exits 0 and says "no known vulnerabilities" also when its service knew none of the packages.
    """
    try:
        packages = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        packages = []
    known = [package for package in packages if "skip_reason" not in package]
    if not known:
        line = "=" * 78
        said = "NOT AUDITED: no advisory service answered. Run `make audit` where one does."
        return 0, f"{line}\n{said}\n{line}"
    bad = [
        f"{package['name']} {package['version']}: {found['id']} (fixed in "
        f"{', '.join(found['fix_versions']) or 'none'})"
        for package in known
        for found in package["vulns"]
    ]
    said = f"audit: {len(known)} of {len(packages)} pinned packages looked up"
    unknown = "".join(
        f"\nnot looked up: {package['name']}" for package in packages if "skip_reason" in package
    )
    if bad:
        advice = "raise the pin in constraints.txt, or add the id to IGNORED with the reason"
        return 1, "\n".join([f"{said}; {advice}", *bad]) + unknown
    return 0, f"{said}, no known vulnerability{unknown}"


if __name__ == "__main__":
    sys.exit(main())
