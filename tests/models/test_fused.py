"""Fused attention: its gradients are taken in a fixed order, and nothing else is told."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import randn
from faithscope.models.fused import exact, repeatable
from families import FAMILIES


def attended(x: torch.Tensor) -> torch.Tensor:
    """Two attentions, the second on what the first gave, and what is no attention."""
    once = F.scaled_dot_product_attention(x, 2 * x, x)
    return F.scaled_dot_product_attention(once, x, x).sum()


def modes_of(output: torch.Tensor) -> list[tuple[str, bool]]:
    """Of every operation, whether orders are fixed when its gradient is taken."""
    seen, waiting, held = [], [output.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in held:
            continue
        held.add(node)
        waiting += [before for before, _ in node.next_functions]
        name = node.name()
        node.register_prehook(
            lambda _, name=name: seen.append((name, torch.are_deterministic_algorithms_enabled()))
        )
    output.backward()
    return seen


def test_only_attention_is_told_to_keep_an_order():
    made = modes_of(exact(attended(randn(2, 3, 16, 8).requires_grad_(True))))
    assert {fixed for name, fixed in made if name.startswith("ScaledDotProduct")} == {True}
    assert {fixed for name, fixed in made if not name.startswith("ScaledDotProduct")} == {False}
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("family", ["timm_vit", "torchvision_vit", "hf_vit"])
def test_attention_is_found_in_models(family):
    images = FAMILIES[family].images().requires_grad_(True)
    made = FAMILIES[family].module()(images)
    logits = made if isinstance(made, torch.Tensor) else made.logits
    found = [fixed for name, fixed in modes_of(exact(logits.sum())) if "ScaledDotProduct" in name]
    assert found and all(found)


def test_what_was_asked_of_torch_before_holds_again():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        exact(attended(randn(2, 3, 16, 8).requires_grad_(True))).backward()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_was_asked_of_the_compiler_holds_again(monkeypatch):
    import torch._inductor.config as compiler

    monkeypatch.setattr(compiler, "deterministic", True)
    exact(attended(randn(2, 3, 16, 8).requires_grad_(True))).backward()
    assert compiler.deterministic


def test_gradients_are_the_same_numbers():
    x, y = (randn(2, 3, 16, 8).requires_grad_(True) for _ in range(2))
    attended(x).backward()
    exact(attended(y)).backward()
    assert torch.equal(x.grad, y.grad)


def test_a_cpu_is_left_alone():
    with repeatable(torch.device("cpu"), fused=True):
        assert torch.backends.cuda.math_sdp_enabled()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_gradients_on_a_gpu_repeat_bit_by_bit():
    layer = nn.TransformerEncoderLayer(128, 2, batch_first=True).cuda().half().eval()
    x = torch.randn(64, 200, 128, device="cuda", dtype=torch.float16).requires_grad_(True)
    found = []
    with repeatable(x.device, fused=True):
        for _ in range(10):
            (gradient,) = torch.autograd.grad(exact(layer(x)).square().sum(), x)
            found.append(gradient)
    assert all(torch.equal(one, found[0]) for one in found)
    assert not torch.are_deterministic_algorithms_enabled()
