"""What a run leaves behind: scores, responses, samples, a manifest, and what they say."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from faithscope.errors import FaithscopeError, choose
from faithscope.metrics import MetricLike
from faithscope.runs.files import parquet, replace_file
from faithscope.runs.schema import SCHEMAS, check_manifest, check_tables
from faithscope.verdicts import conclude
from faithscope.verdicts.statistics import bootstrap_interval, holm, paired_p_values

FORMAT = 1
SIGNIFICANT = 0.05


@dataclass(frozen=True, eq=False)
class Result:
    """Scores of a run with everything needed to judge and repeat it.

    `scores` is the long table (model, data, sample, method, draw, metric, k, fill, upsample, value,
    flag); `responses` are the model's answers by span; `samples` the intact images; `pictures`
    small ones of images and maps; `manifest` the protocol, versions, fingerprints and cost.
    """

    scores: pa.Table
    responses: pa.Table
    samples: pa.Table
    manifest: Mapping[str, Any]
    pictures: pa.Table = field(default_factory=lambda: SCHEMAS["pictures"].empty_table())

    def __repr__(self) -> str:
        model, data = self.manifest["model"]["name"], self.manifest["data"]["name"]
        return (
            f"Result({model} on {self.samples.num_rows} images of {data}: "
            f"{len(self.methods)} methods, {len(self.metrics)} metrics)"
        )

    @property
    def methods(self) -> list[str]:
        """Method labels in the order they were asked for."""
        return list(self.manifest["methods"])

    @property
    def metrics(self) -> list[str]:
        """Metric labels in the order they were asked for."""
        return list(self.manifest["metrics"])

    def values(self, method: str, metric: str) -> NDArray[np.float64]:
        """Scores of one method and metric by sample, random draws averaged: [samples]."""
        choose("method of this result", method, self.methods)
        choose("metric of this result", metric, self.metrics)
        place = self.methods.index(method), self.metrics.index(metric)
        values: NDArray[np.float64] = self.cube[place]
        return values

    def summary(self) -> pa.Table:
        """Method × metric: mean, 95 % interval, n, flagged, and the test against matched random.

        `p_vs_random` is Holm-adjusted over the whole table; `verdict` is "better", "worse" or
        "same" than the matched random attribution, "" where there is none.
        """
        return pa.Table.from_pylist(self._summary)

    def table(self) -> str:
        """The summary as a Markdown table: mean [interval], * better, † worse than random."""
        cells = {(row["method"], row["metric"]): row for row in self._summary}
        heads = ["method", *(f"{name} {self.arrow(name)}" for name in self.metrics)]
        rows = [
            [method, *(format_cell(cells[method, metric]) for metric in self.metrics)]
            for method in self.methods
        ]
        return markdown_table(heads, rows)

    def arrow(self, metric: str) -> str:
        """Which way is better."""
        return "↑" if self.manifest["metrics"][metric]["higher_is_better"] else "↓"

    def verdicts(self) -> list[str]:
        """One sentence per method: on which metrics it beats its matched random attribution."""
        every = len(self.metrics)
        return [_verdict(method, rows, every) for method, rows in self._tested().items()]

    def comparisons(self) -> pa.Table:
        """Every two methods on every metric: difference with interval, p and effect sizes."""
        return pa.Table.from_pylist(conclude.comparisons(self))

    def correlations(self) -> pa.Table:
        """Every two metrics: do they agree on which method is better, image by image?"""
        return pa.Table.from_pylist(conclude.correlations(self))

    def metric_verdicts(self) -> list[str]:
        """One sentence per metric: does it tell random attribution from the methods?"""
        return conclude.metric_verdicts(self)

    def headline(self) -> str:
        """The run in one sentence."""
        tested = self._tested()
        compared = [row for row in self._summary if not np.isnan(row["p_vs_random"])]
        if compared and not tested:
            few = self.samples.num_rows
            return (
                f"{few} image{'s are' if few > 1 else ' is'} too few for a verdict: "
                f"{len(compared)} comparison{'s' * (len(compared) > 1)} with random attribution "
                f"need{'s' * (len(compared) == 1)} at least {images_needed(len(compared))}."
            )
        if not tested:
            return "Nothing was compared with random attribution."
        wins = {
            method: sum(row["verdict"] == "better" for row in rows)
            for method, rows in tested.items()
        }
        losers = {m for m, rows in tested.items() if any(row["verdict"] == "worse" for row in rows)}
        every = len(self.metrics)
        some = [m for m in wins if 0 < wins[m] < every]
        kinds = (
            (
                "every metric" if every > 1 else self.metrics[0],
                [m for m in wins if wins[m] == every],
            ),
            ("some metrics", [m for m in some if m not in losers]),
            ("some metrics and worse on others", [m for m in some if m in losers]),
            ("none", [m for m in wins if not wins[m] and m not in losers]),
            ("none and worse on some", [m for m in wins if not wins[m] and m in losers]),
        )
        said = [f"{len(names)} on {kind}{named(names)}" for kind, names in kinds if names]
        said[0] = said[0].replace(" on ", " beat matched random attribution on ", 1)
        if not any(wins.values()):
            said = ["none beats matched random attribution on any metric"]
        methods = f"{len(tested)} method{'s' * (len(tested) > 1)}"
        images = self.samples.num_rows
        return f"{methods} on {images} image{'s' * (images > 1)}: {', '.join(said)}."

    def save(self, folder: str | Path) -> Path:
        """Write Parquet tables, then manifest.json: a folder without that is not a whole run."""
        root = Path(folder)
        try:
            root.mkdir(parents=True, exist_ok=True)
            (root / "manifest.json").unlink(missing_ok=True)  # its presence says all is whole
            for name in SCHEMAS:
                replace_file(root / f"{name}.parquet", parquet(getattr(self, name)))
            text = json.dumps(self.manifest, indent=1, ensure_ascii=False)
            replace_file(root / "manifest.json", text.encode())
        except OSError as error:
            raise FaithscopeError(
                f"The result cannot be written to '{folder}' ({error.strerror}): give another "
                "folder."
            ) from None
        return root

    def rescore(
        self,
        metrics: MetricLike | Iterable[MetricLike],
        *,
        k: int | None = None,
        group: str | None = None,
    ) -> Result:
        """Other metrics of the same run, from the stored responses, without the model."""
        from faithscope.probes.perturb.rescore import rescore

        return rescore(self, metrics, k=k, group=group)

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page."""
        from faithscope.report import write_page

        return write_page(self, Path(path))

    @cached_property
    def cube(self) -> NDArray[np.float64]:
        """All scores, random draws averaged: [methods, metrics, samples]."""
        samples = self.samples["sample"].to_pylist()
        shape = (len(self.methods), len(self.metrics), len(samples))
        places = [_codes(self.scores["method"], self.methods)]
        places += [_codes(self.scores["metric"], self.metrics)]
        places += [_codes(self.scores["sample"], samples)]
        flat = np.ravel_multi_index(tuple(places), shape)
        values = self.scores["value"].to_numpy()
        known = ~np.isnan(values)
        size = int(np.prod(shape))
        sums = np.bincount(flat[known], values[known], minlength=size)
        counts = np.bincount(flat[known], minlength=size)
        with np.errstate(invalid="ignore"):
            return (sums / counts).reshape(shape)

    @cached_property
    def _summary(self) -> list[dict[str, Any]]:
        flagged = _count_flags(self.scores)
        rows: list[dict[str, Any]] = []
        differences = []
        for method in self.methods:
            matched = self.manifest["methods"][method]["matched_random"]
            for metric in self.metrics:
                values = self.values(method, metric)
                known = values[~np.isnan(values)]
                low, high = bootstrap_interval(known)
                other = self.values(matched, metric) if matched else np.full_like(values, np.nan)
                differences.append(values - other)
                rows.append(
                    {
                        "method": method,
                        "metric": metric,
                        "mean": float(known.mean()) if len(known) else float("nan"),
                        "ci_low": low,
                        "ci_high": high,
                        "n": len(known),
                        "flagged": flagged.get((method, metric), 0),
                        "matched_random": matched or "",
                        "difference": _mean(differences[-1]),
                    }
                )
        adjusted = holm(paired_p_values(np.stack(differences, axis=1)))
        enough = images_needed(int((~np.isnan(adjusted)).sum()))
        for row, p_value in zip(rows, adjusted, strict=True):
            better = self.manifest["metrics"][row["metric"]]["higher_is_better"]
            row["p_vs_random"] = float(p_value)
            judged = row["n"] >= enough
            row["verdict"] = judge(row["difference"], p_value, better) if judged else ""
        return rows

    def _tested(self) -> dict[str, list[dict[str, Any]]]:
        tested: dict[str, list[dict[str, Any]]] = {}
        for row in self._summary:
            if row["verdict"]:
                tested.setdefault(row["method"], []).append(row)
        return tested


def images_needed(comparisons: int) -> int:
    """The fewest samples with which any of so many comparisons can come out significant.

    With n samples the smallest p-value of a sign-flip test is 2 / 2^n, which Holm's correction
    multiplies by the number of comparisons.

    >>> images_needed(25)
    10
    """
    return 1 + math.ceil(math.log2(max(1, comparisons) / SIGNIFICANT))


def load_result(folder: str | Path) -> Result:
    """Read a result that `Result.save` wrote."""
    root = Path(folder)
    try:
        manifest = json.loads((root / "manifest.json").read_text(encoding="utf-8"))
        if not isinstance(manifest, dict):
            raise ValueError("the manifest is not a table of names and values")
        if manifest.get("kind") == "roar":
            raise FaithscopeError(
                f"'{folder}' is a ROAR run: here one over images is needed, as `faithscope "
                "evaluate --out` writes it."
            )
        if manifest.get("format") != FORMAT:
            raise FaithscopeError(
                f"The run '{folder}' has format {manifest.get('format')}, this faithscope reads "
                f"{FORMAT}: evaluate again or use the version that wrote it."
            )
        tables = {
            name: pq.read_table(root / f"{name}.parquet")
            for name in SCHEMAS
            if name != "pictures" or (root / f"{name}.parquet").exists()  # not in older runs
        }
        check_manifest(manifest)
        check_tables(manifest, tables)
    except FaithscopeError:
        raise
    except (OSError, ValueError, TypeError, RecursionError, pa.ArrowException) as error:
        why = str(error) if type(error) is ValueError else type(error).__name__
        raise FaithscopeError(
            f"'{folder}' is not a faithscope run ({why}): give a folder that "
            "result.save or `faithscope evaluate --out` wrote."
        ) from None
    return Result(**tables, manifest=manifest)


def markdown_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, names: int = 1, escape: bool = True
) -> str:
    """Write a table as GitHub reads it; the first `names` columns are names, the others numbers.

    Without `escape` names stay as they are, for a terminal.
    """
    told = escape_markdown if escape else str
    lines = [
        [told(head) for head in heads],
        ["---"] * names + ["---:"] * (len(heads) - names),
        *([*map(told, row[:names]), *row[names:]] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def escape_markdown(text: str) -> str:
    r"""Write a name so that Markdown shows it as it is.

    >>> print(escape_markdown("_a_b|<i>"))
    \_a_b\|\<i\>
    """
    flat = re.sub(r"([\\`*|<>\[\]$~&])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", flat)  # inside a word it means itself


def format_cell(row: Mapping[str, Any]) -> str:
    """Write one cell of the summary: mean [low, high] and a mark."""
    if not row["n"]:
        return "—"
    mark = {"better": " *", "worse": " †"}.get(row["verdict"], "")
    if np.isnan(row["ci_low"]):
        return f"{row['mean']:.3f}{mark}"
    return f"{row['mean']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]{mark}"


def judge(difference: float, p_value: float, higher_is_better: bool) -> str:
    """Say what a tested difference means: "better", "worse", "same"; "" where nothing is known."""
    if np.isnan(p_value):
        return ""
    if p_value > SIGNIFICANT:
        return "same"
    return "better" if (difference > 0) == higher_is_better else "worse"


def _verdict(method: str, rows: Sequence[Mapping[str, Any]], metrics_in_all: int) -> str:
    matched = rows[0]["matched_random"]
    words = {"better": "beats", "same": "cannot be told from", "worse": "is worse than"}
    by = {
        verdict: [row["metric"] for row in rows if row["verdict"] == verdict] for verdict in words
    }
    said = [
        f"{words[verdict]} {matched} on {', '.join(metrics)}"
        for verdict, metrics in by.items()
        if metrics
    ]
    if len(said) == 1 and len(rows) == metrics_in_all > 1:
        verdict = rows[0]["verdict"]
        reach = "any" if verdict == "same" else "every"
        return f"{method} {words[verdict]} {matched} on {reach} metric."
    return f"{method} " + "; ".join(said) + "."


def named(names: Sequence[str], most: int = 3) -> str:
    """Names in brackets, not too many of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f" ({', '.join(names[:most])}{more})"


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _codes(column: pa.ChunkedArray, names: Sequence[str]) -> NDArray[np.int64]:
    place = {name: position for position, name in enumerate(names)}
    encoded = column.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0)
    dictionary = np.array([place[name] for name in encoded.dictionary.to_pylist()], dtype=np.int64)
    indices: NDArray[np.int64] = dictionary[encoded.indices.to_numpy()]
    return indices


def _count_flags(scores: pa.Table) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    columns = (scores[name].to_pylist() for name in ("method", "metric", "sample", "flag"))
    seen = {(m, k, s) for m, k, s, flag in zip(*columns, strict=True) if flag}
    for method, metric, _ in seen:
        counts[method, metric] = counts.get((method, metric), 0) + 1
    return counts
