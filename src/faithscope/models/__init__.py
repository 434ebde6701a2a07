"""Adapters over unmodified timm, Hugging Face, torchvision and custom modules."""

from faithscope.models.attention import AttentionView
from faithscope.models.device import choose_device
from faithscope.models.model import Model, PassCounter, cannot_run, converted, undisturbed
from faithscope.models.sources import (
    BUNDLE,
    SOURCES,
    as_model,
    bundled_models,
    load_model,
    wrap,
)
from faithscope.models.text_model import TextModel
from faithscope.models.tokens import TokenInputs
from faithscope.models.trained import CARDS
from faithscope.models.vit import ViTView
from faithscope.models.zero_shot import zero_shot

__all__ = [
    "BUNDLE",
    "CARDS",
    "SOURCES",
    "AttentionView",
    "Model",
    "PassCounter",
    "TextModel",
    "TokenInputs",
    "ViTView",
    "as_model",
    "bundled_models",
    "cannot_run",
    "choose_device",
    "converted",
    "load_model",
    "undisturbed",
    "wrap",
    "zero_shot",
]
