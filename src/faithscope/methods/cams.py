"""Objects of pytorch-grad-cam as methods, each in the grid of the layer that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import Evidence
from faithscope.methods.method import Method
from faithscope.methods.peers import (
    Live,
    check_same,
    left_alone,
    one_by_one,
    own_randomness,
    written,
)
from faithscope.models import Model


def cam_method(cam: Any) -> Method:
    """Wrap a CAM that the user has made; it explains our target class."""
    kind = type(cam).__name__
    hooks = getattr(cam, "activations_and_grads", None)
    if hooks is None or not isinstance(getattr(cam, "model", None), nn.Module):
        raise FaithscopeError(
            f"'{kind}' of pytorch-grad-cam is not an object that faithscope knows how to call: "
            "give a function (module, images, target) -> maps that calls it."
        )
    names = [str(written(layer, cam.model)) for layer in cam.target_layers]
    layers = names if len(names) < 4 else [*names[:2], "…", names[-1]]

    def check(model: Model) -> None:
        check_same(model, cam.model, kind)

    def explain(evidence: Evidence) -> Tensor:
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        images = evidence.images.clone().requires_grad_(True)  # the weights have no gradients
        targets = [ClassifierOutputTarget(int(target)) for target in evidence.target]
        with (
            left_alone(cam.model),
            own_randomness(evidence.seed),
            torch.enable_grad(),
            _watching(cam),
        ):
            try:
                with _in_its_grid(cam):
                    maps = cam(images, targets)
            except ValueError:
                if len({held.shape[2:] for held in hooks.activations}) == 1:
                    raise
                maps = cam(images, targets)  # of layers of several grids: at the image's size
        return torch.as_tensor(maps, device=images.device)

    def call(evidence: Evidence, layer: Live) -> Tensor:
        check(evidence.model)
        return one_by_one(explain, evidence) if kind == "RandomCAM" else explain(evidence)

    return Method(
        kind,
        call,
        summary=f"pytorch-grad-cam's {kind}",
        options={"layer": Live(cam.target_layers, "+".join(layers))},
        suits=check,
    )


@contextmanager
def _watching(cam: Any) -> Iterator[None]:
    """Let a CAM see its layers, to which it is blind between calls (`undisturbed`)."""
    hooks = cam.activations_and_grads
    before = hooks.activations, hooks.gradients
    with ExitStack() as stack:
        for layer in cam.target_layers:
            for see in (hooks.save_activation, hooks.save_gradient):
                stack.callback(layer.register_forward_hook(see).remove)
        try:
            yield
        finally:
            hooks.activations, hooks.gradients = before


@contextmanager
def _in_its_grid(cam: Any) -> Iterator[None]:
    """Let a CAM leave its map in the grid of its layer, where it scales layer by layer."""
    scales = type(cam).compute_cam_per_layer.__module__ == "pytorch_grad_cam.base_cam"
    if scales:
        cam.get_target_width_height = lambda images: None
    try:
        yield
    finally:
        if scales:
            del cam.get_target_width_height
