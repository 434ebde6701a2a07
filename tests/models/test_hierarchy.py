"""Why a model has no single roll-out: one true sentence for every kind of attention."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import faithscope as fs
from faithscope.models.attention import deviation, tolerance
from faithscope.models.hierarchy import describe_hierarchy
from faithscope.models.vit import ViTView, find_vit

STAGES = "stages of different grids, of"
WHY = {
    "swin_tiny_patch4_window7_224": f"computed in windows, in 4 {STAGES} 96, 192, 384 and 768",
    "pvt_v2_b0": f"computed in 4 {STAGES} 32, 64, 160 and 256 channels, so there is no single",
    "hiera_tiny_224": f"computed in windows, in 4 {STAGES} 96, 192, 384 and 768 channels",
    "davit_tiny": f"computed in windows, in 4 {STAGES} 96, 192, 384 and 768",  # and of channels
    "test_coatnet": f"computed in 2 {STAGES} 64 and 96 channels",
    "crossvit_tiny_240": "over 2 sets of tokens side by side, of 96 and 192 channels",
    "efficientformer_l1": "it attends only in its last stages, behind others without queries",
    "edgenext_xx_small": "between channels (cross-covariance), not between positions",
    "mobilevitv2_050": "linear, without a matrix of probabilities between positions",
    "convit_tiny": "mixed with a second one, of positions, by a gate",  # 10 blocks of 12
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


def test_a_block_of_another_make_is_never_left_out_of_the_stack():
    class Mixer(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.qk, self.v = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    vit = timm.create_model("test_vit")
    vit.blocks[1].attn = Mixer(vit.embed_dim)
    found = find_vit(vit)
    assert found == "its block 'blocks.1' has no attention of a known make, unlike others"


def test_attention_within_windows_of_one_grid_is_called_so():
    options = {"depth": 2, "embed_dim": 24, "num_heads": 2, "img_size": 64, "num_classes": 3}
    sam = timm.create_model("samvit_base_patch16_224", window_size=2, **options).eval()
    with pytest.raises(fs.FaithscopeError) as raised:
        fs.explain(fs.wrap(sam), torch.randn(1, 3, 64, 64), "rollout")
    why = "attends within windows, so there is no single roll-out: choose methods that read no"
    assert why in str(raised.value)


def test_rounding_is_no_deviation_and_an_error_is():
    """A random model attends alike from every token: large values cancel in what is compared."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        exact = torch.randn(1, 1, 24, generator=generator, dtype=torch.float64)
        exact = exact + 1e-4 * torch.randn(1, 17, 24, generator=generator, dtype=torch.float64)
        recorded = exact.float()
        noise = torch.finfo(torch.float32).eps * 2 * torch.randn(1, 17, 24, generator=generator)
        base = recorded.mean(1, keepdim=True)
        assert deviation(recorded + noise, recorded, base) <= tolerance(torch.float32)
        other = recorded.roll(1, dims=1)  # the attention of another token
        assert deviation(other, recorded, base) > 0.5
