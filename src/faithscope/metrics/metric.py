"""What a metric is: the spans it needs, and a pure function of the model's responses to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from faithscope.errors import FaithscopeError, shown, unknown
from faithscope.perturb import Span, most_relevant_first
from faithscope.registry import Registry, as_list, check_options, format_spec, parse_spec

METRICS: Registry[type[BaseMetric]] = Registry("metric", group="faithscope.metrics")


@dataclass(frozen=True)
class Responses:
    """The model's answers to the spans of one metric; S spans, any leading shape.

    All float64. `log_p` and `log_p0` are log-probabilities of the target class for the perturbed
    and the intact input; `hit` is 1 where the perturbed input is still classified right (as the
    label says, or else as the intact input was); `salience` is the salience inside each span.

    Shapes: log_p0 [...], log_p, hit, salience [..., S].
    """

    log_p0: Tensor
    log_p: Tensor
    hit: Tensor
    salience: Tensor

    @property
    def p(self) -> Tensor:
        """Probability of the target class: [..., S]."""
        return self.log_p.exp()

    @property
    def drop(self) -> Tensor:
        """p(intact) - p(perturbed): [..., S]."""
        return self.log_p0.exp()[..., None] - self.p


@dataclass(frozen=True)
class BaseMetric:
    """What metrics of both probes are: traits as class attributes, options as fields."""

    probe: ClassVar[str]
    """Whose answers it scores: "perturb" or "retrain"."""
    name: ClassVar[str]
    higher_is_better: ClassVar[bool]
    bounds: ClassVar[tuple[float, float]]
    in_papers: ClassVar[bool] = False
    paper: ClassVar[str]
    equation: ClassVar[str]

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }

    @property
    def label(self) -> str:
        """The name with its options, as it stands in tables: ``auc(step=5)``."""
        return format_spec(self.name, self.options)


@dataclass(frozen=True)
class Metric(BaseMetric):
    """A metric of perturbed inputs: `spans` and `score` are to be filled in."""

    probe: ClassVar[str] = "perturb"
    groups_units: ClassVar[bool] = False
    """Whether k groups need k units, so that a sample with fewer uses as many as it has."""
    constant_score: ClassVar[float | None] = None
    """What a constant map scores by definition; None: score it like any other."""

    @property
    def undefined(self) -> tuple[float, str]:
        """The value and the flag of a map for which `score` is NaN."""
        return math.nan, "undefined"

    def resolution(self, k: int | str) -> int | str:
        """How finely the rank axis is cut; `k` is the protocol's number of SaCo groups."""
        raise NotImplementedError

    def spans(self, k: int) -> tuple[Span, ...]:
        """The perturbed inputs this metric needs at resolution `k`."""
        raise NotImplementedError

    def score(self, responses: Responses) -> Tensor:
        """One score per leading index of the responses to `spans`."""
        raise NotImplementedError


M = TypeVar("M", bound=type[BaseMetric])


def register_metric(cls: M) -> M:
    """Class decorator: add a metric to the registry under its `name`."""
    if not isinstance(cls, type) or not issubclass(cls, BaseMetric):
        raise FaithscopeError(f"A metric is a class made of fs.Metric, got {shown(cls)}.")
    for trait in ("name", "higher_is_better", "bounds", "paper", "equation"):
        if not hasattr(cls, trait):
            raise FaithscopeError(
                f"The metric {cls.__name__} has no '{trait}': say it in the class."
            )
    METRICS.register(cls.name, cls)
    return cls


def metric(name: str, **options: Any) -> Any:
    """Make a metric from its name (or text like ``auc(step=5)``) and options.

    >>> from faithscope.metrics import metric
    >>> metric("auc", step=5).label
    'auc(step=5)'
    """
    name, in_text = parse_spec(name)
    options = {**in_text, **options}
    cls = METRICS[name]
    check_options("metric", name, options, {field.name: None for field in fields(cls)})
    try:
        return cls(**options)
    except TypeError as error:
        given = format_spec(name, options)
        raise FaithscopeError(f"The options of '{given}' do not fit: {error}.") from None


def metrics_of(probe: str) -> dict[str, type[BaseMetric]]:
    """The registered metrics of a probe by name, in the order they were registered."""
    return {cls.name: cls for cls in METRICS.values() if cls.probe == probe}


@dataclass(frozen=True)
class CallableMetric(Metric):
    """A user's function of the most-relevant-first curve, wrapped as a metric."""

    name: ClassVar[str] = "callable"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (-float("inf"), float("inf"))
    paper: ClassVar[str] = "yours"
    equation: ClassVar[str] = "yours"

    function: Callable[[Responses], Tensor]
    steps: int = 10

    def resolution(self, k: int | str) -> int:
        """The number of steps."""
        return self.steps

    def spans(self, k: int) -> tuple[Span, ...]:
        """Most relevant first, from intact to empty."""
        return most_relevant_first(k)

    def score(self, responses: Responses) -> Tensor:
        """Call the user's function."""
        return self.function(responses)

    @property
    def label(self) -> str:
        """The function's own name."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))


MetricLike = str | BaseMetric | Callable[[Responses], Tensor]


def resolve_metrics(
    metrics: MetricLike | Iterable[MetricLike], probe: str = "perturb"
) -> list[Any]:
    """Turn names, objects and functions into metrics of a probe.

    "all" are the papers', "registered" is every one.
    """
    known = metrics_of(probe)
    resolved: list[BaseMetric] = []
    for item in as_list("metric", metrics, (str, BaseMetric)):
        if isinstance(item, BaseMetric):
            resolved.append(item)
        elif isinstance(item, str) and item in ("all", "registered"):
            classes = known.values()
            resolved += [cls() for cls in classes if cls.in_papers or item == "registered"]
        elif isinstance(item, str):
            name = parse_spec(item)[0]
            if name not in known:
                raise unknown("metric", name, known)
            resolved.append(metric(item))
        elif callable(item) and probe == "perturb":
            resolved.append(CallableMetric(item))
        else:
            raise FaithscopeError(f"A metric is a name, a Metric or a function, got {shown(item)}.")
    if not resolved:
        raise FaithscopeError(f"No metrics given: choose from {', '.join(sorted(known))}.")
    by_label: dict[str, BaseMetric] = {}
    for entry in resolved:
        if entry.probe != probe:
            raise unknown("metric", entry.label, known)
        if by_label.setdefault(entry.label, entry) != entry:
            raise FaithscopeError(f"Two metrics are called '{entry.label}': rename one of them.")
    return list(by_label.values())
