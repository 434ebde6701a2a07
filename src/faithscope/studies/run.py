"""Running a study: cell after cell, each one kept in a folder of its own and able to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from faithscope.data import in_random_order, load_data
from faithscope.errors import choose
from faithscope.models import Model, load_model
from faithscope.probes.perturb.evaluation import Evaluation, Forecast, prepare
from faithscope.result import Result
from faithscope.studies.study import Cell, Study
from faithscope.verdicts.sensitivity import sensitivity_rows

if TYPE_CHECKING:
    from faithscope.studies.roar import RoarStudy
    from faithscope.studies.runs import RoarRuns

Runner = Callable[[Cell, Evaluation, Path], Result]


@dataclass(frozen=True, eq=False)
class StudyResult:
    """The result of every cell of a study. Cells differ in protocol, so their tables stay apart."""

    study: Study
    results: dict[str, Result]

    def __getitem__(self, label: str) -> Result:
        return self.results[choose("cell of this study", label, self.results)]

    def sensitivity(self) -> pa.Table:
        """What a choice of the protocol moves: for every axis, its first value against the others.

        One row per metric: `absolute` and `signed` mean change of a score, the signed one with its
        interval; `flipped`, the share of pairs of methods whose order of means changes; and
        `agreement`, the rank correlation over methods, image by image, with its interval.
        """
        return pa.Table.from_pylist(sensitivity_rows(self.results))


def prepare_cells(study: Study, device: str = "auto") -> Iterator[tuple[Cell, Evaluation]]:
    """Check and plan the cells one after the other; a model is loaded once."""
    loaded: tuple[Any, Model] | None = None
    for cell in study.cells():
        if loaded is None or loaded[0] != cell.model:
            options = {"device": device, **cell.model}
            loaded = (cell.model, load_model(options.pop("name"), **options))
        model = loaded[1]
        data = load_data(cell.data, model, limit=study.limit)
        if study.tolerance is not None:
            data = in_random_order(data, cell.seed)
        evaluation = prepare(
            model,
            data,
            list(study.methods),
            study.all_metrics(),
            target=study.target,
            k=study.k[0],
            fill=cell.fill,
            units=cell.units,
            upsample=cell.upsample,
            ties=cell.ties,
            group=study.group,
            random_draws=study.random_draws,
            seed=cell.seed,
            precision=study.precision,
            batch_size=study.batch_size,
        )
        evaluation.tolerance = study.tolerance
        yield cell, evaluation


def forecast_study(study: Study, device: str = "auto") -> list[tuple[Cell, Forecast]]:
    """What every cell will cost."""
    return [(cell, evaluation.forecast()) for cell, evaluation in prepare_cells(study, device)]


@overload
def run_study(
    study: Study, out: str | Path, *, device: str = "auto", run: Runner | None = None
) -> StudyResult: ...


@overload
def run_study(study: RoarStudy, out: str | Path, *, device: str = "auto") -> RoarRuns: ...


def run_study(
    study: Study | RoarStudy,
    out: str | Path,
    *,
    device: str = "auto",
    run: Runner | None = None,
) -> StudyResult | RoarRuns:
    """Run every cell into a folder of its own below `out`; what is finished is not run again."""
    if not isinstance(study, Study):
        from faithscope.studies.roar import run_roar_study

        return run_roar_study(study, out, device=device)
    results = {}
    for cell, evaluation in prepare_cells(study, device):
        folder = Path(out) / cell.label
        result = run(cell, evaluation, folder) if run else evaluation.run(out=folder)
        results[cell.label] = result
    return StudyResult(study, results)
