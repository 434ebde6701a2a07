"""A test image as it is masked step by step under every measure, of a run that trains on images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from faithscope.data.pictures import IMAGE_SIDE, example_name
from faithscope.errors import FaithscopeError, said
from faithscope.report.style import (
    MUTED,
    WIDTH,
    Drawing,
    Plot,
    given_axes,
    house_style,
    wrap_label,
)
from faithscope.verdicts.findings import Findings
from faithscope.verdicts.sentences import PROCEDURES

Row = Mapping[str, Any]
Array = np.ndarray[Any, Any]

NAMES, LARGEST = 1.7, 0.8
"""Width of the names at the left, and of an image at most, in inches."""
LETTERS = 24
"""Of a name, in a line."""


def masked_image(found: Findings, axes: Sequence[Axes] | None = None) -> Plot | None:
    """One image by measure and level: what the next models are trained on. None without pictures.

    A measure whose masks are the same by both procedures, such as random, has one row.
    """
    files = {row["sample"]: row["content"] for row in found.pictures.to_pylist()}
    examples = [row for row in found.examples.to_pylist() if example_name(row) in files]
    if not examples:
        return None
    levels = sorted({row["k"] for row in examples})
    rows: dict[str, list[bytes]] = {}
    for measure in found.methods:
        steps = {
            PROCEDURES[name]: _files(examples, files, measure, name)
            for name in PROCEDURES
            if name in found.procedures
        }
        if len(steps) > 1 and len({tuple(own) for own in steps.values()}) == 1:
            steps = {"both procedures": next(iter(steps.values()))}
        rows |= {f"{measure}\n{name}": own for name, own in steps.items()}
    curves, first = found.trained, examples[0]
    with house_style():
        side = min(LARGEST, (WIDTH - NAMES) / len(levels))
        wide, high = NAMES + side * len(levels), side * (len(rows) + 0.3)
        if axes is None:
            figure: Any = Drawing(figsize=(wide, high))
            grid = figure.subplots(len(rows), len(levels), squeeze=False)
            edges = {"left": NAMES / wide, "right": 1.0, "top": 1 - 0.3 * side / high}
            figure.subplots_adjust(**edges, bottom=0.0, wspace=0.08, hspace=0.08)
            panels: Sequence[Axes] = list(grid.flat)
        else:
            figure, panels = given_axes(axes, len(rows) * len(levels))
        cells = ((name, own, place) for name, own in rows.items() for place in range(len(levels)))
        for panel, (name, own, place) in zip(panels, cells, strict=True):
            panel.set_axis_off()
            panel.imshow(_pixels(own[place]), interpolation="nearest")
            if name == next(iter(rows)):
                unit = " %" if curves.is_relative else ""
                panel.set_title(f"{levels[place]}{unit}", size=7.5, color=MUTED, pad=3)
            if not place:
                measure, procedure = name.split("\n")
                said = f"{wrap_label(measure, LETTERS)}\n{procedure}"
                panel.text(
                    -0.08, 0.5, said, transform=panel.transAxes, ha="right", va="center", size=7
                )
    units = curves.card.units
    fill = found.manifest.protocol["fill"]
    return Plot(
        "masked_image",
        "One image, masked step by step",
        figure,
        f"A test image by measure and share of {units} masked.",
        f"The first test image (class “{first['label']}”) at every level, with seed "
        f"{first['seed']}: the {units} that a measure calls most important are replaced (fill "
        f"'{fill}'), and a new model is trained on images masked like this one. Recursive ROAR "
        "ranks them by the model of the level before, ROAR by that of the unmasked images.",
    )


def _pixels(content: bytes) -> Array:
    """A kept picture; what is none, or larger than any that is kept, is refused."""
    try:
        picture = Image.open(BytesIO(content))  # which reads its size alone
        if max(picture.size) > IMAGE_SIDE:
            raise ValueError(f"it has {picture.size[0]}×{picture.size[1]} pixels")
        return np.asarray(picture)
    except (OSError, ValueError, SyntaxError) as error:
        raise FaithscopeError(
            f"A picture of this run is damaged ({said(error)}): it cannot be drawn."
        ) from error


def _files(
    examples: Sequence[Row], files: Mapping[str, bytes], measure: str, procedure: str
) -> list[bytes]:
    """The pictures of one row, level by level."""
    own = [row for row in examples if (row["measure"], row["procedure"]) == (measure, procedure)]
    return [files[example_name(row)] for row in sorted(own, key=lambda row: int(row["k"]))]
