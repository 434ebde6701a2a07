"""Pages, figures and tables for people."""
