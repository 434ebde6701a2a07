"""Why a model has no single roll-out: one true sentence for every kind of attention."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from faithscope.models.hierarchy import describe_hierarchy
from faithscope.models.vit import ViTView, find_vit

STAGES = "stages of different grids, of"
WHY = {
    "swin_tiny_patch4_window7_224": f"computed in windows, in 4 {STAGES} 96, 192, 384 and 768",
    "pvt_v2_b0": f"computed in 4 {STAGES} 32, 64, 160 and 256 channels, so there is no single",
    "hiera_tiny_224": f"computed in windows, in 4 {STAGES} 96, 192, 384 and 768 channels",
    "test_coatnet": f"computed in 2 {STAGES} 64 and 96 channels",
    "crossvit_tiny_240": "over 2 sets of tokens side by side, of 96 and 192 channels",
    "efficientformer_l1": "it attends only in its last stages, behind others without queries",
    "edgenext_xx_small": "between channels (cross-covariance), not between positions",
    "mobilevitv2_050": "linear, without a matrix of probabilities between positions",
    "resnet18": "it has no attention between positions",
    "skresnet18": "it has no attention between positions",
    "mixer_s16_224": "it has no attention between positions",
}


@pytest.mark.parametrize(("name", "why"), WHY.items())
def test_the_sentence_names_the_cause(name, why):
    with torch.device("meta"):
        found = find_vit(timm.create_model(name))
    assert isinstance(found, str) and why in found


@pytest.mark.parametrize(
    "name", ["test_vit", "eva02_tiny_patch14_224", "vit_base_patch16_xp_224", "test_vit_relpos"]
)
def test_one_stack_is_none_of_these(name):
    with torch.device("meta"):
        module = timm.create_model(name)
    assert describe_hierarchy(module) is None
    assert isinstance(find_vit(module), ViTView)


def test_a_pool_of_another_width_is_no_stage():
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = timm.create_model("test_vit", num_classes=0)
            self.pool = nn.MultiheadAttention(16, 2, batch_first=True)

    assert isinstance(find_vit(Pooled()), ViTView)
