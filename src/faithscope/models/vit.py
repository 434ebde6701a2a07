"""The facts about a ViT that explanations need: blocks, patches, prefix tokens, read-out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from faithscope.errors import FaithscopeError
from faithscope.models.attention import AttentionView, find_attentions
from faithscope.models.hierarchy import (
    KEY,
    attention_parts,
    describe_attention,
    describe_hierarchy,
    describe_stages,
)

READOUTS = ("class", "mean", "all", "attention")
"""What a head may read: the first token, the mean of the patches or of all tokens, or tokens
weighted by an attention pool."""


@dataclass(frozen=True)
class ViTView:
    """What is known about a ViT before it is run.

    `prefix_tokens` stand before the patches (class, distillation, registers), None if they are to
    be counted; `readout` is what the head was said to read, which is checked, and `hint` what the
    model's own settings say. `blocks` are the modules around the attentions by name, none if they
    were not found; `outside` are other attention modules, which may pool what leaves the blocks but
    not precede them.
    """

    attentions: tuple[AttentionView, ...]
    prefix_tokens: int | None
    readout: str | None = None
    hint: str | None = None
    blocks: Mapping[str, nn.Module] = field(default_factory=dict)
    outside: Mapping[str, nn.Module] = field(default_factory=dict)

    def require_blocks(self, needed_by: str) -> Mapping[str, nn.Module]:
        """The blocks, or an error that names who needs them."""
        if self.blocks:
            return self.blocks
        raise FaithscopeError(
            f"{needed_by} needs the model's blocks, which were not found: keep them in an "
            "nn.ModuleList or nn.Sequential, or choose other methods.",
            reason="its blocks were not found",
        )

    def count_prefix(self, tokens: int, patches: int) -> int | None:
        """The tokens before the patches, of so many; None if that cannot be right."""
        extra = tokens - patches
        if self.prefix_tokens is None:
            return extra if extra in (0, 1) else None
        return extra if extra == self.prefix_tokens else None


def find_vit(
    module: nn.Module,
    *,
    attention: Sequence[AttentionView | nn.Module] | None = None,
    prefix_tokens: int | None = None,
    readout: str | None = None,
) -> ViTView | str:
    """Read the ViT facts off a module, each one overridden where given.

    Returns:
        The view, or the reason why there is none.
    """
    if attention is None:
        stack = _find_stack(module)
        if isinstance(stack, str):
            return describe_hierarchy(module) or stack
        stages = describe_stages(module, (view.module for _, _, view in stack))
        if stages is not None or find_patch_size(module, None) is None:
            seen = any(attention_parts(module))  # by other names than projections of texts have
            reason = (describe_hierarchy(module) if seen else None) or stages
            if reason is not None:
                return reason
    else:
        stack = _given_stack(module, attention)
    blocks = {name: block for name, block, _ in stack if block is not None}
    whole = len(blocks) == len(stack) and len({id(block) for block in blocks.values()}) == len(
        stack
    )
    around = list(_around(module, stack[0][0]))
    counts = (_prefix_tokens(child) for child in around)
    hints = (_readout(child) for child in around)
    return ViTView(
        attentions=tuple(view for _, _, view in stack),
        prefix_tokens=next((count for count in counts if count is not None), None)
        if prefix_tokens is None
        else prefix_tokens,
        readout=readout,
        hint=next((hint for hint in hints if hint is not None), None),
        blocks=blocks if whole else {},
        outside={} if attention is not None else _outside(module, list(blocks.values())),
    )


def _outside(module: nn.Module, blocks: list[nn.Module]) -> dict[str, nn.Module]:
    """Attention modules that are in none of the blocks."""
    inside = {id(child) for block in blocks for child in block.modules()}
    parts = {part.name: part.module for part in attention_parts(module)}
    parts |= {view.name: view.module for view in find_attentions(module)}
    return {name: part for name, part in parts.items() if id(part) not in inside}


Placed = tuple[str, nn.Module | None, AttentionView]
"""The name of a block, the block if it is a module that is called, and its attention."""


def _find_stack(module: nn.Module) -> list[Placed] | str:
    """The attention modules if they form one stack of blocks; else the reason why not.

    A stack is a list of modules, each of which holds one attention module, or several side by side.
    Attention outside of it (a pool) belongs to the head.
    """
    found = find_attentions(module)
    if not found:
        return "it has no attention modules of a known make"
    levels = {view.name: _levels(module, view.name) for view in found}
    if len(found) > 1:
        indices: dict[str, set[str]] = {}
        for places in levels.values():
            for container, index in places:
                indices.setdefault(container, set()).add(index)
        levels = {
            name: [place for place in places if len(indices[place[0]]) > 1]
            for name, places in levels.items()
        }
    inside = [view for view in found if levels[view.name]]
    if not inside:
        return "its attention modules are not in a list of blocks"
    outer = {levels[view.name][0][0] for view in inside}
    if len(outer) > 1:
        return (
            f"it has attention in {len(outer)} places side by side or in stages, not in one stack"
        )
    groups: dict[str, list[AttentionView]] = {}
    for view in inside:
        groups.setdefault(".".join(filter(None, levels[view.name][0])), []).append(view)
    stack: list[Placed] = []
    for name, views in groups.items():
        block = module.get_submodule(name)
        called = None if isinstance(block, nn.ModuleList | nn.ModuleDict) else block
        if len(views) == 1:
            stack.append((name, called, views[0]))
        elif called is not None and hasattr(block, "attns"):  # timm's blocks of parallel branches
            stack.append((name, called, AttentionView(name, block)))
        else:
            return "its blocks form stages, each with a stack of attention modules of its own"
    return _unknown_block(module, outer.pop(), list(groups)) or stack


def _unknown_block(module: nn.Module, container: str, known: list[str]) -> str | None:
    """Why some blocks of a list are no stack: others attend as well, in a way nobody knows."""
    kinds = {type(module.get_submodule(name)) for name in known}
    for place, member in module.get_submodule(container).named_children():
        name = ".".join(filter(None, (container, place)))
        if name == known[-1]:
            return None  # what comes behind belongs to the head
        parts = [part.module for part in attention_parts(member)]
        if name not in known and (parts or type(member) in kinds):
            odd = next(filter(None, map(describe_attention, parts)), None)
            return odd or f"its block '{name}' has no attention of a known make, unlike others"
    return None


def _levels(module: nn.Module, name: str) -> list[tuple[str, str]]:
    """The lists of modules around a module, outermost first, and the place in each."""
    parts, found = name.split("."), []
    for length in range(1, len(parts) + 1):
        container = ".".join(parts[: length - 1])
        if isinstance(module.get_submodule(container), nn.ModuleList | nn.Sequential):
            found.append((container, parts[length - 1]))
    return found


def _given_stack(module: nn.Module, attention: Sequence[AttentionView | nn.Module]) -> list[Placed]:
    """The given attention modules, and the member of the innermost list around each."""
    stack: list[Placed] = []
    names = {id(child): name for name, child in module.named_modules()}
    for item in attention:
        view = _as_view(item, module)
        name = names.get(id(view.module), "")
        levels = _levels(module, name) if name else []
        block: nn.Module | None = None
        if levels:
            name = ".".join(filter(None, levels[-1]))
            block = module.get_submodule(name)
        stack.append((name, None if isinstance(block, nn.ModuleList) else block, view))
    return stack


def _around(module: nn.Module, name: str) -> Iterator[nn.Module]:
    """The modules around a named one, innermost first."""
    parts = name.split(".")
    for length in reversed(range(len(parts))):
        yield module.get_submodule(".".join(parts[:length]))


def _as_view(item: AttentionView | nn.Module, module: nn.Module) -> AttentionView:
    if isinstance(item, AttentionView):
        return item
    if not isinstance(item, nn.Module):
        raise FaithscopeError(
            "fs.wrap(attention=[…]) takes attention modules or AttentionViews, got "
            f"{type(item).__name__}."
        )
    names = {id(child): name for name, child in module.named_modules()}
    return AttentionView(names.get(id(item), type(item).__name__), item)


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
    known = ("cls_token", "class_token", "distillation_token")
    single = 0
    for child in module.modules():
        if not any(KEY.fullmatch(name) for name, _ in child.named_children()):  # a pool's query
            owned = dict(child.named_parameters(recurse=False))
            single += sum(_rows(owned[name]) for name in known if name in owned)
    config = getattr(module, "config", None)
    registers = int(getattr(config, "num_register_tokens", 0) or 0)
    return single + registers if single else None


def _rows(tokens: nn.Parameter) -> int:
    """How many tokens a parameter holds, [D] or [1, N, D]."""
    return tokens.shape[-2] if tokens.ndim > 1 else 1


def _readout(module: nn.Module) -> str | None:
    if getattr(getattr(module, "config", None), "use_mean_pooling", False):  # Hugging Face BEiT
        return "mean"
    pool = getattr(module, "global_pool", "")
    whole = getattr(module, "pool_include_prefix", False)
    return {"token": "class", "avg": "all" if whole else "mean", "map": "attention"}.get(str(pool))
