"""Pictures and pages for people."""

from faithscope.report.figures import draw_explanations
from faithscope.report.page import write_page
from faithscope.report.story import draw_story, read_story
from faithscope.report.tables import write_figures, write_tables

__all__ = [
    "draw_explanations",
    "draw_story",
    "read_story",
    "write_figures",
    "write_page",
    "write_tables",
]
