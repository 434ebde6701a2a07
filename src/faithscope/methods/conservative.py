"""Conservative LRP for Transformers (Ali et al. 2022): a gradient through a simplified model."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import Evidence
from faithscope.methods.method import register_method
from faithscope.models.blocks import Anatomy, call


def _granularity(*, at: str, **_: object) -> str:
    return "pixel" if at == "pixels" else "patch"


@register_method(
    "conservative_lrp", granularity=_granularity, needs=("stream", "anatomy"), in_papers=True
)
def conservative_lrp(
    evidence: Evidence,
    *,
    at: Literal["tokens", "patches", "pixels"] = "tokens",
    norm: Literal["std", "mean_std", "none"] = "std",
    activation: Literal["derivative", "ratio"] = "derivative",
) -> Tensor:
    r"""Tokens times their gradient, attention and the norms' deviations held constant.

    .. math:: R_j = \sum_d e[j, d] \, \frac{\partial \tilde f_t}{\partial e[j, d]}

    e are the tokens with their positions. :math:`\tilde f` has the value of f, but its attention
    probabilities and the standard deviation of each LayerNorm (with norm="mean_std" the mean, too;
    with norm="none" neither) are constants. activation="ratio" takes
    :math:`\mathrm{GELU}(z) / z` as a constant, too. `at` reads the product at the "tokens", at the
    "patches" before positions are added, or at the "pixels".
    """
    anatomy = evidence.vit.require_anatomy("conservative_lrp")
    gradient = conservative_gradient(evidence, anatomy, norm=norm, activation=activation)
    rows, columns = evidence.model.require_grid(evidence.images, "conservative_lrp")
    of_patches = gradient[:, evidence.vit.prefix_tokens :]
    if at == "tokens":
        tokens = evidence.tensor("embedded")[:, evidence.vit.prefix_tokens :]
        return (tokens * of_patches).sum(-1).reshape(-1, rows, columns)
    if isinstance(anatomy.stem, str):
        raise FaithscopeError(
            f"conservative_lrp cannot reach the {at} of {evidence.model.name}: {anatomy.stem}. "
            "Use at=tokens."
        )
    patches, images = evidence.tensor("patches"), evidence.images
    anatomy.stem.operands(patches, evidence.tensor("embedded"), images)  # checks the stem
    if at == "patches":
        return (patches * of_patches).sum(-1).reshape(-1, rows, columns)
    anatomy.stem.check_projection(images, patches)
    weight = anatomy.stem.projection.weight
    return (images * anatomy.stem.project_back(of_patches.mT, weight, images)).sum(1)


def conservative_gradient(
    evidence: Evidence, anatomy: Anatomy, *, norm: str, activation: str
) -> Tensor:
    """The gradient of the simplified model at the embedded tokens [B, N, D], block by block."""
    stream, target = evidence.tensors("stream"), evidence.target
    keep = partial(_norm, constant=norm)
    activate = call if activation == "derivative" else _ratio
    with torch.enable_grad():
        tokens = stream[-1].clone().requires_grad_(True)
        logits = anatomy.head.run(tokens, norm=keep).logits
        anatomy.head.check(logits, evidence.tensor("logits"))
        chosen = logits.gather(1, target[:, None]).sum()
        (gradient,) = torch.autograd.grad(chosen, tokens)
        for block, entered, left in reversed(
            list(zip(anatomy.blocks, stream, stream[1:], strict=False))
        ):
            tokens = entered.clone().requires_grad_(True)
            steps = block.run(tokens, norm=keep, activate=activate, detach=True)
            block.check(steps, left)
            (gradient,) = torch.autograd.grad(steps.out, tokens, gradient)
        tokens = evidence.tensor("embedded").clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(keep(anatomy.pre_norm, tokens), tokens, gradient)
    return gradient


def _norm(module: nn.Module, values: Tensor, *, constant: str) -> Tensor:
    """A LayerNorm whose deviation, and mean if asked, are constants."""
    if isinstance(module, nn.Identity) or constant == "none":
        return call(module, values)
    if not isinstance(module, nn.LayerNorm):
        raise FaithscopeError(
            f"conservative_lrp knows LayerNorm, but this model has {type(module).__name__}: choose "
            "other methods."
        )
    mean = values.mean(-1, keepdim=True)
    deviation = (values.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt().detach()
    scaled = (values - (mean.detach() if constant == "mean_std" else mean)) / deviation
    if module.weight is not None:
        scaled = scaled * module.weight
    return scaled if module.bias is None else scaled + module.bias


def _ratio(module: nn.Module, values: Tensor) -> Tensor:
    ratio: Tensor = (module(values) / values).masked_fill(values == 0, 0)
    return values * ratio.detach()
