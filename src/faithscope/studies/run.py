"""Running a study: cell after cell, each one kept in a folder of its own and able to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from faithscope.data import in_random_order, load_data
from faithscope.errors import choose
from faithscope.evaluation import Evaluation, Forecast, prepare
from faithscope.models import Model, load_model
from faithscope.results import Result
from faithscope.results.stats import rank_agreement, sensitivity
from faithscope.studies.study import Cell, Study

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
        rows = [*self._across_cells(), *self._across_ks(), *self._within_cells()]
        return pa.Table.from_pylist(rows)

    def _across_cells(self) -> Iterator[dict[str, Any]]:
        cells = list(self.study.cells())
        for axis in ("fill", "units", "upsample", "ties", "seed"):
            for one, other in combinations(cells, 2):
                if replace(one, **{axis: getattr(other, axis)}) != other:
                    continue
                if getattr(one, axis) != getattr(cells[0], axis):
                    continue  # only the first value is compared with the others
                left, right = self[one.label], self[other.label]
                both = _shared_samples(left, right)
                for metric in left.metrics if both else ():
                    values = _values(left, metric, both), _values(right, metric, both)
                    settings = getattr(one, axis), getattr(other, axis)
                    yield _moved(self._where(one, axis), axis, settings, metric, *values)

    def _across_ks(self) -> Iterator[dict[str, Any]]:
        if len(self.study.k) < 2:
            return
        first, *others = self.study.k
        for cell in self.study.cells():
            result = self[cell.label]
            for other in others:
                pair = f"saco(k={first})", f"saco(k={other})"
                if set(pair) <= set(result.metrics):
                    values = (_values(result, metric) for metric in pair)
                    yield _moved(self._where(cell), "k", (first, other), "saco", *values)

    def _within_cells(self) -> Iterator[dict[str, Any]]:
        for cell in self.study.cells():
            result, where = self[cell.label], self._where(cell)
            if {"aopc", "comprehensiveness"} <= set(result.metrics):
                values = (_values(result, metric) for metric in ("aopc", "comprehensiveness"))
                settings = ("most relevant first", "least relevant first")
                yield _moved(where, "removal order", settings, "aopc", *values)
            if {"random", "random_patch"} <= set(result.methods):
                for metric in result.metrics:
                    settings = ("random", "random_patch")
                    pair = (result.values(name, metric)[None] for name in settings)
                    yield _moved(where, "random attribution", settings, metric, *pair)

    def _where(self, cell: Cell, but: str = "") -> str:
        """What tells a cell from the others, in words."""
        cells = [vars(other) for other in self.study.cells()]
        told = []
        for axis, value in vars(cell).items():
            if axis != but and any(other[axis] != value for other in cells):
                told.append(str(value["name"]) if axis == "model" else f"{axis}={value}")
        return ", ".join(told)


def _shared_samples(left: Result, right: Result) -> list[str]:
    """The samples that two results have in common; a tolerance may end them at different ones."""
    known = set(right.samples["sample"].to_pylist())
    return [sample for sample in left.samples["sample"].to_pylist() if sample in known]


def _values(result: Result, metric: str, samples: list[str] | None = None) -> NDArray[np.float64]:
    """Scores [methods, samples], of all samples or of some in this order."""
    values = result.cube[:, result.metrics.index(metric)]
    if samples is None:
        return values
    place = {sample: i for i, sample in enumerate(result.samples["sample"].to_pylist())}
    chosen: NDArray[np.float64] = values[:, [place[sample] for sample in samples]]
    return chosen


def _moved(
    where: str,
    axis: str,
    settings: tuple[Any, Any],
    metric: str,
    first: NDArray[np.float64],
    second: NDArray[np.float64],
) -> dict[str, Any]:
    change, agreement = sensitivity(first, second), rank_agreement(first, second)
    return {
        "where": where,
        "axis": axis,
        "first": str(settings[0]),
        "second": str(settings[1]),
        "metric": metric,
        "samples": first.shape[1],
        "absolute": float(change.absolute),
        "signed": float(change.signed),
        "signed_low": float(change.low),
        "signed_high": float(change.high),
        "flipped": float(change.flipped),
        "agreement": float(agreement.mean),
        "agreement_low": float(agreement.low),
        "agreement_high": float(agreement.high),
    }


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


def run_study(
    study: Study,
    out: str | Path,
    *,
    device: str = "auto",
    run: Runner | None = None,
) -> StudyResult:
    """Run every cell into a folder of its own below `out`; what is finished is not run again."""
    results = {}
    for cell, evaluation in prepare_cells(study, device):
        folder = Path(out) / cell.label
        result = run(cell, evaluation, folder) if run else evaluation.run(out=folder)
        results[cell.label] = result
    return StudyResult(study, results)
