"""What a plan and a manifest hold, typed: every number that is read has a kind and a range."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from faithscope.registry import format_spec, plain_options

Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Real = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Value = bool | int | float | str | None
Values = dict[str, Value]


class Typed(BaseModel):
    """The base of everything that is kept as JSON."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants"
    )


class Named(Typed):
    """A model or a data set, as a plan knows it."""

    name: str
    fingerprint: str = ""
    samples: Whole = 0


class MethodCard(Typed):
    """A method, or maps that were given: one column of maps, or a curve, per draw."""

    label: str
    name: str
    options: Values = Field(default_factory=dict)
    modality: Literal["image", "text"] = "image"
    granularity: str = ""
    """Pixel, patch, token or the size of a grid, as 7×7; "" until a map was seen."""
    is_random: bool = False
    is_given: bool = False
    reads_model: bool = True
    """Whether its scores change with the weights of the model."""
    draws: Annotated[int, Field(ge=1, le=1000)] = 1
    matched_random: str | None = None
    """The random method that this one is tested against."""
    precision: str = ""
    """The format that its maps were made in, if not the model's own type or its option."""

    @classmethod
    def of(cls, method: Any, **own: Any) -> MethodCard:
        """The card of a method."""
        names = ("label", "name", "is_random", "precision")
        known = {name: getattr(method, name) for name in names}
        return cls(**{**known, "options": plain_options(method.options), **own})


class MetricCard(Typed):
    """A metric and what a reader must know of it."""

    label: str
    name: str
    options: Values = Field(default_factory=dict)
    higher_is_better: bool
    bounds: tuple[float | None, float | None] = (None, None)
    paper: str = ""
    equation: str = ""
    groups_units: bool = False
    against: Literal["random", "zero"] = "random"
    """What scores are tested against: those of the matched random method, or zero."""

    @classmethod
    def of(cls, metric: Any, **own: Any) -> MetricCard:
        """The card of a metric."""
        names = ("label", "name", "higher_is_better", "paper", "equation")
        known = {name: getattr(metric, name) for name in names}
        return cls(**{**known, "options": plain_options(metric.options), **own})

    @property
    def reads_k(self) -> bool:
        """Whether it compares groups whose number is the protocol's."""
        return self.groups_units and "k" not in self.options

    @property
    def family(self) -> str:
        """Its label without its K, which it shares with metrics that differ in that alone."""
        return format_spec(self.name, {k: v for k, v in self.options.items() if k != "k"})


class Recipe(Typed):
    """How a model is trained."""

    epochs: Positive
    batch_size: Positive
    learning_rate: Real
    weight_decay: Real


class ModelCard(Typed):
    """A model: what is known of one that was given, or how one is trained."""

    name: str
    fingerprint: str = ""
    weights: str | None = None
    dtype: str | None = None
    classes: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    parameters: Whole | None = None
    recipe: Recipe | None = None
    device: str | None = None


class Left(Typed):
    """A sample or a method that was left out, and why."""

    name: str
    why: str


class Failed(Typed):
    """A sample on which the model ("" as method) or a method raised."""

    sample: str
    method: str
    why: str


class Majority(Typed):
    """The most frequent class, and what answering it for everything would score."""

    label: str
    score: float


class Vectors(Typed):
    """How many words have a pretrained vector, and of how many numbers."""

    words: Whole
    size: Whole


def plural(word: str) -> str:
    """Several of a thing.

    >>> plural("token"), plural("patch")
    ('tokens', 'patches')
    """
    return f"{word}es" if word.endswith("ch") else f"{word}s"


class SplitsCard(Typed):
    """What is known of data to train on, texts or images."""

    sample: ClassVar[str]
    """One of them, in a word."""

    classes: tuple[str, ...]
    metric: str
    selection: str
    sizes: dict[str, Whole]
    majority: Majority
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What is masked, in a word."""
        raise NotImplementedError

    @property
    def units(self) -> str:
        """Several of them."""
        return plural(self.unit)

    @property
    def cut(self) -> int:
        """How many samples were longer than the model reads."""
        return 0


class TextCard(SplitsCard):
    """What is known of a data set of texts."""

    sample: ClassVar[str] = "text"

    kind: str
    mean_length: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    vocabulary: Whole
    truncated: dict[str, Whole] = Field(default_factory=dict)
    vectors: Vectors | None = None

    @property
    def unit(self) -> str:
        """Tokens are masked."""
        return "token"

    @property
    def cut(self) -> int:
        """How many texts were longer than the model reads."""
        return sum(self.truncated.values())


class ImageCard(SplitsCard):
    """What is known of a data set of images that was trained on."""

    sample: ClassVar[str] = "image"

    height: Positive
    width: Positive
    channels: Positive
    masked: Literal["pixel", "patch"] = "pixel"

    @property
    def unit(self) -> str:
        """Pixels, or whole patches."""
        return self.masked


class DataCard(Typed):
    """The data of a run."""

    name: str
    samples: Whole
    fingerprint: str
    accuracy: Share | None = None
    skipped: tuple[Left, ...] = ()
    failed: tuple[Failed, ...] = ()
    texts: TextCard | None = None
    images: ImageCard | None = None

    @property
    def splits(self) -> SplitsCard | None:
        """What models were trained on."""
        return self.texts or self.images


class Cost(Typed):
    """What a run took; None is not known, or does not apply."""

    seconds: Seconds
    response_passes: Whole | None = None
    explanation_passes: Whole | None = None
    explain_seconds: Seconds | None = None
    passes_per_second: float | None = None
    batch_halvings: Whole | None = None
    fp16_deviation: float | None = None
    trainings: Whole | None = None
    training_seconds: Seconds | None = None
    explaining_seconds: dict[str, Seconds] | None = None
    explained: dict[str, Whole] | None = None
    packs: Whole | None = None


class Machine(Typed):
    """Where a run was made; several machines are named one after another."""

    device: str
    hosts: tuple[str, ...] = ()
    """The names of the computers."""
    threads: Whole
    platform: str
    python: str


class Sequence(Typed):
    """How wide a confidence sequence is, and what its guarantee rests on."""

    width: float | None
    kind: Literal["exact", "asymptotic"]


class Stopping(Typed):
    """Why a run with a tolerance ended where it did."""

    tolerance: float
    samples: Whole
    reached: bool
    sequences: dict[str, dict[str, Sequence]]
    """By method and metric."""


class Doubt(Typed):
    """A reason to read numbers with care; one that forbids verdicts says so."""

    kind: Literal[
        "probabilities",
        "refilled",
        "failed",
        "undefined",
        "overflowed",
        "few_seeds",
        "diverged",
        "unlearned",
        "no_loss",
        "sign_turned",
        "floored",
        "counted",
        "rising",
        "truncated",
        "clipped",
        "recovery",
    ]
    forbids_verdict: bool = False
    method: str | None = None
    procedure: str | None = None
    seeds: tuple[int, ...] = ()
    levels: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    count: Whole | None = None
    total: Whole | None = None
