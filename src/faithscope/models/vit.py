"""The facts about a ViT that explanations need: blocks, patches, prefix tokens, read-out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from os.path import commonpath

from torch import nn

from faithscope.errors import FaithscopeError
from faithscope.models.attention import AttentionView, find_attentions
from faithscope.models.blocks import Anatomy, HeadView, find_anatomy, find_head


@dataclass(frozen=True)
class ViTView:
    """What is known about a ViT.

    `prefix_tokens` stand before the patches (class, distillation, registers); `readout` says which
    token the head reads: "class" (the first) or "mean" (of the patches). `blocks` are the modules
    around the attentions, none if they were not found; `head` and `anatomy`, which is every part of
    the model, may be a sentence saying what is not known.
    """

    attentions: tuple[AttentionView, ...]
    prefix_tokens: int
    readout: str = "class"
    blocks: tuple[nn.Module, ...] = ()
    head: HeadView | str = "its head was not found"
    anatomy: Anatomy | str = "its blocks were not found"

    def require_blocks(self, needed_by: str) -> tuple[nn.Module, ...]:
        """The blocks, or an error that names who needs them."""
        if self.blocks:
            return self.blocks
        raise FaithscopeError(
            f"{needed_by} needs the model's blocks, which were not found: keep them in an "
            "nn.ModuleList or nn.Sequential, or choose other methods."
        )

    def require_anatomy(self, needed_by: str) -> Anatomy:
        """Every part of the model, or an error that says which one is not known."""
        if isinstance(self.anatomy, Anatomy):
            return self.anatomy
        raise FaithscopeError(
            f"{needed_by} needs to know every part of the model, but {self.anatomy}: choose "
            "methods that read only attention or gradients."
        )


def find_vit(
    module: nn.Module,
    *,
    attention: Sequence[AttentionView | nn.Module] | None = None,
    prefix_tokens: int | None = None,
    readout: str | None = None,
) -> ViTView | str:
    """Read the ViT facts off a module, each one overridden where given.

    Returns:
        The view, or a sentence naming the fields of `fs.wrap` that are missing.
    """
    if attention is None:
        attentions = _find_stack(module)
    else:
        attentions = tuple(_as_view(item, module) for item in attention)
    prefix_tokens = _prefix_tokens(module) if prefix_tokens is None else prefix_tokens
    readout = readout or _readout(module)
    if attentions and prefix_tokens is not None and readout is not None:
        named = _find_blocks(module, attentions)
        head = find_head(module, prefix_tokens=prefix_tokens, readout=readout)
        anatomy = find_anatomy(module, named, head)
        blocks = tuple(block for _, block, _ in named)
        return ViTView(attentions, prefix_tokens, readout, blocks, head, anatomy)
    missing = [
        field
        for field, lacking in (
            ("attention=[…]", not attentions),
            ("prefix_tokens=…", prefix_tokens is None),
            ("readout='class' or 'mean'", readout is None),
        )
        if lacking
    ]
    return f"{type(module).__name__} was not recognised as one: give {', '.join(missing)}"


def _find_stack(module: nn.Module) -> tuple[AttentionView, ...]:
    """The attention modules if they form one stack of blocks; none if some are side by side."""
    found = find_attentions(module)
    paths = [view.name.replace(".", "/") for view in found]
    forks = {commonpath(pair) for pair in pairwise(paths)}
    return found if len(forks) <= 1 else ()


def _find_blocks(
    module: nn.Module, attentions: Sequence[AttentionView]
) -> list[tuple[str, nn.Module, AttentionView]]:
    """The member of the innermost list of modules around each attention; none if one has none."""
    names = {id(child): name for name, child in module.named_modules()}
    found = []
    for view in attentions:
        parts = names.get(id(view.module), "").split(".")
        for length in reversed(range(1, len(parts))):
            parent = module.get_submodule(".".join(parts[: length - 1]))
            if isinstance(parent, nn.ModuleList | nn.Sequential):
                name = ".".join(parts[:length])
                block = module.get_submodule(name)
                if not isinstance(block, nn.ModuleList):  # which is never called
                    found.append((name, block, view))
                break
    distinct = {id(block) for _, block, _ in found}
    return found if len(distinct) == len(attentions) else []


def _as_view(item: AttentionView | nn.Module, module: nn.Module) -> AttentionView:
    if isinstance(item, AttentionView):
        return item
    if not isinstance(item, nn.Module):
        raise FaithscopeError(
            "fs.wrap(attention=[…]) takes attention modules or AttentionViews, got "
            f"{type(item).__name__}."
        )
    views = find_attentions(item)
    if len(views) != 1:
        raise FaithscopeError(
            f"fs.wrap(attention=[…]) takes attention modules or AttentionViews; "
            f"{type(item).__name__} holds {len(views)} attention modules of a known make."
        )
    names = {id(child): name for name, child in module.named_modules()}
    return replace(views[0], name=names.get(id(views[0].module), views[0].name))


def find_patch_size(
    module: nn.Module, input_size: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Find the patch size in pixels where the libraries keep it."""
    for child in module.modules():
        grid = as_pair(getattr(child, "grid_size", None))  # timm; also of a convolutional stem
        whole = as_pair(getattr(child, "img_size", None)) or input_size  # of this grid
        if grid and whole:
            return whole[0] // grid[0], whole[1] // grid[1]
        size = as_pair(getattr(child, "patch_size", None))
        if size:
            return size
    convolutions = [child for child in module.modules() if isinstance(child, nn.Conv2d)]
    if len(convolutions) == 1 and convolutions[0].kernel_size == convolutions[0].stride:
        return int(convolutions[0].stride[0]), int(convolutions[0].stride[1])
    return None


def as_pair(value: object) -> tuple[int, int] | None:
    """Two whole numbers above 0, or one for both; None if it is anything else."""
    both = (value, value) if isinstance(value, int) else value
    if not isinstance(both, Sequence) or len(both) != 2:
        return None
    high, wide = both
    if not (isinstance(high, int) and isinstance(wide, int)) or min(high, wide) < 1:
        return None
    return int(high), int(wide)


def _prefix_tokens(module: nn.Module) -> int | None:
    declared = getattr(module, "num_prefix_tokens", None)  # timm: class, distillation, registers
    if isinstance(declared, int):
        return declared
    names = {name.rpartition(".")[2] for name, _ in module.named_parameters()}
    if not names & {"cls_token", "class_token", "pos_embedding", "position_embeddings"}:
        return None
    config = getattr(module, "config", None)
    single = len(names & {"cls_token", "class_token"}) + len(names & {"distillation_token"})
    return single + int(getattr(config, "num_register_tokens", 0) or 0)


def _readout(module: nn.Module) -> str | None:
    if getattr(getattr(module, "config", None), "use_mean_pooling", False):  # Hugging Face BEiT
        return "mean"
    pool = getattr(module, "global_pool", "token")
    if pool == "avg" and getattr(module, "pool_include_prefix", False):
        return None
    return {"token": "class", "avg": "mean"}.get(str(pool))
