"""What a ROAR run leaves behind: every training, sparsity, examples, a manifest; what they say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from faithscope.errors import FaithscopeError, choose
from faithscope.metrics.racu import absolute_area, racu, racu_doubts
from faithscope.probes.retrain.classification import CLASSIFICATION_METRICS
from faithscope.probes.retrain.doubts import warnings
from faithscope.probes.retrain.jobs import BASELINE, PROCEDURES, STRATEGIES
from faithscope.probes.retrain.verdict import headline, in_percent
from faithscope.result import FORMAT, markdown_table
from faithscope.runs.files import parquet, replace_file
from faithscope.verdicts.statistics import told_interval

Array = NDArray[np.float64]

ROAR_SCHEMAS = {
    "trainings": pa.schema(
        [
            ("job", pa.string()),
            ("data", pa.string()),
            ("model", pa.string()),
            ("measure", pa.string()),
            ("procedure", pa.string()),
            ("strategy", pa.string()),
            ("k", pa.int32()),
            ("seed", pa.int32()),
            ("metric", pa.string()),
            ("value", pa.float64()),
            ("epoch", pa.int32()),
            ("seconds", pa.float64()),
        ]
    ),
    "sparsity": pa.schema(
        [
            ("data", pa.string()),
            ("model", pa.string()),
            ("measure", pa.string()),
            ("seed", pa.int32()),
            ("kind", pa.string()),
            ("x", pa.int32()),
            ("value", pa.float64()),
        ]
    ),
}
"""The tables of a ROAR run and their columns."""

ROAR_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "data": (
        *("name", "kind", "classes", "metric", "selection", "sizes", "mean_length", "vocabulary"),
        *("majority", "truncated", "notes", "fingerprint"),
    ),
    "model": ("name", "parameters", "recipe", "device"),
    "protocol": ("strategy", "levels", "procedures", "measures", "seeds", "clip"),
    "cost": ("seconds", "trainings", "training_seconds", "explaining_seconds", "explained"),
    "machine": (),
    "versions": ("faithscope",),
}
"""The sections of a ROAR manifest and what every one must hold."""
_LISTS = ("levels", "procedures", "measures", "seeds")
_RACU = pa.schema(
    [
        ("measure", pa.string()),
        ("procedure", pa.string()),
        ("mean", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("n", pa.int32()),
        ("seeds", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
        ("area", pa.float64()),
        ("area_low", pa.float64()),
        ("area_high", pa.float64()),
        ("areas", pa.list_(pa.float64())),
        ("degenerate", pa.list_(pa.int32())),
        ("negative", pa.list_(pa.int32())),
    ]
)


@dataclass(frozen=True, eq=False)
class RoarResult:
    """The trainings of a ROAR run with everything needed to judge and repeat it.

    `trainings` has a row for each point of a curve and metric (a training that several curves
    share is repeated for each); `sparsity` the share of the scores in the top tokens; `examples`
    a few test texts with what was masked at each level; `manifest` data, model, protocol, cost.
    """

    trainings: pa.Table
    sparsity: pa.Table
    examples: Sequence[Mapping[str, Any]]
    manifest: Mapping[str, Any]

    def __repr__(self) -> str:
        model, data = self.manifest["model"]["name"], self.manifest["data"]["name"]
        return (
            f"RoarResult({model} on {data}: {len(self.measures)} measures, {len(self.seeds)} "
            f"seeds, {self.manifest['cost']['trainings']} trainings)"
        )

    @property
    def measures(self) -> list[str]:
        """Labels of the measures in the order they were asked for."""
        return list(self.manifest["protocol"]["measures"])

    @property
    def procedures(self) -> list[str]:
        """The procedures that were run: roar, recursive."""
        return list(self.manifest["protocol"]["procedures"])

    @property
    def seeds(self) -> list[int]:
        """The seeds, one training each per point of a curve."""
        return list(self.manifest["protocol"]["seeds"])

    @property
    def levels(self) -> list[int]:
        """The levels of masking, rising from 0."""
        return list(self.manifest["protocol"]["levels"])

    @property
    def metric(self) -> str:
        """The metric that the paper reports for this data."""
        return str(self.manifest["data"]["metric"])

    @property
    def is_relative(self) -> bool:
        """Whether levels are percentages of a text's tokens, which RACU needs."""
        return bool(self.manifest["protocol"]["strategy"] == "relative")

    @property
    def base_and_majority(self) -> tuple[float, float]:
        """How models of the intact texts do, in the mean, and the most common class alone."""
        base = self.values(BASELINE, self.procedures[0])[:, 0]
        base = base[np.isfinite(base)]  # a model that diverged has no score
        mean = float(base.mean()) if len(base) else float("nan")
        return mean, float(self.manifest["data"]["majority"]["score"])

    @property
    def is_unlearned(self) -> bool:
        """Whether models of the intact texts are no better than the most common class alone.

        Better by less than two standard errors on as many test texts may be chance, and is not.
        """
        base, majority = self.base_and_majority
        if self.metric == "cross_entropy":
            return not base < majority
        return not base > majority + self.noise(majority) + 1e-9

    def values(self, measure: str, procedure: str, metric: str | None = None) -> Array:
        """Test performance of one measure and procedure: [seeds, levels]."""
        choose("measure of this result", measure, self.measures)
        choose("procedure of this result", procedure, self.procedures)
        return self._cubes[self._metric(metric)][measure, procedure]

    def curves(self, metric: str | None = None) -> pa.Table:
        """Every point of every curve: mean over seeds, 95 % interval (NaN below 3 seeds), n."""
        rows = []
        for measure, procedure in self.kinds:
            values = self.values(measure, procedure, metric)
            for place, k in enumerate(self.levels):
                mean, low, high = told_interval(values[:, place])
                rows.append(
                    {
                        "measure": measure,
                        "procedure": procedure,
                        "k": k,
                        "mean": mean,
                        "ci_low": low,
                        "ci_high": high,
                        "n": len(values),
                    }
                )
        return pa.Table.from_pylist(rows)

    def racu(self, clip: bool | None = None, metric: str | None = None) -> pa.Table:
        """RACU of every measure but random: by seed, its mean with interval, the absolute area.

        A seed whose denominator is 0 (masking random tokens loses nothing) has no RACU: it is
        named in `degenerate` and left out of mean and interval. `negative` names seeds where
        masking all tokens does better than masking some, which turns the sign around. Masked
        tokens by number (strategy "count") are taken relative to the largest number.
        """
        clip = bool(self.manifest["protocol"]["clip"]) if clip is None else clip
        ratios = torch.tensor(self.levels, dtype=torch.float64) / max(self.levels)
        rows = []
        for measure, procedure in self.kinds:
            if measure == BASELINE:
                continue
            curve = torch.from_numpy(self.values(measure, procedure, metric))
            baseline = torch.from_numpy(self.values(BASELINE, procedure, metric))
            doubts = racu_doubts(baseline, ratios)
            found = racu(curve, baseline, ratios, clip=clip).masked_fill(doubts.degenerate, np.nan)
            areas = absolute_area(curve, baseline, ratios)
            known = found[~doubts.degenerate].numpy()
            mean, low, high = told_interval(known) if len(known) else (float("nan"),) * 3
            area, area_low, area_high = told_interval(areas.numpy())
            rows.append(
                {
                    "measure": measure,
                    "procedure": procedure,
                    "mean": mean,
                    "ci_low": low,
                    "ci_high": high,
                    "n": len(known),
                    "seeds": self.seeds,
                    "values": found.tolist(),
                    "area": area,
                    "area_low": area_low,
                    "area_high": area_high,
                    "areas": areas.tolist(),
                    "degenerate": self._named(doubts.degenerate),
                    "negative": self._named(doubts.negative),
                }
            )
        return pa.Table.from_pylist(rows, schema=_RACU)

    def table(self, clip: bool | None = None) -> str:
        """RACU in percent as a table: a row per measure, a column per procedure."""
        cells = {(row["measure"], row["procedure"]): row for row in self.racu(clip).to_pylist()}
        rows = [
            [measure, *(in_percent(cells[measure, procedure]) for procedure in self.procedures)]
            for measure in self.measures
            if measure != BASELINE
        ]
        titles = {"roar": "ROAR", "recursive": "Recursive ROAR"}
        heads = ["RACU [%]", *(titles[procedure] for procedure in self.procedures)]
        return markdown_table(heads, rows, escape=False)

    def compute_time(self) -> pa.Table:
        """Minutes of one step by measure, as in the paper's Table 8: explain a model, train one.

        A model that was trained in a pack counts its share of the pack's time.
        """
        cost = self.manifest["cost"]
        rows = []
        for measure in self.measures:
            mine = {
                row["job"]: row["seconds"]
                for row in self.trainings.select(["job", "measure", "k", "seconds"]).to_pylist()
                if row["measure"] == measure and 0 < row["k"] < self._last
            }
            training = float(np.mean(list(mine.values()))) / 60
            explained = cost["explained"].get(measure, len(mine))  # model-free: once a training
            explaining = cost["explaining_seconds"].get(measure, 0.0) / explained / 60
            rows.append(
                {
                    "data": self.manifest["data"]["name"],
                    "model": self.manifest["model"]["name"],
                    "measure": measure,
                    "explaining": explaining,
                    "training": training,
                    "minutes": explaining + training,
                    "walltime": _hours(explaining + training),
                }
            )
        return pa.Table.from_pylist(rows)

    def one_class(self) -> list[dict[str, Any]]:
        """Trainings on partly masked texts that give one class as their only answer.

        Nothing was left to learn there, or the training failed. Their accuracy a is the share of
        that class, and its F1 the only one of C that is not 0: macro-F1 is 2a / (1 + a) / C. That
        other answers give a whole C is a coincidence of few test texts.
        """
        found = []
        for measure, procedure in self.kinds:
            share, f1 = (self.values(measure, procedure, name) for name in ("accuracy", "macro_f1"))
            with np.errstate(divide="ignore", invalid="ignore"):
                classes = 2 * share / (1 + share) / f1
            alone = (np.abs(classes - classes.round()) < 1e-9 * classes) & (classes > 1.5)
            for seed, place in np.argwhere(alone).tolist():
                k = self.levels[place]
                if measure != BASELINE and 0 < k < self._last:
                    kind = {"measure": measure, "procedure": procedure}
                    found.append({**kind, "seed": self.seeds[seed], "k": k})
        return found

    def warnings(self) -> list[str]:
        """What a reader must know before trusting the numbers, a sentence each."""
        return warnings(self)

    def headline(self) -> str:
        """The run in one or two sentences."""
        return headline(self)

    def with_clip(self, clip: bool) -> RoarResult:
        """The same trainings, each seed's RACU kept within -1 and 1 or not."""
        protocol = {**self.manifest["protocol"], "clip": clip}
        return replace(self, manifest={**self.manifest, "protocol": protocol})

    def save(self, folder: str | Path) -> Path:
        """Write tables and examples, then manifest.json: without that a run is not whole."""
        root = Path(folder)
        try:
            root.mkdir(parents=True, exist_ok=True)
            (root / "manifest.json").unlink(missing_ok=True)
            for name in ROAR_SCHEMAS:
                replace_file(root / f"{name}.parquet", parquet(getattr(self, name)))
            for name, content in (("examples", self.examples), ("manifest", self.manifest)):
                replace_file(root / f"{name}.json", json.dumps(content, indent=1).encode())
        except OSError as error:
            raise FaithscopeError(
                f"The result cannot be written to '{folder}' ({error.strerror}): make room or give "
                "another folder."
            ) from None
        return root

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page."""
        from faithscope.report import write_roar_page

        return write_roar_page(self, path)

    @property
    def _last(self) -> int:
        """The level that is no measure's own: 100 %, or none if tokens are counted."""
        return 100 if self.manifest["protocol"]["strategy"] == "relative" else 2**31

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Every measure with every procedure."""
        return [(measure, name) for measure in self.measures for name in self.procedures]

    def _metric(self, metric: str | None) -> str:
        return choose("metric", self.metric if metric is None else metric, self._cubes)

    def _named(self, which: torch.Tensor) -> list[int]:
        return [seed for seed, yes in zip(self.seeds, which.tolist(), strict=True) if yes]

    @cached_property
    def _cubes(self) -> dict[str, dict[tuple[str, str], Array]]:
        """By metric, measure and procedure: values [seeds, levels]."""
        shape = (len(self.seeds), len(self.levels))
        cubes: dict[str, dict[tuple[str, str], Array]] = {}
        names = ("metric", "measure", "procedure", "seed", "k", "value")
        columns = [self.trainings[name].to_pylist() for name in names]
        places = {seed: i for i, seed in enumerate(self.seeds)}
        levels = {k: i for i, k in enumerate(self.levels)}
        for metric, measure, procedure, seed, k, value in zip(*columns, strict=True):
            kinds = cubes.setdefault(metric, {})
            cube = kinds.setdefault((measure, procedure), np.full(shape, np.nan))
            cube[places[seed], levels[k]] = value
        return cubes

    @property
    def tested(self) -> int:
        """How many texts the test split has."""
        return int(self.manifest["data"]["sizes"].get("test", 0))

    def noise(self, value: float) -> float:
        """Two standard errors of a share of the test texts; none of a cross-entropy."""
        inside = min(max(value, 0.0), 1.0)
        return 2 * float(np.sqrt(inside * (1 - inside) / max(self.tested, 1)))


def load_roar(folder: str | Path) -> RoarResult:
    """Read a result that `RoarResult.save` wrote."""
    root = Path(folder)
    try:
        manifest = json.loads((root / "manifest.json").read_text(encoding="utf-8"))
        examples = json.loads((root / "examples.json").read_text(encoding="utf-8"))
        tables = {name: pq.read_table(root / f"{name}.parquet") for name in ROAR_SCHEMAS}
        _check_manifest(manifest)
        _check_tables(manifest, tables)
        _check_examples(manifest, examples)
    except (OSError, ValueError, TypeError, KeyError, RecursionError, pa.ArrowException) as error:
        why = str(error) if type(error) is ValueError else type(error).__name__
        raise FaithscopeError(
            f"'{folder}' is not a whole ROAR run ({why}): give a folder that `faithscope roar "
            "--out` wrote."
        ) from None
    return RoarResult(tables["trainings"], tables["sparsity"], examples, manifest)


def _check_manifest(manifest: Any) -> None:
    """Refuse a manifest that lacks something, with a ValueError that names it."""
    if not isinstance(manifest, dict) or manifest.get("kind") != "roar":
        raise ValueError("its manifest is of another kind")
    if manifest.get("format") != FORMAT:
        raise ValueError(f"it has format {manifest.get('format')}, this faithscope reads {FORMAT}")
    for section, keys in ROAR_SECTIONS.items():
        if not isinstance(manifest.get(section), dict):
            raise ValueError(f"its manifest lacks '{section}'")
        for key in keys:
            if key not in manifest[section]:
                raise ValueError(f"its manifest lacks '{section}.{key}'")
    data, protocol, cost = (manifest[name] for name in ("data", "protocol", "cost"))
    kinds: tuple[tuple[str, Any, type], ...] = (
        *((f"data.{key}", data[key], dict) for key in ("sizes", "majority", "truncated")),
        *((f"data.{key}", data[key], str) for key in ("name", "metric")),
        *((f"protocol.{key}", protocol[key], list) for key in _LISTS),
        *((f"cost.{key}", cost[key], dict) for key in ("explaining_seconds", "explained")),
        ("model.name", manifest["model"]["name"], str),
        ("cost.trainings", cost["trainings"], int),
    )
    for key, value, kind in kinds:
        if not isinstance(value, kind):
            raise ValueError(f"its manifest's '{key}' is of a wrong kind")
    levels = protocol["levels"]
    rules = {
        "data.majority": {"class", "score"} <= data["majority"].keys(),
        "data.metric": data["metric"] in CLASSIFICATION_METRICS,
        "protocol.strategy": protocol["strategy"] in STRATEGIES,
        "protocol.procedures": protocol["procedures"]
        and {*protocol["procedures"]} <= {*PROCEDURES},
        "protocol.measures": BASELINE in protocol["measures"],
        "protocol.seeds": len(protocol["seeds"]) > 0,
        "protocol.levels": len(levels) > 1 and levels[0] == 0 and levels == sorted(set(levels)),
    }
    for key, holds in rules.items():
        if not holds:
            raise ValueError(f"its manifest's '{key}' is not one of a ROAR run")
    datetime.fromisoformat(str(manifest.get("created")))


def _check_tables(manifest: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> None:
    """Refuse tables that are of another kind, of another run or not whole, with a ValueError."""
    for name, table in tables.items():
        if not table.schema.equals(ROAR_SCHEMAS[name]):
            raise ValueError(f"{name}.parquet has other columns")
    protocol, trainings = manifest["protocol"], tables["trainings"]
    valid = {
        "measure": protocol["measures"],
        "procedure": protocol["procedures"],
        "seed": protocol["seeds"],
        "k": protocol["levels"],
        "metric": CLASSIFICATION_METRICS,
    }
    points = 1
    for column, names in valid.items():
        if set(trainings[column].unique().to_pylist()) != set(names):
            raise ValueError("trainings.parquet and the manifest are of different runs")
        points *= len(names)
    if trainings.num_rows != points or len(trainings.group_by([*valid]).aggregate([])) != points:
        raise ValueError("trainings.parquet is not whole")
    for column in ("measure", "seed"):
        if not set(tables["sparsity"][column].unique().to_pylist()) <= set(valid[column]):
            raise ValueError("sparsity.parquet and the manifest are of different runs")


_EXAMPLE = {
    *("split", "index", "words", "eligible", "label", "auxiliary"),
    *("measure", "procedure", "seed", "levels"),
}


def _check_examples(manifest: Mapping[str, Any], examples: Any) -> None:
    measures = manifest["protocol"]["measures"]
    for example in examples:
        if not example.keys() >= _EXAMPLE:
            raise ValueError("examples.json is not whole")
        if example["measure"] not in measures or not isinstance(example["words"], list):
            raise ValueError("examples.json and the manifest are of different runs")
        for level in example["levels"]:
            places = (*level["masked"], *example["eligible"])
            if not all(0 <= place < len(example["words"]) for place in places):
                raise ValueError("examples.json is not whole")


def _hours(minutes: float) -> str:
    """Write minutes as hh:mm, as the paper does.

    >>> _hours(106.4)
    '01:46'
    """
    hours, rest = divmod(round(minutes), 60)
    return f"{hours:02d}:{rest:02d}"
