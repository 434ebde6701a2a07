"""An image tower and a matrix of class embeddings as one classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from faithscope.errors import FaithscopeError, shown
from faithscope.models.model import Model
from faithscope.models.sources import wrap


class ZeroShot(nn.Module):
    r"""Scores images by the cosine of their embedding with the embedding of each class.

    .. math:: f_c(x) = s \, \frac{g(x)}{\|g(x)\|} \cdot \frac{e_c}{\|e_c\|} + b
    """

    class_embeddings: Tensor

    def __init__(self, tower: nn.Module, class_embeddings: Tensor, scale: float, bias: float):
        super().__init__()
        self.tower = tower
        self.scale, self.bias = scale, bias
        self.register_buffer("class_embeddings", F.normalize(class_embeddings, dim=-1))

    def forward(self, images: Tensor) -> Tensor:
        """Images [B, C, H, W] -> logits [B, classes]."""
        features = F.normalize(embedding(self.tower(images)), dim=-1)
        width, (classes, numbers) = features.shape[-1], self.class_embeddings.shape
        if width != numbers:
            advice = "take both from one model, projections included"
            if width == classes:  # as open_clip's build_zero_shot_classifier returns them
                advice = "give class_embeddings.T, one row a class"
            raise FaithscopeError(
                f"The tower gives embeddings of {width} numbers, but those of the classes have "
                f"{numbers}: {advice}."
            )
        logits: Tensor = self.scale * (features @ self.class_embeddings.T) + self.bias
        return logits


def embedding(output: Any) -> Tensor:
    """The embeddings [B, D] in whatever an image tower returns."""
    for name in ("image_embeds", "pooler_output"):
        found = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if isinstance(found, Tensor):
            output = found
            break
    if isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor) or output.ndim != 2:
        shape = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise FaithscopeError(
            f"The image tower must return embeddings [batch, numbers], got {shape}: give the tower "
            "alone, as open_clip's model.visual or Hugging Face's CLIPVisionModelWithProjection."
        )
    return output


def zero_shot(
    image_tower: nn.Module,
    class_embeddings: Tensor | NDArray[Any],
    scale: float | Tensor = 100.0,
    *,
    bias: float | Tensor = 0.0,
    name: str | None = None,
    classes: Sequence[str] | None = None,
    input_size: tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    transform: Callable[[Image.Image], Tensor] | None = None,
) -> Model:
    """Make a classifier of an image tower (CLIP, SigLIP, …) and one text embedding a class.

    How the texts were embedded is yours: prompts, templates and their averages.

    Args:
        image_tower: a module that maps images to embeddings [B, D]: open_clip's `model.visual`,
            Hugging Face's `CLIPVisionModelWithProjection`, a timm model with `num_classes=0`.
        class_embeddings: [classes, D]; each is scaled to length 1.
        scale: what cosines are multiplied by: `model.logit_scale.exp()` of CLIP and SigLIP.
        bias: what is added: `model.logit_bias` of SigLIP.
        name: how it is called in tables.
        classes: class names.
        input_size: (height, width) of its input, if it is not found.
        mean: per-channel mean of its normalisation.
        std: per-channel standard deviation of its normalisation.
        transform: PIL image to input tensor; made from size, mean and std if those are given.
    """
    if not isinstance(image_tower, nn.Module):
        raise FaithscopeError(
            f"fs.zero_shot takes a torch module as its image tower, got "
            f"{type(image_tower).__name__}."
        )
    if hasattr(image_tower, "get_image_features"):  # Hugging Face's whole CLIP
        raise FaithscopeError(
            f"{type(image_tower).__name__} holds a text tower too: give its image tower alone "
            "(CLIPVisionModelWithProjection)."
        )
    texts = class_embeddings
    if isinstance(texts, np.ndarray) and texts.dtype in (np.float16, np.float32, np.float64):
        texts = torch.from_numpy(np.ascontiguousarray(texts))
    if not isinstance(texts, Tensor) or texts.ndim != 2 or not texts.is_floating_point():
        kind = f" {texts.dtype} {list(texts.shape)}" if hasattr(texts, "shape") else ""
        raise FaithscopeError(
            "class_embeddings must be floats [classes, numbers], one row a class, got "
            f"{type(texts).__name__}{kind}."
        )
    if len(texts) < 2 or not torch.isfinite(texts).all() or not texts.any(dim=1).all():
        raise FaithscopeError(
            "class_embeddings must hold at least two classes, all of finite numbers and none of "
            "zeros only."
        )
    like = next((p for p in image_tower.parameters() if p.is_floating_point()), texts)
    module = ZeroShot(
        image_tower,
        texts.detach().to(like.device, like.dtype),
        _number("scale", scale),
        _number("bias", bias),
    )
    module.training = image_tower.training
    model = wrap(
        module,
        name=name or f"zero-shot {type(image_tower).__name__}",
        input_size=input_size,
        mean=mean,
        std=std,
        classes=classes,
        transform=transform,
    )
    if model.classes is not None and len(model.classes) != len(texts):
        raise FaithscopeError(
            f"There are {len(model.classes)} names of classes for {len(texts)} class_embeddings: "
            "give one for each row."
        )
    return model


def _number(what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = float("nan")
    if not abs(number) < float("inf"):
        raise FaithscopeError(f"{what} must be a finite number, got {shown(value)}.")
    return number
