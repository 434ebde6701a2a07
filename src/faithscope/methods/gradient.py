"""Methods that read gradients of the target logit with respect to the input."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import Evidence
from faithscope.methods.method import register_method
from faithscope.methods.trace import no_gradient

Integral = Literal[
    "gausslegendre", "riemann_right", "riemann_left", "riemann_middle", "riemann_trapezoid"
]


def check_steps(rule: str, steps: int) -> None:
    """Refuse an integral of too few steps."""
    least = 2 if rule == "riemann_trapezoid" else 1
    if steps < least:
        raise FaithscopeError(
            f"integrated_gradients by {rule} needs steps of at least {least}, got {steps!r}."
        )


@register_method("gradient", granularity="pixel", needs=("gradient",))
def gradient(evidence: Evidence) -> Tensor:
    r"""L2 norm over channels of the input gradient.

    .. math:: \| \partial f_t / \partial x \|_2
    """
    norm: Tensor = torch.linalg.vector_norm(evidence.input_gradient(), dim=1)
    return norm


@register_method("input_x_gradient", granularity="pixel", needs=("gradient",))
def input_x_gradient(evidence: Evidence) -> Tensor:
    r"""Input times gradient, signed sum over channels.

    .. math:: \sum_c x_c \, \partial f_t / \partial x_c
    """
    return (evidence.images * evidence.input_gradient()).sum(dim=1)


@register_method(
    "integrated_gradients",
    granularity="pixel",
    needs=("path_gradient",),
    in_papers=True,
    in_half=True,
)
def integrated_gradients(
    evidence: Evidence, *, steps: int = 50, rule: Integral = "gausslegendre"
) -> Tensor:
    r"""Integrated gradients from zero in normalised space, signed sum over channels (captum).

    .. math:: \sum_c x_c \int_0^1 \frac{\partial f_t(\alpha x)}{\partial x_c} d\alpha
    """
    from captum.attr import IntegratedGradients

    check_steps(rule, steps)
    explainer = IntegratedGradients(evidence.read, multiply_by_inputs=True)
    try:
        attributions: Tensor = explainer.attribute(
            evidence.images,
            baselines=torch.zeros_like(evidence.images),
            target=evidence.target,
            n_steps=int(steps),
            method=rule,
            internal_batch_size=max(evidence.batch_size, len(evidence.images)),
        )
    except RuntimeError as error:
        raise no_gradient(evidence.model, error) from error
    return attributions.sum(dim=1) / evidence.scale
