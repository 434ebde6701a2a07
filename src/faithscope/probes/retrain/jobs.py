"""Which trainings ROAR and Recursive ROAR need, each distinct one once, and in which order.

A job is one training. Its parent is the job whose model and masked data decide what it masks:

    roar       the parent of every level is the model of the intact texts
    recursive  the parent of a level is the level before it, of the same measure and seed

Shared, and so run once: 0 % and 100 % by all measures; `random` and every other measure that does
not read the model by both procedures, because scores that stay the same mask nested sets; the
first recursive step with the first step of ROAR, because parent and data are the same.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise

from faithscope.errors import FaithscopeError, choose
from faithscope.runs.cards import plural
from faithscope.verdicts.curves import BASELINE

PROCEDURES = ("roar", "recursive")
STRATEGIES = {"relative": tuple(range(0, 101, 10)), "count": tuple(range(11))}
"""What k counts (percent of a text's tokens or an image's pixels, or these) and its levels."""
MOST_SEEDS, MOST_UNITS = 1_000, 10_000
"""More seeds, or units to mask, are a slip of the keyboard."""


@dataclass(frozen=True)
class Job:
    """One training: on texts masked to level `k` by a measure, with a seed.

    `measure` is None where none is needed: nothing is masked (k = 0), or everything (100 %).
    `parent` is None, too, where a measure does not read a model.
    """

    measure: str | None
    procedure: str
    strategy: str
    k: int
    seed: int
    parent: Job | None = field(default=None, compare=False, repr=False)

    @property
    def id(self) -> str:
        """A name that people can read and that can be a file's.

        >>> Job("gradient", "recursive", "relative", 20, 3).id
        'gradient-recursive-k020-s3'
        >>> Job(None, "roar", "relative", 0, 3).id
        'k000-s3'
        """
        place = f"k{self.k:03d}-s{self.seed}"
        return place if self.measure is None else f"{_slug(self.measure)}-{self.procedure}-{place}"


@dataclass(frozen=True)
class Pack:
    """Jobs that are trained together; their parents are all in packs of earlier waves."""

    id: str
    jobs: tuple[Job, ...]

    @property
    def wave(self) -> str:
        """Packs of the same wave need nothing of each other."""
        return self.id.partition("-")[0]


@dataclass(frozen=True)
class Jobs:
    """Every training of a request once, parents before children, and the curves made of them."""

    jobs: tuple[Job, ...]
    measures: tuple[str, ...]
    seeds: tuple[int, ...]
    levels: tuple[int, ...]
    procedures: tuple[str, ...]
    strategy: str
    curves: dict[tuple[str, str, int], dict[int, Job]] = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.jobs)

    def curve(self, measure: str, procedure: str, seed: int) -> dict[int, Job]:
        """The trainings of one curve by level, some of them shared with other curves."""
        return self.curves[measure, procedure, seed]

    @cached_property
    def children(self) -> dict[Job, tuple[Job, ...]]:
        """The jobs whose masks come from a job's model."""
        found: dict[Job, list[Job]] = {job: [] for job in self.jobs}
        for job in self.jobs:
            if job.parent is not None:
                found[job.parent].append(job)
        return {job: tuple(below) for job, below in found.items()}

    def explained_for(self, job: Job) -> tuple[Job, ...]:
        """The jobs whose models must be there when it is decided what a job masks.

        Models of the intact texts are always explained all together, whichever are needed, so
        that what they are computed with, and with it the last bit, is the same whenever that is.
        """
        if job.parent is None:
            return ()
        return self.bases if job.parent.k == 0 else (job.parent,)

    @property
    def bases(self) -> tuple[Job, ...]:
        """The trainings on the intact texts, by seed."""
        return tuple(job for job in self.jobs if job.k == 0)

    def waves(self) -> list[list[Job]]:
        """As few waves as the longest chain has links, evenly filled.

        Jobs with children are trained as soon as they can be, so every link of a recursive chain
        has its own wave; all others may come in any wave after their parent's, and fill up the
        waves that hold least, those that may come in fewer waves first.
        """
        early: dict[Job, int] = {}
        for job in self.jobs:
            early[job] = 0 if job.parent is None else early[job.parent] + 1
        waves: list[list[Job]] = [[] for _ in range(1 + max(early.values()))]
        last = len(waves) - 1
        movable = []
        for job in self.jobs:
            if self.children[job] or early[job] == last:
                waves[early[job]].append(job)
            else:
                movable.append(job)
        for job in sorted(movable, key=lambda job: -early[job]):  # stable
            min(waves[early[job] :], key=len).append(job)
        order = {job: place for place, job in enumerate(self.jobs)}
        return [sorted(wave, key=order.__getitem__) for wave in waves]

    def packs(self, pack_size: int) -> list[Pack]:
        """The waves cut into packs of nearly equal size; they depend on the request alone."""
        packs = []
        for number, wave in enumerate(self.waves()):
            count = -(-len(wave) // pack_size)
            edges = [len(wave) * i // count for i in range(count + 1)]
            for i, (start, stop) in enumerate(pairwise(edges)):
                packs.append(Pack(f"{number:02d}-{i:03d}", tuple(wave[start:stop])))
        return packs


def jobs_of(
    measures: Mapping[str, bool],
    seeds: Iterable[int],
    levels: Iterable[int] | None = None,
    procedures: Iterable[str] = PROCEDURES,
    strategy: str = "relative",
) -> Jobs:
    """The trainings of a request. `random`, level 0 and, if relative, 100 % are always in it.

    `measures` are labels, and whether each reads the model: whether its scores change from one
    trained model to another.

    >>> paper = dict.fromkeys(("attention", "gradient", "input_x_gradient", "ig"), True)
    >>> len(jobs_of(paper, range(5)))  # and random
    395
    """
    choose("strategy", strategy, STRATEGIES)
    chosen = _checked_procedures(procedures)
    steps = checked_levels(levels, strategy)
    numbers = checked_seeds(seeds)
    wanted = {BASELINE: False} if not measures else {**measures}
    wanted.setdefault(BASELINE, False)
    made: dict[Job, Job] = {}
    curves: dict[tuple[str, str, int], dict[int, Job]] = {}
    for k in steps:  # level by level, so that parents come before their children
        for label, reads_model in wanted.items():
            for procedure in chosen:
                for seed in numbers:
                    curve = curves.setdefault((label, procedure, seed), {})
                    job = _job(label, reads_model, procedure, strategy, k, seed, curve)
                    curve[k] = made.setdefault(job, job)
    return Jobs(tuple(made), tuple(wanted), numbers, steps, chosen, strategy, curves)


def _job(
    label: str,
    reads_model: bool,
    procedure: str,
    strategy: str,
    k: int,
    seed: int,
    curve: dict[int, Job],
) -> Job:
    """One level of a curve whose lower levels are there."""
    if k == 0 or (strategy == "relative" and k == 100):
        return Job(None, "roar", strategy, k, seed)
    if not reads_model:
        return Job(label, "roar", strategy, k, seed)
    before = curve[max(curve)]
    if procedure == "roar" or before.k == 0:
        return Job(label, "roar", strategy, k, seed, curve[0])
    return Job(label, "recursive", strategy, k, seed, before)


def checked_levels(
    levels: Iterable[int] | None, strategy: str, *, unit: str = "token"
) -> tuple[int, ...]:
    """The levels in order, with the ends that every curve has.

    >>> checked_levels([50], "relative")
    (0, 50, 100)
    """
    whole = strategy == "relative"
    given = STRATEGIES[strategy] if levels is None else levels
    found = _whole_numbers("level", given, MOST_UNITS + 1)
    inside = [k for k in found if 0 < k and not (whole and k == 100)]
    if any(k < 0 or (whole and k > 100) for k in found) or not inside:
        ends = "between 0 and 100 percent" if whole else f"of at least one {unit}"
        raise FaithscopeError(
            f"The levels {', '.join(map(str, found)) or '(none)'} are not levels of masking: give "
            f"at least one {ends}."
        )
    if found != sorted(set(found)):
        raise FaithscopeError(
            f"The levels {', '.join(map(str, found))} do not rise: give each once, in order."
        )
    if found[-1] > MOST_UNITS:
        raise FaithscopeError(
            f"The level {found[-1]} is too high: give at most {MOST_UNITS:,} {plural(unit)}."
        )
    return tuple(sorted({0, *inside, *([100] if whole else [])}))


def checked_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """The seeds in order, each once and none negative."""
    found = _whole_numbers("seed", seeds, MOST_SEEDS)
    if not found or min(found) < 0 or len(set(found)) < len(found) or max(found) >= 2**31:
        raise FaithscopeError(
            f"The seeds {', '.join(map(str, found)) or '(none)'} cannot be used: give at least "
            "one, each once, from 0 upwards."
        )
    return tuple(found)


def _checked_procedures(procedures: Iterable[str]) -> tuple[str, ...]:
    named = [procedures] if isinstance(procedures, str) else list(procedures)
    for name in named:
        choose("procedure", name, PROCEDURES)
    if not named:
        raise FaithscopeError(f"No procedure given: choose {' or '.join(PROCEDURES)}, or both.")
    return tuple(name for name in PROCEDURES if name in named)


def _whole_numbers(what: str, values: Iterable[int], most: int) -> list[int]:
    try:
        found = [operator.index(value) for value in islice(values, most + 1)]
    except TypeError:
        raise FaithscopeError(f"A {what} must be a whole number, got {values!r}.") from None
    if len(found) > most:
        raise FaithscopeError(f"There are too many {what}s: give at most {most:,}.")
    return found


def _slug(label: str) -> str:
    """A measure's label as part of a file's name; a hash keeps names apart that then look the same.

    >>> _slug("integrated_gradients(steps=20)")
    'integrated_gradients.steps.20.7a7e47b3'
    """
    plain = re.sub(r"[^A-Za-z0-9_]+", ".", label).strip(".")[:80]
    if plain == label:
        return plain
    return f"{plain}.{hashlib.blake2b(label.encode(), digest_size=4).hexdigest()}"
