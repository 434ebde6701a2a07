"""What a notebook shows of images or texts: how many there are, and a few of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from markupsafe import Markup

from faithscope.data.images import Batch, ImageData, IndexedImages, choose_subset
from faithscope.data.pictures import photographs, thumbnail
from faithscope.errors import said, shortened
from faithscope.markup import card, facts, picture, tag
from faithscope.models import Model

if TYPE_CHECKING:
    from faithscope.data.text_samples import TextSamples

MOST_PICTURES = 8
MOST_LETTERS = 160
"""Of a text."""


def images_html(data: ImageData) -> str:
    """The data as a card; images that can be read in any order are shown, evenly spread."""
    title = f"{data.name}: {len(data):,} images" if len(data) else f"{data.name}: images"
    if not isinstance(data, IndexedImages):
        return card(title, tag("p", "Images are read as they come: none is shown.", class_="muted"))
    try:
        batches = data.read_batches(choose_subset(len(data), MOST_PICTURES, None))
    except Exception as error:  # of somebody's own data set: what it shows is not worth an error
        return card(title, tag("p", f"None can be shown ({said(error)}).", class_="warning"))
    model: Model | None = getattr(data, "model", None)
    strip = [held for batch in batches for held in _pictures(batch, model)]
    strip.sort(key=lambda held: held[0])
    known = {
        "size": ", ".join(dict.fromkeys(_size(batch) for batch in batches if len(batch.images))),
        "labels": "known" if any(batch.labels is not None for batch in batches) else "none",
    }
    lost = [f"'{item.sample}': {item.reason}." for batch in batches for item in batch.skipped]
    return card(
        title,
        tag("div", *(shown for _, shown in strip), class_="strip"),
        *(tag("p", line, class_="warning") for line in lost),
        facts(known),
    )


def texts_html(data: TextSamples) -> str:
    """Texts as a card: some of them, evenly spread, with their labels."""
    lines = []
    for place in choose_subset(len(data), MOST_PICTURES, None):
        item = data.items[place]
        said = " ‖ ".join(item.texts) or " ".join(data.encoded[place].words)
        label = "" if data.labels is None else data.model.class_name(int(data.labels[place]))
        parts = [tag("span", shortened(said, MOST_LETTERS), dir="auto")]
        lines.append(tag("li", *parts, *([tag("small", f" {label}")] if label else [])))
    units = [len(one.words) for one in data.encoded]
    known = {
        data.model.units: f"{min(units)} to {max(units)} a text",
        "labels": "none" if data.labels is None else "known",
        "cut": counted(sum(one.is_cut for one in data.encoded)),
        "without units": counted(units.count(0)),
    }
    return card(f"{data.name}: {len(data):,} texts", tag("ul", *lines), facts(known))


def counted(number: int) -> str:
    """A number, or nothing if there are none."""
    return f"{number:,}" if number else ""


def _pictures(batch: Batch, model: Model | None) -> Iterator[tuple[int, Markup]]:
    """Small pictures of a batch, each after its place in the data."""
    mean, std = (None, None) if model is None else (model.mean, model.std)
    for place, photograph in enumerate(photographs(batch.images, mean, std)):
        kind, _, content = thumbnail(photograph)
        title = batch.samples[place]
        if batch.labels is not None:
            label = int(batch.labels[place])
            title += f": {label if model is None else model.class_name(label)}"
        yield batch.positions[place], picture(content, kind, title=title)


def _size(batch: Batch) -> str:
    return "×".join(map(str, batch.images.shape[1:]))
