"""The measures of the Recursive ROAR paper, for tests."""

from typing import Any

from faithscope.methods import Method
from faithscope.methods.text import ROAR, measure
from faithscope.registry import parse_spec

PAPERS = tuple(name for name in ROAR if name != "random")


def papers(text: str, **options: Any) -> Method:
    """A measure as the paper has it, some options changed: by its name, or in full."""
    name, own = parse_spec(text)
    found = {held.name: held for held in map(measure, ROAR)}
    return found.get(name, measure(name)).with_options(**own, **options)
