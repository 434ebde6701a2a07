"""Pages, figures and tables for people; nothing is imported before it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faithscope.report.figures import draw_explanations as draw_explanations
    from faithscope.report.lines import draw_synthetic as draw_synthetic
    from faithscope.report.page import render_page as render_page
    from faithscope.report.page import write_page as write_page
    from faithscope.report.plots import write_figures as write_figures
    from faithscope.report.story import draw_story as draw_story
    from faithscope.report.story import read_story as read_story
    from faithscope.report.tables import write_tables as write_tables

_HOMES = {
    "draw_explanations": "figures",
    "draw_story": "story",
    "draw_synthetic": "lines",
    "read_story": "story",
    "render_page": "page",
    "write_figures": "plots",
    "write_page": "page",
    "write_tables": "tables",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'faithscope.report' has no attribute {name!r}")
    return getattr(import_module(f"faithscope.report.{_HOMES[name]}"), name)
