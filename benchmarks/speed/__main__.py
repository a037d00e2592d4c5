"""All benchmarks of speed, one after the other; each writes its tables of docs/benchmarks.md: `make bench`.

Those that need what is not here (a GPU, pfl) are left out and named. The profile of the rounds as they were before the
work on speed is another commit's, and is not made again.
"""

import argparse
import importlib.util
import subprocess
import sys

import torch

NAMES = (
    *("local_update", "pfl_round", "profile_round", "scaling", "read_ahead", "overheads", "noise", "processes", "sac"),
    "gpu",
)


def main() -> None:
    """Run them; the first that fails ends it."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    missing = {"pfl_round": None if importlib.util.find_spec("pfl") else "the package pfl (its docstring says how)"}
    missing["gpu"] = None if torch.cuda.is_available() else "a GPU"
    for name in NAMES:
        if missing.get(name):
            print(f"\n{name}: left out, it needs {missing[name]}", flush=True)
            continue
        print(f"\n{name}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)


if __name__ == "__main__":
    main()
