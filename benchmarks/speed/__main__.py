"""Run all benchmarks of speed, one after the other; each writes its table of
benchmarks/performance.md: `make bench`.

The benchmark of a GPU is left out where there is none.
"""

import argparse
import subprocess
import sys

import torch

NAMES = ("local_update", "online", "noise", "sac", "ingest", "gpu")


def main() -> None:
    """Run them; the first that fails ends it."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for name in NAMES:
        if name == "gpu" and not torch.cuda.is_available():
            print("\ngpu: left out, torch sees no GPU", flush=True)
            continue
        print(f"\n{name}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.speed.{name}"], check=True)


if __name__ == "__main__":
    main()
