"""How much CPU time do commands take that should answer at once?

User and system time of a whole process, the least of some rounds, so that the disk is warm.

    python benchmarks/start.py
"""

from __future__ import annotations

import argparse
import platform
import resource
import subprocess
import sys

COMMANDS = (
    "--help",
    "list",
    "list methods --json",
    "doctor",
    "evaluate --help",
    "report --help",
)


def main() -> None:
    """Print a line for every command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}")
    for words in COMMANDS:
        run = [sys.executable, "-m", "faithscope", *words.split()]
        least = min(seconds(run) for _ in range(options.rounds))
        print(f"faithscope {words}: {least:.2f} s", flush=True)
    bare = min(seconds([sys.executable, "-c", "import torch"]) for _ in range(options.rounds))
    print(f"import torch alone: {bare:.2f} s")


def seconds(command: list[str]) -> float:
    """CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
