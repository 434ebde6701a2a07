"""Pictures and pages for people."""

from faithscope.report.figures import draw_explanations
from faithscope.report.page import write_page
from faithscope.report.roar import write_roar_page
from faithscope.report.roar_figures import draw_synthetic
from faithscope.report.roar_tables import write_roar_figures, write_roar_tables
from faithscope.report.story import draw_story, read_story
from faithscope.report.tables import write_figures, write_tables

__all__ = [
    "draw_explanations",
    "draw_story",
    "draw_synthetic",
    "read_story",
    "write_figures",
    "write_page",
    "write_roar_figures",
    "write_roar_page",
    "write_roar_tables",
    "write_tables",
]
