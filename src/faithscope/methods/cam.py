"""Grad-CAM: of a ViT's last attention, or of any layer by its name."""

from __future__ import annotations

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import Evidence
from faithscope.methods.method import register_method
from faithscope.methods.trace import no_gradient
from faithscope.models.layers import as_feature_map, find_layer, watching


def _granularity(*, layer: str, **_: object) -> str:
    return "any" if layer else "patch"


def _needs(*, layer: str, **_: object) -> tuple[str, ...]:
    return () if layer else ("attention", "attention_gradient")


@register_method("grad_cam", granularity=_granularity, needs=_needs, in_papers=True)
def grad_cam(
    evidence: Evidence, *, layer: str = "", clamp: bool = True, minmax: bool = False
) -> Tensor:
    r"""Last block's attention, or a layer's channels, weighted by their mean gradient.

    .. math:: \Big( \mathbb{E}_h \, \overline{G}_h \, A_{L-1}[h, \mathrm{CLS}] \Big)^+,
        \qquad \overline{G}_h = \mathrm{mean}_j \, G_{L-1}[h, \mathrm{CLS}, j]

    With `layer`, the name of any module that gives a feature map, it is that of Selvaraju et al.
    (2017), on the grid of that layer:

    .. math:: \Big( \sum_c \overline{G}_c \, F_c \Big)^+,
        \qquad \overline{G}_c = \mathrm{mean}_{ij} \, \frac{\partial f_t}{\partial F_{c, ij}}

    With `minmax` the map is scaled to [0, 1] as the published program does; a constant one is NaN.
    """
    found = _of_layer(evidence, str(layer)) if layer else _of_attention(evidence)
    found = found.clamp(min=0) if clamp else found
    if not minmax:
        return found
    low, high = found.amin((1, 2), keepdim=True), found.amax((1, 2), keepdim=True)
    return (found - low) / (high - low)


def _of_attention(evidence: Evidence) -> Tensor:
    """Heads of the last block, weighted by their mean gradient over the patches: [B, h, w]."""
    last = next(evidence.layers())
    row, prefix = evidence.readout[:, None, None], last.prefix_tokens
    gradient = (row @ last.attention_gradient)[..., 0, prefix:]
    attention = (row @ last.attention)[..., 0, prefix:]
    grid = evidence.model.require_grid(evidence.images, "The method 'grad_cam'")
    return (gradient.mean(-1, keepdim=True) * attention).mean(1).reshape(-1, *grid)


def _of_layer(evidence: Evidence, name: str) -> Tensor:
    """Channels of a layer, weighted by their mean gradient over its grid: [B, h, w]."""
    model, images = evidence.model, evidence.images
    with torch.enable_grad(), watching(find_layer(model, name)) as seen:
        logits = model.logits(images.clone().requires_grad_(True))
        given = seen[0] if seen else images
        if len(seen) != 1:
            raise _unfit(model.name, name, f"it runs {len(seen)} times in a forward pass")
        try:
            features = as_feature_map(model, given, images)
        except ValueError as error:
            raise _unfit(model.name, name, str(error)) from None
        chosen = logits.gather(1, evidence.target[:, None]).sum()
        try:
            (gradient,) = torch.autograd.grad(chosen, given, allow_unused=True)
        except RuntimeError as error:
            raise no_gradient(model, error) from error
    if gradient is None:
        raise _unfit(model.name, name, "the logit does not depend on it")
    slopes = as_feature_map(model, gradient, images)
    if gradient.any() and not slopes.any():
        raise _unfit(model.name, name, "the head reads only its class token, not its grid")
    return (slopes.mean((2, 3), keepdim=True) * features.detach()).sum(1)


def _unfit(model: str, layer: str, why: str) -> FaithscopeError:
    return FaithscopeError(
        f"grad_cam cannot read the layer '{layer}' of {model}: {why}; name another, whose output "
        "is a feature map that the head reads, as that of a stage or a block."
    )
