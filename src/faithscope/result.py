"""What a run leaves behind and what it says: tables, statistics, sentences, pages."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from faithscope.errors import FaithscopeError, check_encodable, choose
from faithscope.metrics import MetricLike
from faithscope.probes import probe_of
from faithscope.registry import listed
from faithscope.report.trainings import clips, time_rows
from faithscope.request import Given, Place, as_place, check_request
from faithscope.request.requests import KINDS
from faithscope.runs.cards import Left
from faithscope.runs.run import Run, is_run, load_run, save_run
from faithscope.runs.store import read_plan
from faithscope.verdicts import sentences
from faithscope.verdicts.compare import Differences
from faithscope.verdicts.findings import Findings, plain

if TYPE_CHECKING:
    import pandas as pd

OF_SAMPLES = ("summary", "comparisons", "correlations")
OF_TRAININGS = ("summary", "comparisons", "curves", "racu", "compute_time")
"""Tables that are worked out, by the methods of a Result."""

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
class Result(Findings):
    """Scores of a run with everything needed to judge and repeat it.

    `scores` is the long table (model, data, training, sample, method, procedure, draw, metric, k,
    fill, upsample, value, flag). A run over images has `responses`, the model's answers by span,
    `maps`, `samples` and `pictures`; one of retraining `trainings`, `sparsity` and `examples`.
    `manifest` holds the plan, versions, fingerprints and cost.
    """

    def __repr__(self) -> str:
        model, data = self.manifest.model.name, self.manifest.data.name
        word = self.replicate.word
        return (
            f"Result({model} on {data}: {sentences.counted(len(self.methods), 'method')}, "
            f"{sentences.counted(len(self.metrics), 'metric')}, "
            f"{sentences.counted(len(self.replicates), word)})"
        )

    @property
    def left_out(self) -> tuple[Left, ...]:
        """The methods that the model does not allow: `name`, and `why` it was left out."""
        return self.manifest.plan.left_out

    def _repr_html_(self) -> str:
        from faithscope.report.summary import summary_of

        return summary_of(self).html()

    def headline(self) -> str:
        """The run in one or two sentences."""
        return sentences.headline(self)

    def verdicts(self) -> list[str]:
        """One sentence per method: on which metrics it is better than random."""
        return sentences.verdicts(self)

    def metric_verdicts(self) -> list[str]:
        """One sentence per metric: does it separate methods from random?"""
        return sentences.metric_verdicts(self)

    def warnings(self) -> list[str]:
        """What a reader must know before trusting the numbers, a sentence each."""
        return sentences.warnings(self)

    def to_pandas(self, table: str = "scores") -> pd.DataFrame:
        """One of its tables as a pandas frame: "scores", "summary", "samples" or another by name.

        These are the tables of the run (`responses`, `maps`, `trainings`, …) and those worked out
        from them: `summary`, `comparisons`, `correlations`; `curves`, `racu` and `compute_time`.
        """
        if importlib.util.find_spec("pandas") is None:
            raise FaithscopeError(
                "to_pandas needs pandas: pip install pandas. Without it, result.scores and "
                "result.summary() are pyarrow tables."
            )
        made = OF_TRAININGS if self.manifest.kind == "retrain" else OF_SAMPLES
        held = [name for name in self.tables if self.count(name)]
        choose("table of this result", table, {"scores", *held, *made})
        found = getattr(self, table)() if table in made else self.get_table(table)
        return plain(found).to_pandas()  # which would take names for categories

    def table(self) -> str:
        """The summary as a Markdown table: mean [interval], * better, † worse than random."""
        from faithscope.report.tables import scores_markdown

        return scores_markdown(self)

    def report(self, path: str | Place) -> Place:
        """Write one self-contained HTML page."""
        from faithscope.report.page import write_page

        return write_page(self, as_place(path))

    def save(self, folder: str | Place) -> Place:
        """Write Parquet tables, then manifest.json: a folder without that is not a whole run."""
        root = as_place(folder)
        there = read_plan(root)
        if there is not None and there.content() != self.manifest.plan.content():
            raise FaithscopeError(f"'{root}' holds another run: choose another folder.")
        try:
            save_run(self, root)
        except OSError as error:
            raise FaithscopeError(
                f"The result cannot be written to '{root}' ({error.strerror}): make room or "
                "choose another folder."
            ) from None
        return root

    def rescore(self, metrics: MetricLike | Iterable[MetricLike] = "all", **options: Any) -> Result:
        """Other metrics of the same run, from what it has kept, without the model.

        Of a run over images `k` and `group` may change, too.
        """
        names, given = named_objects(metrics)
        for name in options:
            if name not in ("k", "group") or self.manifest.kind != "perturb":
                raise FaithscopeError(
                    f"{name} cannot be changed in a run that is done: only its metrics, and of a "
                    "run over images k and group."
                )
        asked = {name: value for name, value in options.items() if value is not None}
        kind = KINDS[self.manifest.kind]
        request = check_request(kind, {"model": "-", "data": "-", "metrics": names, **asked})
        changes = {name: getattr(request, name) for name in ("metrics", *asked)}
        probe = probe_of(self.manifest.kind)
        return as_result(probe.rescore(self, changes, Given(metrics=given)))

    # Of trainings

    def curves(self, metric: str | None = None) -> pa.Table:
        """Every point of every curve: mean over seeds, 95 % interval (NaN below 3 seeds), n."""
        return pa.Table.from_pylist(self.trained.curve_rows(metric))

    def racu(self, clip: bool | None = None, metric: str | None = None) -> pa.Table:
        """RACU of every measure but random: by seed, its mean with interval, the absolute area.

        A seed whose denominator is 0 (masking random tokens loses nothing) has no RACU: it is
        named in `degenerate` and left out of mean and interval. `negative` names seeds where
        masking all tokens does better than masking some, which turns the sign around. Masked
        tokens by number (strategy "count") are taken relative to the largest number.
        """
        rows = self.trained.racu_rows(clips(self) if clip is None else clip, metric)
        return pa.Table.from_pylist(list(rows), schema=_RACU)

    def one_class(self) -> list[dict[str, Any]]:
        """Trainings on partly masked texts that give one class as their only answer."""
        return self.trained.one_class()

    def compute_time(self) -> pa.Table:
        """Minutes of one step by measure, as in the paper's Table 8: explain a model, train one.

        A model that was trained in a pack counts its share of the pack's time.
        """
        rows = [
            {
                "data": self.manifest.data.name,
                "model": self.manifest.model.name,
                "measure": row["measure"],
                "explaining": row["explaining_seconds"] / 60,
                "training": row["training_seconds"] / 60,
                "minutes": row["step_seconds"] / 60,
                "walltime": _hours(row["step_seconds"] / 60),
            }
            for row in time_rows(self)
        ]
        return pa.Table.from_pylist(rows)


class Comparison(Differences):
    """Two runs against each other: what differs, by how much, and what that means."""

    def _repr_html_(self) -> str:
        from faithscope.report.summary import summary_of_two

        return summary_of_two(self).html()


def as_result(run: Run) -> Result:
    """A run with everything that can be asked of it."""
    return Result(run.manifest, run.tables)


def load_result(folder: str | Place) -> Result:
    """Read a finished run, of either kind; in a folder of runs it must be the only one."""
    root = as_place(folder)
    if is_run(root):
        return as_result(load_run(root))
    finished, _ = runs_in(root)
    if len(finished) > 1:
        names = ", ".join(path.name for path in finished)
        raise FaithscopeError(
            f"'{root}' holds {len(finished)} runs: give the folder of one of them ({names})."
        )
    return as_result(load_run(finished[0]))


def runs_in(root: Place) -> tuple[list[Place], list[str]]:
    """The finished runs in the folders of a study, and the names of those that were only begun."""
    try:
        if (root / "plan.json").exists():
            raise FaithscopeError(
                f"The run in '{root}' is not finished: run the same command to resume it."
            )
        below = [path for path in root.iterdir() if path.is_dir()]
        below.sort(key=str)
        begun = [path.name for path in below if (path / "plan.json").exists() and not is_run(path)]
    except OSError as error:
        raise FaithscopeError(
            f"The folder '{root}' cannot be read ({error.strerror}): check the path."
        ) from None
    finished = [path for path in below if is_run(path)]
    if not finished:
        only = f", only unfinished ones ({', '.join(begun)})" if begun else ""
        raise FaithscopeError(
            f"'{root}' holds no finished run{only}: give a folder that `faithscope evaluate "
            "--out`, `faithscope roar --out` or `faithscope run` wrote."
        )
    return finished, begun


def named_objects(items: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Names and objects as the names that a request holds, and the objects by these names."""
    single = isinstance(items, str) or callable(items) or _label(items) is not None
    several = isinstance(items, Iterable) and not isinstance(items, bytes | bytearray)
    asked = listed(items, "names and objects") if several and not single else [items]
    named = {item for item in asked if isinstance(item, str)}
    names, objects = list[str](), dict[str, Any]()
    for item in asked:
        if isinstance(item, str):
            names.append(item)
            continue
        name = _label(item) or type(item).__name__
        check_encodable("The name", name)
        if name in objects or name in named:  # whoever resolves it says that they share a name
            name = f"{name}#{len(objects)}"
        names.append(name)
        objects[name] = item
    return tuple(names), objects


def _label(item: Any) -> str | None:
    """What an object calls itself."""
    for name in ("label", "__name__"):
        try:
            label = getattr(item, name, None)
        except Exception:  # a property of somebody's own
            continue
        if isinstance(label, str) and label:
            return label
    return None


def _hours(minutes: float) -> str:
    """Write minutes as hh:mm, as the paper does.

    >>> _hours(106.4)
    '01:46'
    """
    hours, rest = divmod(round(minutes), 60)
    return f"{hours:02d}:{rest:02d}"
