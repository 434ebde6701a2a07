"""Grad-CAM and raw attention: of a ViT's last block, or of any layer by its name.

What a layer is asked for by name costs a pass of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import Evidence
from faithscope.methods.method import register_method
from faithscope.methods.trace import no_gradient
from faithscope.models.layers import (
    Unfit,
    as_feature_map,
    check_order,
    find_layer,
    in_a_row,
    output_of,
    propose_attention,
    propose_layer,
    received_attention,
    watching,
)


def _granularity(*, layer: str, **_: object) -> str:
    return "any" if layer else "patch"


def _reads_gradient(*, layer: str, **_: object) -> tuple[str, ...]:
    return () if layer else ("attention", "attention_gradient")


def _reads(*, layer: str) -> tuple[str, ...]:
    return () if layer else ("attention",)


@register_method(
    "grad_cam",
    granularity=_granularity,
    needs=_reads_gradient,
    in_papers=True,
    propose=propose_layer,
)
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
    found = _of_channels(evidence, str(layer)) if layer else _of_heads(evidence)
    found = found.clamp(min=0) if clamp else found
    if not minmax:
        return found
    low, high = found.amin((1, 2), keepdim=True), found.amax((1, 2), keepdim=True)
    return (found - low) / (high - low)


@register_method(
    "raw_attention",
    granularity=_granularity,
    needs=_reads,
    in_papers=True,
    propose=propose_attention,
)
def raw_attention(evidence: Evidence, *, layer: str = "") -> Tensor:
    r"""Attention that the read-out token pays in the last block, mean over heads.

    .. math:: \mathbb{E}_h A_{L-1}[\mathrm{CLS}]

    With `layer`, the name of any attention module that sees the whole of its grid, it is the
    attention there: of the class token if there is one, else the mean over all positions.
    """
    if layer:
        return _of_attention(evidence, str(layer))
    last = next(evidence.layers())
    row = (evidence.readout[:, None] @ last.attention.mean(1))[:, 0]
    return _patches(evidence, row)


def _of_heads(evidence: Evidence) -> Tensor:
    """Heads of the last block, weighted by their mean gradient over the patches: [B, h, w]."""
    last = next(evidence.layers())
    row = evidence.readout[:, None, None]
    gradient = (row @ last.attention_gradient)[..., 0, last.prefix_tokens :]
    attention = (row @ last.attention)[..., 0, :]
    return _patches(evidence, (gradient.mean(-1, keepdim=True) * attention).mean(1))


def _patches(evidence: Evidence, row: Tensor) -> Tensor:
    """One number a token as a map of the patches: [B, N] -> [B, h, w]."""
    grid = evidence.model.require_grid(evidence.images, "Attention")
    return row[:, evidence.prefix_tokens :].reshape(-1, *grid)


def _of_channels(evidence: Evidence, name: str) -> Tensor:
    """Channels of a layer, weighted by their mean gradient over its grid: [B, h, w]."""
    model, images = evidence.model, evidence.images
    layer = find_layer(model, name)
    with torch.enable_grad(), watching(layer) as calls:
        logits = model.logits(images.clone().requires_grad_(True))
        try:
            given = calls.only().output
            if in_a_row(given, images) is not None:
                check_order(model, layer, images, output_of)
            features = as_feature_map(model, given, images)
            chosen = logits.gather(1, evidence.target[:, None]).sum()
            (gradient,) = torch.autograd.grad(chosen, given, allow_unused=True)
            if gradient is None:
                raise Unfit("the logit does not depend on it")
            slopes = as_feature_map(model, gradient, images)
            if gradient.any() and not slopes.any():
                raise Unfit("the head reads only its class token, not its grid")
        except Unfit as why:
            raise _refused("grad_cam", model.name, name, why, "gives a feature map") from None
        except RuntimeError as error:
            raise no_gradient(model, error) from error
    return (slopes.mean((2, 3), keepdim=True) * features.detach()).sum(1)


def _of_attention(evidence: Evidence, name: str) -> Tensor:
    """What the class token, or every position, pays in a named attention module: [B, h, w]."""
    model, images = evidence.model, evidence.images
    module = find_layer(model, name)
    with torch.no_grad(), watching(module) as calls:
        model.logits(images)
    try:
        return received_attention(model, name, module, calls.only(), images)
    except Unfit as why:
        what = "is attention over the whole of its grid"
        raise _refused("raw_attention", model.name, name, why, what) from None


def _refused(method: str, model: str, layer: str, why: Exception, wanted: str) -> FaithscopeError:
    reason = f"{method} cannot read the layer '{layer}' of {model}: {why}"
    return FaithscopeError(f"{reason}; name another, which {wanted}.", reason=reason)
