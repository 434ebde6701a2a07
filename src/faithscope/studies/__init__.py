"""Studies: one YAML file, many evaluations, one folder."""

from faithscope.studies.run import StudyResult, run_study
from faithscope.studies.study import Cell, Study, load_study

__all__ = ["Cell", "Study", "StudyResult", "load_study", "run_study"]
