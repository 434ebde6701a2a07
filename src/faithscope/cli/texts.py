"""What `faithscope explain` does with a text: read it, tell of it, write its page or picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from faithscope.cli.explain import PAGE, caption, make_maps
from faithscope.data.text_samples import TextSamples, load_texts
from faithscope.errors import FaithscopeError, quoted, warn
from faithscope.models import Model, TextModel
from faithscope.models.text_model import Encoded
from faithscope.probes.perturb.resolve import for_modality, with_units
from faithscope.request import Perturb

if TYPE_CHECKING:
    from faithscope.report.words import Explained
    from faithscope.result import Result

PAIR, FEWEST = 2, 2


@dataclass(frozen=True, eq=False)
class Shown:
    """One text, or one pair, as a model reads it."""

    model: Model
    data: TextSamples

    @property
    def encoded(self) -> Encoded:
        """Its tokens, and what its units are called."""
        return self.data.encoded[0]

    @property
    def inputs(self) -> Any:
        """What the model is run on."""
        return next(self.data.batches(1)).images

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or both of a pair; its tokens if it was given as tokens."""
        item = self.data.items[0]
        return (" ".join(self.encoded.words),) if item.ids else item.texts

    def fewer_groups(self, k: Any) -> Any:
        """As many groups as a short text has units for; SaCo needs two."""
        units = len(self.encoded.words)
        if units < FEWEST:
            raise FaithscopeError(
                f"The text has one unit, '{self.encoded.words[0]}', and SaCo compares groups of "
                "them: give a longer text."
            )
        return min(k, units)

    def as_data(self, maps: Mapping[str, Tensor]) -> dict[str, Any]:
        """For a program to read: the texts, their units, and the salience of each by method."""
        return {
            "texts": list(self.texts),
            "words": list(self.encoded.words),
            "second": self.encoded.second,
            "salience": {label: values.flatten().tolist() for label, values in maps.items()},
        }

    def explained(
        self, maps: Mapping[str, Tensor], scores: Mapping[str, Mapping[str, Any]]
    ) -> list[Explained]:
        """Its words in the colours of every map, with SaCo."""
        from faithscope.report.figures import coloured_map
        from faithscope.report.words import Explained

        return [
            Explained(
                method,
                scores[method]["saco"],
                scores[method]["flag"],
                coloured_map(self.encoded, values, method),
            )
            for method, values in maps.items()
        ]

    def write(
        self,
        path: Path,
        maps: Mapping[str, Tensor],
        scores: Mapping[str, Mapping[str, Any]],
        result: Result,
        *,
        is_story: bool,
    ) -> None:
        """Write a page or a picture, by the end of its name."""
        from faithscope.report.figures import draw_texts
        from faithscope.report.page import write_explained
        from faithscope.report.story import draw_story, story_plot

        title = caption(self.model, result.samples.to_pylist()[0])
        if path.suffix.lower() == PAGE:
            write_explained(
                result,
                path,
                title=title,
                texts=self.texts,
                explained=self.explained(maps, scores),
                story=story_plot(self.model, self.encoded, maps, result) if is_story else None,
            )
        elif is_story:
            draw_story(self.model, self.encoded, maps, result, path)
        else:
            draw_texts(
                [self.encoded],
                {label: [values] for label, values in maps.items()},
                path,
                titles=[title],
                scores={label: [float(scores[label]["saco"])] for label in maps},
                subtitle=subtitle(self.model, result),
            )


def draw_some(
    data: TextSamples, methods: Sequence[str], result: Result, path: Path, places: Sequence[int]
) -> None:
    """Draw the texts at some places of a result in the colours of their maps, with their scores."""
    from faithscope.report.figures import draw_texts

    samples = result.samples.take(list(places)).to_pylist()
    held = [data.sample_names.index(sample["sample"]) for sample in samples]
    maps = [
        make_maps(data.model, TextSamples([data.items[one]], data.model), methods, result, [place])
        for one, place in zip(held, places, strict=True)
    ]
    draw_texts(
        [data.encoded[one] for one in held],
        {method: [made[method] for made in maps] for method in methods},
        path,
        titles=[caption(data.model, sample) for sample in samples],
        scores={method: result.values(method, "saco")[places].tolist() for method in methods},
        subtitle=subtitle(data.model, result),
    )


def subtitle(model: Model, result: Result) -> str:
    """What a picture says of its scores."""
    protocol = result.manifest.protocol
    return f"{model.name}: SaCo with K = {protocol['k']}, fill {protocol['fill']}"


def read_text(given: Sequence[str], model: TextModel, request: Perturb) -> Shown:
    """One text or one pair, by the units that are asked for."""
    if len(given) > PAIR:
        raise FaithscopeError(
            f"Give one text, or two as a pair, got {len(given)}: put each between quotation marks."
        )
    if len(given) == PAIR and not given[1].strip():
        raise FaithscopeError("The second text of the pair is empty: leave it out, or write it.")
    if len(given) == PAIR and " " not in given[1].strip():  # the next word, or a method's name
        warn(
            f"Read as a pair of texts, '{given[0]}' and '{given[1]}': if you mean one text, put it "
            "between quotation marks, and the names of methods behind --methods, with commas."
        )
    shown = with_units(model, for_modality(request, model))
    assert isinstance(shown, TextModel)  # as before
    data = load_texts(given[0] if len(given) < PAIR else [tuple(given)], shown)
    if len(data) != 1:
        raise FaithscopeError(
            f"{quoted(given[0])} holds {len(data)} texts: give one text, or use `faithscope "
            f"evaluate --data {given[0]}`."
        )
    if lost := next(data.batches(1)).skipped:
        raise FaithscopeError(f"The text cannot be used: {lost[0].reason}.")
    return Shown(shown, data)
