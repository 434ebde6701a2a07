"""Planning: the union of the perturbed inputs that all metrics need, so each one runs once.

A plan is made for one map of n units. Two inputs do not depend on the map: the intact one and the
fully removed one; they are shared by all maps of a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from faithscope.errors import FaithscopeError
from faithscope.metrics import AUTO_K, Metric
from faithscope.perturb import Cut

INTACT: Cut = (0, 0)


@dataclass(frozen=True)
class MapPlan:
    """Distinct cuts of one map, and where each metric finds its own among them.

    `cuts` begins with the `shared` ones: the intact input and, if any metric needs it, the fully
    removed one. `index` and `k` are by metric label; `few` are the metrics that must do with
    fewer groups than wanted, because there are no more units.
    """

    cuts: tuple[Cut, ...]
    shared: int
    index: Mapping[str, tuple[int, ...]]
    k: Mapping[str, int]
    few: frozenset[str] = frozenset()

    @property
    def own(self) -> tuple[Cut, ...]:
        """The cuts that must be run for each map by itself."""
        return self.cuts[self.shared :]

    def reads_removed(self, label: str) -> bool:
        """Whether a metric reads the fully removed input."""
        return any(0 < place < self.shared for place in self.index[label])


def plan_map(metrics: Sequence[Metric], n: int, *, k: int | str, auto: int) -> MapPlan:
    """Merge the spans of all metrics for a map of `n` units.

    Args:
        metrics: what is to be computed.
        n: number of units.
        k: the protocol's number of SaCo groups, or "auto".
        auto: what "auto" means for this map.

    >>> from faithscope.metrics import resolve_metrics
    >>> plan = plan_map(resolve_metrics("all"), 100, k=10, auto=10)
    >>> len(plan.cuts), plan.shared
    (28, 2)
    """
    few: set[str] = set()
    resolutions: dict[str, int] = {}
    wanted: dict[str, list[Cut]] = {}
    for metric in metrics:
        resolution = metric.resolution(k)
        number = auto if isinstance(resolution, str) else resolution
        if metric.groups_units and number > n:
            few.add(metric.label)
            number = n
        resolutions[metric.label] = number
        wanted[metric.label] = [span.cut(n) for span in metric.spans(number)]
    needed = {cut for cuts in wanted.values() for cut in cuts} | {INTACT}
    shared = [INTACT] + ([(0, n)] if (0, n) in needed else [])
    cuts = (*shared, *sorted(needed - set(shared)))
    place = {cut: position for position, cut in enumerate(cuts)}
    index = {label: tuple(place[cut] for cut in own) for label, own in wanted.items()}
    return MapPlan(cuts, len(shared), index, resolutions, frozenset(few))


def check_resolution(
    metrics: Sequence[Metric], k: int | str, most_units: int, units: str = "pixels"
) -> None:
    """Refuse a K that is larger than every sample's number of units."""
    for metric in metrics:
        resolution = metric.resolution(k)
        if metric.groups_units and isinstance(resolution, int) and resolution > most_units:
            if most_units < 2:
                raise FaithscopeError(
                    f"The metric '{metric.label}' compares groups of units, and there is only one "
                    "unit: leave the metric out."
                )
            other = ", or units='pixels'" if units == "patches" else ""
            raise FaithscopeError(
                f"k = {resolution} groups cannot be made of {most_units} units: choose k of at "
                f"most {most_units}{other}."
            )


def passes_per_image(metrics: Sequence[Metric], n: int, maps: int, *, k: int | str) -> int:
    """Count the distinct inputs of one image with so many maps; an upper bound for k="auto".

    >>> from faithscope.metrics import resolve_metrics
    >>> passes_per_image(resolve_metrics("all"), 224 * 224, 11, k=10)
    288
    """
    plans = [plan_map(metrics, n, k=k, auto=auto) for auto in AUTO_K]
    return max(plan.shared for plan in plans) + maps * max(len(plan.own) for plan in plans)
