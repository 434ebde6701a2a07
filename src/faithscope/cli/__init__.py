"""The command line, one file per command; what they have in common is in `shared`."""

from faithscope.cli import about, compare, demo, evaluate, explain, pack, report, roar, run, shared
from faithscope.cli.shared import app, main

__all__ = [
    "about",
    "app",
    "compare",
    "demo",
    "evaluate",
    "explain",
    "main",
    "pack",
    "report",
    "roar",
    "run",
    "shared",
]
