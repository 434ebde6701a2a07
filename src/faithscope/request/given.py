"""Live objects, which travel beside a request and never reach a disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Given:
    """What was given as an object in the place of a name; None where the name says it all.

    `methods` and `metrics` are by the label that stands for them in the request.
    """

    model: Any = None
    data: Any = None
    methods: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    labels: Any = None
    maps: Mapping[str, Any] = field(default_factory=dict)
    target: Any = None
