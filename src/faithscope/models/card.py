"""What a notebook shows of a model; nothing of it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from faithscope.errors import FaithscopeError
from faithscope.markup import card, facts, tag
from faithscope.models.bilstm_text import BiLSTMText
from faithscope.models.text_model import TextModel
from faithscope.models.vit import ViTView

if TYPE_CHECKING:
    from faithscope.models.model import Model

NAMED_CLASSES = 5
"""So many classes are named before the rest is only counted."""

GROUPS: Mapping[str, Callable[[Model], object]] = {
    "gradients": lambda model: None,
    "attention": lambda model: model.require_vit("That"),
    "hidden states and relevance": lambda model: model.require_vit("That").require_blocks("That"),
}
"""What methods read of a model, and who refuses it before anything is run; the rest is checked
when a method reads it."""


def model_html(model: Model) -> str:
    """The model as a card: what goes in and comes out, what is known of its inside."""
    known = {
        **_reads(model),
        "classes": _classes(model),
        "patches": _times(model.patch_size),
        "inside": _inside(model),
        "weights": f"{model.weights}, {_parameters(model)}",
    }
    refused = dict[str, list[str]]()
    for group, ask in GROUPS.items():
        refused.setdefault(_refusal(model, ask), []).append(group)
    known["for methods that read"] = ", ".join(refused.pop(""))
    refusals = (f"Not for methods that read {', '.join(of)}. {why}" for why, of in refused.items())
    return card(model.name, facts(known), *(tag("p", tag("small", line)) for line in refusals))


def _reads(model: Model) -> dict[str, str]:
    """What goes in."""
    if isinstance(model, TextModel):
        side = "" if model.side == "both" else f", the {model.side} text of pairs"
        return {
            "input": _texts(model),
            "units": f"{model.units}{side}",
            "vocabulary": f"{model.vocabulary_size:,} tokens",
        }
    return {"input": _times(model.input_size), "normalisation": _normalisation(model)}


def _texts(model: TextModel) -> str:
    if isinstance(model, BiLSTMText):
        return f"{'pairs of ' if model.is_paired else ''}texts of any length"
    return f"texts of up to {model.max_length:,} tokens"


def _refusal(model: Model, ask: Callable[[Model], object]) -> str:
    try:
        ask(model)
    except FaithscopeError as error:
        return str(error)
    return ""


def _times(size: Sequence[int] | None) -> str:
    return "×".join(map(str, size or ()))


def _normalisation(model: Model) -> str:
    if model.mean is None or model.std is None:
        return "not known"
    mean, std = (", ".join(f"{value:.3g}" for value in part) for part in (model.mean, model.std))
    return f"mean {mean}; std {std}"


def _classes(model: Model) -> str:
    if model.classes is None:
        return "not named"
    more = ", …" if len(model.classes) > NAMED_CLASSES else ""
    return f"{len(model.classes):,}: {', '.join(model.classes[:NAMED_CLASSES])}{more}"


def _inside(model: Model) -> str:
    if isinstance(model, TextModel) and isinstance(model.vit, ViTView):
        return f"a Transformer of {len(model.vit.attentions)} attention layers"
    if not isinstance(model.vit, ViTView):
        kind = "Transformer" if isinstance(model, TextModel) else "ViT"
        return f"{type(model.module).__name__}, not known as a {kind}"
    vit, count = model.vit, model.vit.prefix_tokens
    parts = [f"a ViT of {len(vit.attentions)} attention layers"]
    if count is not None:
        parts.append(f"{count} token{'s' * (count != 1)} before the patches")
    if readout := vit.readout or vit.hint:
        parts.append(f"read-out '{readout}'")
    return ", ".join(parts)


def _parameters(model: Model) -> str:
    count = sum(parameter.numel() for parameter in model.module.parameters())
    size = f"{count / 1e6:,.1f} million" if count >= 1e6 else f"{count:,}"
    return f"{size} parameters in {str(model.dtype).removeprefix('torch.')} on {model.device}"
