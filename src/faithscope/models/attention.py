"""Reading attention off a module that nobody modified.

An `AttentionView` names one attention module of the user's model. Its probabilities are seen by
running the module once more on what it was called with, under a tape (tape.py); whatever happens
to queries and keys on the way (norms, rotary positions, a bias of relative positions) is the
module's own. Every view checks itself against what the module really returned, so an unknown
variant is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from faithscope.errors import FaithscopeError
from faithscope.models.hierarchy import describe_attention
from faithscope.models.tape import Call, Part, Tape

QKV = tuple[Tensor, Tensor, Tensor]

Places = list[tuple[int, set[int]]]
_PLACES: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], Places]] = WeakKeyDictionary()
"""What was found of a module, by the shape of its tokens."""

_TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}
_ROUNDINGS = {torch.float64: 64, torch.float32: 32}
_PROJECTIONS = (
    ("qkv",),
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("q_lin", "k_lin", "v_lin"),
    ("to_q", "to_k", "to_v"),
    ("to_qkv",),
    ("Wqkv",),
    ("in_proj", "attn_drop"),
    ("c_attn",),
    ("query_proj", "key_proj", "value_proj"),
    ("query_key_value",),
)
"""Names under which attention modules keep the linear layers that make queries, keys, values."""


Refuse = Callable[[float], FaithscopeError]
"""What to say of something that is off by so much."""


@dataclass(eq=False)
class Checks:
    """Comparisons of what was computed twice: read one by one, or all at the end of `gathered`.

    Reading a number waits for a GPU to finish, so what runs many blocks reads once, at its end.
    """

    _waiting: list[tuple[Tensor, float, Refuse]] | None = field(default=None, init=False)

    def require(self, off: Tensor, limit: float, refuse: Refuse) -> None:
        """Refuse what is off by more than the limit, or by NaN."""
        if self._waiting is None:
            _settle(off, limit, refuse)
        else:
            self._waiting.append((off, limit, refuse))

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Read at the end what is compared inside; the first that is off is raised, come what may.

        Nothing that was made inside may be used before.
        """
        waiting: list[tuple[Tensor, float, Refuse]] = []
        self._waiting = waiting
        try:
            yield
        finally:
            self._waiting = None
            for held in waiting:
                _settle(*held)


def _settle(off: Tensor, limit: float, refuse: Refuse) -> None:
    found = float(off)
    if not found <= limit:
        raise refuse(found)


@dataclass(frozen=True, eq=False)
class Seen:
    """Attention probabilities [B, heads, N, N] and what the module gave when they were seen."""

    attention: Tensor
    output: Tensor
    leaves: tuple[Tensor, ...]

    def gradient(self, returned_gradient: Tensor) -> Tensor:
        r"""The gradient that reaches the attention probabilities [B, heads, N, N].

        .. math:: G = \frac{\partial f}{\partial o} v^\top, \qquad o = A v
        """
        return self.by_head(torch.autograd.grad(self.output, self.leaves, returned_gradient))

    def by_head(self, gradients: Sequence[Tensor]) -> Tensor:
        """Gradients at the leaves as one at the attention probabilities [B, heads, N, N]."""
        images, kind = len(self.attention), self.attention.dtype
        parts = [part.reshape(images, -1, *part.shape[-2:]) for part in gradients]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).to(kind)


@dataclass(frozen=True)
class AttentionView:
    """One attention module, seen the same way in every library.

    A module that computes softmax attention by torch's functions needs no more than its name. For
    one that does not (a compiled kernel, say), write down what it does: `qkv` maps its input
    [B, N, D] to queries, keys and values [B, heads, N, d]; `project` maps the mixed values
    [B, N, heads·d] to what the module returns; `scale` multiplies the product of queries and keys.
    """

    name: str
    module: nn.Module
    scale: float | None = None
    qkv: Callable[[Tensor], QKV] | None = None
    project: Callable[[Tensor], Tensor] = lambda mixed: mixed

    def look(
        self,
        call: Call,
        *,
        gradient: bool = False,
        count: int | None = None,
        part: Part | None = None,
        checks: Checks | None = None,
    ) -> Seen:
        """See the attention of a call, on the condition that it explains what the module gave.

        Rows of the probabilities must sum to 1, and the output must be the one recorded. With
        `gradient`, gradients with respect to the probabilities can be taken afterwards. `count` is
        the number of tokens of a module alone, whose input may be of any layout, and which may have
        a single query, the class token's. Where the module has been run once more already, as
        `part` of its block, it is not run again.
        """
        checks = Checks() if checks is None else checks
        tokens = call.tokens.detach()
        with torch.set_grad_enabled(gradient):
            seen = self._see(call, tokens, part) if self.qkv is None else self._compute(tokens)
        shape, queries = tuple(seen.attention.shape), {1, count}
        if count is None:
            count = tokens[0, ..., 0].numel()
            queries = {count}
        if shape[0] != len(tokens) or shape[2] not in queries or shape[3] != count:
            raise self._unknown(
                f"its attention is {list(shape[-2:])} for {len(tokens)}×{count} tokens: it looks "
                "at windows, or at other keys"
            )
        rows = (seen.attention.detach().sum(-1) - 1).abs().max()
        axes = tuple(range(1, call.output.ndim - 1))
        base = None if shape[2] == 1 else call.output.mean(dim=axes, keepdim=True)
        off = deviation(seen.output, call.output, base)
        checks.require(
            rows,
            max(tolerance(held.dtype) for held in seen.leaves),
            lambda _: self._unknown("its attention does not sum to 1 over the keys"),
        )
        if gradient and not seen.output.requires_grad:
            raise self._unknown("no gradients reach its attention")
        checks.require(
            off,
            tolerance(seen.output.dtype),
            lambda found: self._unknown(f"recomputed output off by {found:.1e}"),
        )
        if self.qkv is None and shape[2] == count == tokens[0, ..., 0].numel():
            for place, touched in places_of(self.module, call):
                if not touched <= {place}:
                    raise self._unknown("it moves its tokens, or mixes them, beside attention")
        return seen

    def _see(self, call: Call, tokens: Tensor, part: Part | None) -> Seen:
        if part is None:
            tape, _, output = run_on_tape(self.module, call, leaves=torch.is_grad_enabled())
        else:
            tape, output = part
        found = [seen.probabilities for seen in tape.attentions]
        beside = tape.mixer(output)
        changed = tape.changed + (tape.altered if beside is not None or not found else [])
        if changed:
            raise self._unknown(
                f"its attention probabilities are changed by '{changed[0]}' before they weigh the "
                "values"
            )
        if not found:
            raise self._unknown("no softmax over tokens was seen in it")
        if beside is not None:
            raise self._unknown(f"'{beside}' lets its tokens meet beside attention")
        self._check_tokens(call, tape)
        heads = [self._by_head(held, call) for held in found]
        if len({held.shape for held in heads}) > 1:
            raise self._unknown("its attention has several shapes")
        joined = heads[0] if len(heads) == 1 else torch.cat(heads, dim=1)
        # a softmax may run in another type than the model
        return Seen(joined.to(tokens.dtype), output, tuple(found))

    def _by_head(self, found: Tensor, call: Call) -> Tensor:
        """Probabilities as [B, heads, N, M], also of a module that has images and heads in one."""
        images = len(call.tokens)
        if found.ndim == 5 and 1 in found.shape[1:3]:  # heads and one window, in either order
            found = found.flatten(1, 2)
        if found.ndim == 4:
            return found
        if found.ndim != 3 or len(found) % images:
            raise self._unknown(f"its attention has the shape {list(found.shape)}")
        with torch.no_grad():  # an image's heads must follow each other
            other = call.tokens.detach().clone()
            other[0] = other[0].roll(1, -1) + 1
            again, _, _ = run_on_tape(self.module, call, other)
        moved = (again.attentions[0].probabilities - found.detach()).abs().amax((1, 2)) > 0
        if moved[len(found) // images :].any():
            raise self._unknown("it mixes the images of a batch")
        return found.reshape(images, -1, *found.shape[1:])

    def _check_tokens(self, call: Call, tape: Tape) -> None:
        """Where tokens and channels are equally many, make sure that it is tokens that are mixed.

        The value of a token depends on that token alone.
        """
        for place, seen in enumerate(tape.attentions):
            if seen.value.shape[-1] != seen.value.shape[-2]:
                continue
            with torch.no_grad():
                other = call.tokens.detach().clone()
                last = other.view(len(other), -1, other.shape[-1])[:, -1]
                last += 1 + last.abs()
                again, _, _ = run_on_tape(self.module, call, other)
            moved = again.attentions[place].value[..., :-1, :] - seen.value[..., :-1, :]
            if moved.detach().abs().max() > 1e-3 * seen.value.detach().abs().max():
                raise self._unknown("it mixes channels, not tokens")

    def _compute(self, tokens: Tensor) -> Seen:
        """The attention as the user's own view says."""
        assert self.qkv is not None
        query, key, value = self.qkv(tokens)
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        attention = (query @ key.mT * scale).softmax(dim=-1).detach()
        attention.requires_grad_(torch.is_grad_enabled())
        mixed = (attention @ value).transpose(1, 2).flatten(2)
        return Seen(attention, self.project(mixed), (attention,))

    def _unknown(self, reason: str) -> FaithscopeError:
        reason = describe_attention(self.module) or reason
        what = f"the attention module '{self.name}' does something faithscope does not know"
        return FaithscopeError(
            f"{what[0].upper()}{what[1:]} ({reason}), so its attention cannot be trusted: use "
            "methods that need no attention, or give fs.wrap(module, attention=[…]) your own "
            "AttentionView for each block.",
            reason=f"{what} ({reason})",
        )


def places_of(module: nn.Module, call: Call) -> Places:
    """Of some tokens, which ones their columns of attention weigh, and which rows make them.

    Whoever reads attention believes that column j weighs token j, and that row i makes token i,
    but a module may put its tokens in another order. It is asked once per size.
    """
    known, key = _PLACES.setdefault(module, {}), tuple(call.tokens.shape[1:])
    if key not in known:
        with torch.enable_grad():
            known[key] = _find_places(module, call.detached())
    return known[key]


def _find_places(module: nn.Module, call: Call) -> Places:
    count = call.tokens[0, ..., 0].numel()
    tokens = call.tokens.clone().requires_grad_(True).clone()
    tape, tokens, output = run_on_tape(module, call, tokens, leaves=True)
    if output.shape != tokens.shape:
        return []
    found: Places = []
    for seen in tape.attentions:
        if seen.probabilities.shape[-2:] != (count, count):
            continue
        for place in {0, count // 3, count - 1}:
            made = output.flatten(1, -2)[:, place]
            found.append((place, _touched(seen.value[..., place, :], tokens, count)))
            found.append((place, _touched(made, seen.probabilities, count)))
    return found


def _touched(part: Tensor, whole: Tensor, count: int) -> set[int]:
    """Which of the rows of tokens or probabilities a tensor that was made of them depends on."""
    if not part.requires_grad:
        return set()
    weights = torch.randn(part.shape, generator=torch.Generator().manual_seed(0)).to(part)
    (found,) = torch.autograd.grad(
        (part * weights).sum(), whole, retain_graph=True, allow_unused=True
    )
    if found is None:
        return set()
    size = found.abs().amax(-1).reshape(-1, count).amax(0)
    return set(size.nonzero().flatten().tolist())


def run_on_tape(
    module: nn.Module,
    call: Call,
    tokens: Tensor | None = None,
    *,
    leaves: bool = False,
    whole: bool = False,
    graph: bool = False,
    within: nn.Module | None = None,
) -> tuple[Tape, Tensor, Tensor]:
    """Run a module once more on what it was called with, or on other tokens, under a tape.

    With `whole`, the tape notices what it has not seen: whatever depends on the tokens says so in
    its graph, of which nothing else is kept but with `graph`, for gradients. The tape's `parts` are
    then the calls of the module `within`.

    Returns:
        The tape, the tokens it follows, and what the module gave.
    """
    tape = Tape(leaves=leaves)
    tokens = call.tokens.detach() if tokens is None else tokens
    with torch.set_grad_enabled(leaves or whole), ExitStack() as stack:
        if whole:
            if not graph:
                stack.enter_context(saved_tensors_hooks(lambda _: None, lambda held: held))
            tokens = tokens.detach().requires_grad_(True).clone()
        tape.root(tokens)
        with tape.watch(module, within):
            output = call.again(module, tokens)
    return tape, tokens, output


def deviation(recomputed: Tensor, recorded: Tensor, base: Tensor | None = None) -> Tensor:
    """How far a recomputed tensor is from the recorded one, relative to what differs from `base`.

    The base is what would be there anyway (a bias, a residual stream) and must not hide an error;
    the rounding of the recorded values is none. Where large terms cancel, it goes with them.
    """
    if recomputed.shape != recorded.shape:
        return torch.tensor(torch.inf)
    recomputed, recorded = recomputed.detach(), recorded.detach()
    epsilon = torch.finfo(recorded.dtype).eps * _ROUNDINGS.get(recorded.dtype, 2)
    size = recorded.abs()
    rounding = torch.maximum(size, size.max() / 4).mul_(epsilon)
    error = (recomputed - recorded).abs_().sub_(rounding).max().clamp(min=0)
    if base is not None:
        size = (recorded - base.detach()).abs_()
    return error / size.max().clamp_min(1e-30)


def tolerance(dtype: torch.dtype) -> float:
    """The deviation that the rounding of a type explains."""
    return _TOLERANCES.get(dtype, 3e-2)


def check_recomputed(
    checks: Checks, part: str, recomputed: Tensor, recorded: Tensor, base: Tensor | None = None
) -> None:
    """Refuse a part of the model that gives something else when it is run once more."""
    if base is not None and base.shape != recorded.shape:
        base = None
    off = deviation(recomputed, recorded, base)

    def refuse(found: float) -> FaithscopeError:
        return FaithscopeError(
            f"{part} gives something else when it is run once more (off by {found:.1e}): methods "
            "that need every part of the model cannot be trusted with it. Use methods that read "
            "only attention or gradients.",
            reason=f"{part} gives something else when it is run once more",
        )

    checks.require(off, tolerance(recorded.dtype), refuse)


def find_attentions(module: nn.Module) -> tuple[AttentionView, ...]:
    """Find every module that makes queries, keys and values, in the order they are defined."""
    return tuple(
        AttentionView(name, child)
        for name, child in module.named_modules()
        if looks_like_attention(child)
    )


def looks_like_attention(module: nn.Module) -> bool:
    """Whether a module has the linear layers of attention, by the names that libraries use."""
    if isinstance(module, nn.MultiheadAttention):
        return True
    children = dict(module.named_children())
    return any(all(name in children for name in names) for names in _PROJECTIONS)
