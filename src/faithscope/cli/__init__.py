"""The command line, one file per command; what they have in common is in `shared`."""

from faithscope.cli import about, demo, evaluate, explain, run, shared
from faithscope.cli.shared import app, main

__all__ = ["about", "app", "demo", "evaluate", "explain", "main", "run", "shared"]
