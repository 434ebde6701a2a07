"""Pictures and pages for people."""

from faithscope.report.figures import draw_explanations
from faithscope.report.page import write_page
from faithscope.report.plots import draw_curves, draw_intervals

__all__ = ["draw_curves", "draw_explanations", "draw_intervals", "write_page"]
