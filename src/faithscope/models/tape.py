"""What a module computes, seen operation by operation while it runs.

A `Tape` is a mode of torch: under it the user's own module runs as it is, and every operation on
tensors that depend on its input is noted with its operands. Whatever library a module comes from,
and however its blocks are built, its attention, linear layers, sums and norms are then known with
the very values the model computed. Fused attention is written out, since its probabilities exist
nowhere else; whoever reads a tape checks that the module gave the same as without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from faithscope.errors import FaithscopeError

ELEMENTWISE = frozenset(
    """
    gelu silu relu relu_ relu6 tanh sigmoid softplus elu selu celu leaky_relu hardswish hardsigmoid
    hardtanh mish prelu logsigmoid softsign clamp clip dropout dropout1d feature_dropout
    alpha_dropout
    """.split()
)
NORMS = frozenset("layer_norm rms_norm group_norm batch_norm instance_norm normalize".split())
MOVES = frozenset(
    """
    reshape view transpose permute unbind chunk split tensor_split split_with_sizes __getitem__ cat
    concat concatenate stack expand expand_as repeat repeat_interleave contiguous flatten unflatten
    squeeze unsqueeze to type_as type float double half bfloat16 clone narrow select movedim
    swapaxes swapdims roll index_select tile t T mT view_as reshape_as broadcast_to __get__ neg pad
    """.split()
)
SUMS = frozenset("add __add__ __radd__ add_ __iadd__".split())
DIFFERENCES = frozenset("sub __sub__ __rsub__ rsub subtract sub_ __isub__".split())
PRODUCTS = frozenset("mul __mul__ __rmul__ multiply mul_ __imul__".split())
QUOTIENTS = frozenset("div __truediv__ true_divide divide div_".split())
LENGTHS = frozenset("norm linalg_norm linalg_vector_norm vector_norm".split())
MATRIX_PRODUCTS = frozenset("matmul __matmul__ bmm mm".split())
OPERANDS = ("input", "other", "mat2", "tensor2")
"""What matrix products call their operands, the first one first."""
POOLS = frozenset("mean sum adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d avg_pool2d".split())
MODELLED = frozenset("to type_as expand_as view_as reshape_as".split())
"""Operations on their first operand alone: of a second one only type and shape matter."""
KEEPING = frozenset(
    "dropout to type_as contiguous float half double bfloat16 clone reshape view flatten".split()
)
"""What may happen to attention probabilities without changing them."""
MASKS = frozenset("masked_fill masked_fill_".split())
"""What may hide scores from a softmax."""
SELECTIONS = frozenset("__getitem__ select".split())
"""Of all moves those that may take one of several."""

TOKENWISE = frozenset({"norm", "pass", "sum", "gate", "linear"})
"""Kinds of operations that treat every token by itself, where the shape says one for each."""

WHOLE = re.compile(
    r"norm|gelu|silu|swish|relu|mish|tanh|sigmoid|activation|dropout|drop_?path|stochasticdepth"
    r"|identity|layer_?scale",
    re.IGNORECASE,
)
"""Classes of modules that are one step: they treat every token, or every number, by itself."""
CONTAINERS = (nn.Linear, nn.modules.conv._ConvNd, nn.MultiheadAttention, nn.Embedding)


@dataclass(frozen=True, eq=False)
class Node:
    """One operation: its kind, what it was called with and what it gave.

    `inputs` are the operands that depend on the tape's roots. `weight` is that of a linear layer,
    [out, in]. Of attention, `inputs` are queries, keys and values as far as they depend on roots.
    """

    kind: str
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weight: Tensor | None = None
    attention: Attention | None = None

    @property
    def output(self) -> Tensor:
        """What it gave, of an operation that gives one tensor."""
        return self.outputs[0]

    def call(self, known: Mapping[int, Tensor]) -> Any:
        """Run the operation again, with other tensors in the place of some."""
        args, kwargs = swapped(self.args, known), swapped(dict(self.kwargs), known)
        return self.function(*args, **kwargs)


@dataclass(frozen=True, eq=False)
class Attention:
    """One softmax attention: heads [B, heads, N, d], probabilities [B, heads, N, M].

    `product` is that of queries and keys, `scores` what the softmax read of it, scaled and masked,
    `mixed` that of probabilities and values.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    product: Tensor
    scores: Tensor
    probabilities: Tensor
    mixed: Tensor


@dataclass(eq=False)
class _Softmax:
    """Probabilities that have not met their values yet."""

    query: Tensor
    key: Tensor
    product: Tensor
    scores: Tensor
    probabilities: Tensor


class Tape(TorchFunctionMode):
    """Notes what happens to tensors that depend on its roots, while it is open.

    With `leaves`, attention probabilities become leaves of the autograd graph, so that gradients
    with respect to them can be taken.
    """

    def __init__(self, *, leaves: bool = False, is_open: bool = True) -> None:
        super().__init__()
        self.leaves = leaves
        self.is_open = is_open
        self.nodes: list[Node] = []
        self.attentions: list[Attention] = []
        self.changed: list[str] = []
        """What overwrote attention probabilities before they weighed values."""
        self.altered: list[str] = []
        """What else was made of attention probabilities; a copy that is only stored is harmless."""
        self.is_whole = True
        """Whether no operation took something that depends on roots in ways nobody saw."""
        self.foreign: dict[int, Tensor] = {}
        """By their ids, tensors that depend on the model's input in other ways than by roots."""
        self.roots: list[Tensor] = []
        self.parts: list[Part] = []
        """What a module within noted at each of its calls."""
        self._live: dict[int, Tensor] = {}
        self._places: dict[int, int] = {}
        self._made_by: dict[int, Node] = {}
        self._softmaxes: dict[int, _Softmax] = {}
        self._versions: dict[int, int] = {}
        self._used: set[int] = set()
        self._inside = 0

    def root(self, tensor: Tensor) -> Tensor:
        """Follow what depends on this tensor."""
        self._follow(tensor)
        self.roots.append(tensor)
        return tensor

    def _follow(self, tensor: Tensor) -> None:
        self._live[id(tensor)] = tensor
        self._versions[id(tensor)] = tensor._version

    def is_overwritten(self, tensor: Tensor) -> bool:
        """Whether a tensor is no more what it was when it was noted."""
        return tensor._version != self._versions.get(id(tensor), tensor._version)

    def place(self, tensor: Tensor) -> int:
        """After how many operations a tensor was made."""
        return self._places.get(id(tensor), -1)

    def uses(self, tensor: Tensor) -> int:
        """How many operations have read a tensor."""
        return sum(any(held is tensor for held in node.inputs) for node in self.nodes)

    def maker(self, tensor: Tensor) -> Node | None:
        """The operation that made a tensor; None of a root."""
        return self._made_by.get(id(tensor))

    def is_live(self, value: Any) -> bool:
        """Whether a value is a tensor that depends on a root."""
        return isinstance(value, Tensor) and id(value) in self._live

    def _is_foreign(self, tensor: Tensor) -> bool:
        return id(tensor) in self.foreign

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not self.is_open or self._inside:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        values = args[:1] if name in MODELLED else (args, kwargs)
        inputs = tuple(tensor for tensor in tensors_in(values) if id(tensor) in self._live)
        if name != "__get__" and any(map(self._is_foreign, tensors_in(values))):
            self.is_whole = False
        if not inputs or name.startswith("new_") or name.endswith("_like"):
            return func(*args, **kwargs)
        if any(held.grad_fn is not None for held in tensors_in(values) if not self.is_live(held)):
            self.is_whole = False
        if name == "scaled_dot_product_attention":
            return self._fused(func, args, dict(kwargs))
        if name == "multi_head_attention_forward":
            return self._multi_head(func, args, dict(kwargs), inputs)
        if name == "softmax":
            return self._softmax(func, args, kwargs, inputs)
        if name == "einsum" and (plain := self._einsum(args)) is not None:
            return plain
        if name in MATRIX_PRODUCTS and kwargs.keys() <= set(OPERANDS):
            args, kwargs = (*args, *(kwargs[key] for key in OPERANDS if key in kwargs)), {}
        if name in MATRIX_PRODUCTS and id(args[0]) in self._softmaxes:
            return self._weigh(func, args, kwargs)
        kept = self._before_adding(name, args)
        result = func(*args, **kwargs)
        if kept is not None and self.is_overwritten(args[0]):
            self._rename(args[0], kept)
            func, args, inputs = torch.add, (kept, *args[1:]), (kept,)
        self._watch_probabilities(name, inputs, result)
        kind, weight = self._kind(name, args, kwargs, inputs, result)
        if name in QUOTIENTS and kind == "norm":
            inputs = inputs[:1]
        self._note(kind, name, func, args, kwargs, inputs, result, weight)
        return result

    def way_back(self, *tensors: Tensor) -> Iterator[Node]:
        """The operations that made tensors, last first; what an attention was made of is not."""
        waiting, seen = list(tensors), set[int]()
        while waiting:
            node = self.maker(waiting.pop())
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            if node.kind != "attention":
                waiting += node.inputs

    def mixer(self, *tensors: Tensor) -> str | None:
        """An operation beside attention that lets tokens meet on the way to tensors, if any."""
        return next((node.name for node in self.way_back(*tensors) if _may_mix(node)), None)

    # What is written in place

    def _before_adding(self, name: str, args: tuple[Any, ...]) -> Tensor | None:
        """A copy of what a constant will be added to in place, as positions are (`x += …`)."""
        if name not in ("__iadd__", "add_") or not self.is_live(args[0]) or self.is_live(args[1]):
            return None
        if self.maker(args[0]) is None or id(args[0]) in self._used:
            return None
        kept: Tensor = args[0].clone()
        return kept

    def _rename(self, overwritten: Tensor, kept: Tensor) -> None:
        """Let the copy stand for what a tensor was before it was overwritten."""
        old = self._made_by.pop(id(overwritten))
        outputs = tuple(kept if made is overwritten else made for made in old.outputs)
        node = replace(old, outputs=outputs)
        self.nodes[self.nodes.index(old)] = node
        self._made_by |= {id(made): node for made in outputs}
        self._places[id(kept)] = self._places[id(overwritten)]
        self._follow(kept)
        del self._live[id(overwritten)]

    def _kind(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        inputs: tuple[Tensor, ...],
        result: Any,
    ) -> tuple[str, Tensor | None]:
        """What an operation is, as far as rules of relevance care, and its weight."""
        first, *others = (*args, *kwargs.values())
        same = isinstance(result, Tensor) and result.shape == inputs[0].shape
        if name == "linear" and len(inputs) == 1 and first is inputs[0]:
            return "linear", kwargs.get("weight", args[1] if len(args) > 1 else None)
        if name == "addmm" and len(args) == 3 and not kwargs and len(inputs) == 1:
            return ("linear", args[2].mT) if args[1] is inputs[0] else ("unknown", None)
        if name in ("conv2d", "conv1d") and len(inputs) == 1 and first is inputs[0]:
            return "convolution", None
        if name in MATRIX_PRODUCTS:
            if len(inputs) == 1 and first is inputs[0] and others[0].ndim == 2:
                return "linear", others[0].mT
            return ("matrix product" if len(inputs) == 2 else "unknown"), None
        if name in NORMS and len(inputs) == 1 and same:
            return "norm", None
        if name in ELEMENTWISE and len(inputs) == 1 and same:
            return "pass", None
        if name in MOVES:
            return "move", None
        if name == "both_sides":
            return "both sides", None
        if name in POOLS and len(inputs) == 1:
            return "pool", None
        if name in SUMS | DIFFERENCES | PRODUCTS | QUOTIENTS:
            return self._arithmetic(name, first, others[0] if others else None, result), None
        return "unknown", None

    def _arithmetic(self, name: str, first: Any, second: Any, result: Tensor) -> str:
        """Sums and products of two tensors, or of one and a constant."""
        both = self.is_live(first) and self.is_live(second)
        live, other = (first, second) if self.is_live(first) else (second, first)
        if result.shape != live.shape:
            return "unknown"
        if name in SUMS:
            if both:
                return "sum" if first.shape == second.shape else "unknown"
            return "sum" if isinstance(other, Tensor) and _places(other) > 1 else "pass"
        if name in DIFFERENCES:
            return "unknown" if both else "pass"
        if name in PRODUCTS:
            return ("gate" if first.shape == second.shape else "unknown") if both else "pass"
        if both and first.shape == result.shape and self._is_length(second, first):
            return "norm"
        return "unknown" if both or live is second else "pass"

    def _is_length(self, divisor: Tensor, vector: Tensor) -> bool:
        """Whether a divisor is the length of the vector it divides: `f / f.norm(dim=-1, …)`."""
        node = self.maker(divisor)
        while node is not None and node.name in ("clamp", "clamp_min", "expand_as"):
            node = self.maker(node.inputs[0])
        return node is not None and node.name in LENGTHS and node.inputs[0] is vector

    def _note(
        self,
        kind: str,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        inputs: tuple[Tensor, ...],
        result: Any,
        weight: Tensor | None = None,
        attention: Attention | None = None,
    ) -> None:
        outputs = tuple(
            tensor
            for tensor in tensors_in(result)
            if tensor.is_floating_point() and tensor.layout == torch.strided
        )
        fresh = tuple(tensor for tensor in outputs if id(tensor) not in self._live)
        written = tuple(tensor for tensor in inputs if self.is_overwritten(tensor))
        if not fresh and not (written and (outputs or name == "__setitem__")):
            return
        if not fresh:  # written in place: what stood there is lost to whoever has read it
            lost = len(inputs) > 1 or kind not in ("pass", "norm") or id(inputs[0]) in self._used
            kind, outputs = "unknown" if lost else kind, written
            if not lost:
                self._follow(inputs[0])
        node = Node(kind, name, function, args, kwargs, inputs, outputs, weight, attention)
        self.nodes.append(node)
        self._used |= {id(tensor) for tensor in inputs if id(tensor) not in map(id, written)}
        for tensor in fresh:
            self._follow(tensor)
            self._made_by[id(tensor)] = node
            self._places[id(tensor)] = len(self.nodes)

    # Attention

    def _probabilities(self, made: Tensor) -> Tensor:
        return made.detach().requires_grad_(True) if self.leaves else made

    def _fused(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Tensor:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        query, key, value = (given[name] for name in names[:3])
        if given.get("enable_gqa"):
            repeats = query.shape[-3] // key.shape[-3]
            with self:
                key = key.repeat_interleave(repeats, -3)
                value = value.repeat_interleave(repeats, -3)
        bias = _bias(query, key, given.get("attn_mask"), bool(given.get("is_causal")))
        scale = given.get("scale")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return self._attend(query, key, value, scale, bias)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None
    ) -> Tensor:
        """The plain formula of attention, noted as one operation."""
        product = query @ key.mT
        scores = product * scale if bias is None else product * scale + bias
        made = scores.softmax(-1)
        if bias is not None:
            made = made.nan_to_num(0.0)  # a query that may look at nothing
        chances = self._probabilities(made)
        mixed: Tensor = chances @ value
        seen = Attention(query, key, value, product, scores, chances, mixed)
        self._note_attention(seen, scale, bias)
        return mixed

    def _note_attention(
        self, seen: Attention, scale: float | None = None, bias: Tensor | None = None
    ) -> None:
        def again(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            factor = query.shape[-1] ** -0.5 if scale is None else scale
            return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=factor)

        self.attentions.append(seen)
        operands = (seen.query, seen.key, seen.value)
        inputs = tuple(tensor for tensor in operands if id(tensor) in self._live)
        self._note(
            "attention", "attention", again, operands, {}, inputs, seen.mixed, attention=seen
        )

    def _multi_head(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: tuple[Tensor, ...],
    ) -> Any:
        """Write out torch's own multi-head attention [N, B, D]: linear layers and attention."""
        query, key, value, _, heads, weight, bias, bias_k, _, zero, _, out, out_bias = args[:13]
        masked = kwargs.get("key_padding_mask") is not None or kwargs.get("is_causal")
        parts_of = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        weights = [kwargs.get(part) for part in parts_of] if weight is None else weight.chunk(3)
        plain = bias_k is None and not zero and not masked and all(w is not None for w in weights)
        if not plain or query.ndim != 3:
            result = func(*args, **kwargs)
            self._note("unknown", "multi_head_attention", func, args, kwargs, inputs, result)
            return result
        mask = kwargs.get("attn_mask")
        if mask is not None and mask.ndim == 3:
            mask = mask.unflatten(0, (-1, heads))

        def split(tokens: Tensor) -> Tensor:  # [N, B, D] -> [B, heads, N, d]
            return tokens.reshape(*tokens.shape[:2], heads, -1).permute(1, 2, 0, 3)

        with self:
            if weight is not None and query is key and key is value:
                parts = [*F.linear(query, weight, bias).chunk(3, dim=-1)]
            else:
                biases = (None,) * 3 if bias is None else bias.chunk(3)
                operands = zip((query, key, value), weights, biases, strict=True)
                parts = [F.linear(tokens, part, offset) for tokens, part, offset in operands]
            queries, keys, values = map(split, parts)
            mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
            result = F.linear(mixed.permute(2, 0, 1, 3).flatten(2), out, out_bias)
        if not kwargs.get("need_weights", True) or not self.attentions:
            return result, None
        paid = self.attentions[-1].probabilities.detach()
        return result, paid.mean(1) if kwargs.get("average_attn_weights", True) else paid

    def _softmax(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        inputs: tuple[Tensor, ...],
    ) -> Tensor:
        """Probabilities of attention if they were made of a product of queries and keys."""
        result: Tensor = func(*args, **kwargs)
        product = self._behind(inputs[0])
        if product is None:
            self._note("unknown", "softmax", func, args, kwargs, inputs, result)
            return result
        chances = self._probabilities(result)
        first, second = product.args[:2]
        query, factor = self._unscaled(first)
        with self:
            key = second.mT
        found = _Softmax(query, key, product.output / factor, inputs[0], chances)
        self._softmaxes[id(chances)] = found
        self._follow(chances)
        return chances

    def _unscaled(self, query: Tensor) -> tuple[Tensor, float]:
        """Queries before they were multiplied by a number, as fused kernels know them."""
        node = self.maker(query)
        number = None if node is None else scaled_by(node)
        return (node.inputs[0], number) if node is not None and number else (query, 1.0)

    def _behind(self, scores: Tensor) -> Node | None:
        """The matrix product that scores were scaled and shifted from."""
        node = self.maker(scores)
        while node is not None and (
            node.kind in ("pass", "sum", "move") or (node.name in MASKS and len(node.inputs) == 1)
        ):
            node = self.maker(node.inputs[0])
        fits = node is not None and node.kind == "matrix product"
        return node if fits and len(node.inputs) == 2 else None  # type: ignore[union-attr]

    def _watch_probabilities(self, name: str, inputs: tuple[Tensor, ...], result: Any) -> None:
        """Probabilities may be dropped out of, converted or laid out anew; the rest changes them.

        A changed copy may only be stored, or averaged to look at.
        """
        for tensor in inputs:
            held = self._softmaxes.get(id(tensor))
            if held is None or not isinstance(result, Tensor):
                continue
            if name in KEEPING and result.shape[-2:] == tensor.shape[-2:]:
                self._softmaxes[id(result)] = held
            elif not name.startswith("__get") and name not in ("size", "dim", "numel"):
                self.altered.append(name)

    def _weigh(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Tensor:
        """Probabilities meet their values."""
        mixed: Tensor = func(*args, **kwargs)
        held = self._softmaxes[id(args[0])]
        if self.is_overwritten(args[0]):
            self.changed.append("an operation in place")
        parts = (held.query, held.key, held.product, held.scores, held.probabilities)
        if args[0].shape != held.probabilities.shape:  # images and heads were made one axis
            axes = args[0].shape[:-2]
            with self:
                parts = (
                    *(part.reshape(*axes, *part.shape[-2:]) for part in parts[:4]),
                    args[0],
                )
        query, key, product, scores, probabilities = parts
        self._note_attention(Attention(query, key, args[1], product, scores, probabilities, mixed))
        return mixed

    def _einsum(self, args: tuple[Any, ...]) -> Tensor | None:
        """A sum over one axis of two tensors, written as their matrix product; None of others."""
        equation, *operands = args
        operands = list(operands[0]) if isinstance(operands[0], list | tuple) else operands
        sides = str(equation).replace(" ", "").split("->")
        if len(sides) != 2 or "." in sides[0] or len(operands) != 2 or sides[0].count(",") != 1:
            return None
        (one, two), made = sides[0].split(","), sides[1]
        batch = [axis for axis in one if axis in two and axis in made]
        inner = [axis for axis in one if axis in two and axis not in made]
        rows = [axis for axis in one if axis not in two]
        columns = [axis for axis in two if axis not in one]
        order = [*batch, *rows, *columns]
        if len(inner) != 1 or len(columns) != 1 or sorted(order) != sorted(made):
            return None
        if not rows or (len(rows) > 1 and batch):
            return None
        with self:
            first = _arranged(operands[0], [one.index(axis) for axis in (*batch, *rows, *inner)])
            last = _arranged(operands[1], [two.index(axis) for axis in (*batch, *inner, *columns)])
            return _arranged(first @ last, [order.index(axis) for axis in made])

    # Modules that are one step

    def _lengths(self) -> tuple[int, ...]:
        noted = (self.nodes, self.attentions, self.changed, self.altered)
        return tuple(len(held) for held in noted)

    def _since(self, starts: tuple[int, ...]) -> Tape:
        """A tape of only what was noted since then."""
        part = Tape()
        nodes, attentions, changed, altered = starts
        part.nodes, part.attentions = self.nodes[nodes:], self.attentions[attentions:]
        part.changed, part.altered = self.changed[changed:], self.altered[altered:]
        part._made_by = {id(made): node for node in part.nodes for made in node.outputs}
        return part

    @contextmanager
    def watch(self, module: nn.Module, within: nn.Module | None = None) -> Iterator[Tape]:
        """Run under the tape; norms, activations and the like inside `module` are one step each.

        What a module `within` notes is kept apart, too, as `parts`.
        """
        handles: list[Any] = []
        starts: list[tuple[int, ...]] = []

        def start(*_: Any) -> None:
            starts.append(self._lengths())

        def stop(_: nn.Module, args: Any, output: Any) -> None:
            self.parts.append((self._since(starts.pop()), first_tensor(output)))

        def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
            self._inside += 1

        def leave(child: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self._inside -= 1
            first = next(iter((*args, *kwargs.values())), None)
            if self.is_open and isinstance(first, Tensor) and self._is_foreign(first):
                self.is_whole = False
            if self._inside or not self.is_open or not isinstance(first, Tensor):
                return
            if not self.is_live(first):
                return
            whole = isinstance(output, Tensor) and output.shape == first.shape
            kind = ("norm" if _is_norm(child) else "pass") if whole else "unknown"
            self._note(kind, type(child).__name__, child, args, kwargs, (first,), output)

        try:
            for child in module.modules():
                if is_whole(child):
                    handles.append(child.register_forward_pre_hook(enter, with_kwargs=True))
                    handles.append(
                        child.register_forward_hook(leave, with_kwargs=True, always_call=True)
                    )
            if within is not None:
                handles.append(within.register_forward_pre_hook(start))
                handles.append(within.register_forward_hook(stop))
            with self:
                yield self
        finally:
            self._inside = 0
            for handle in handles:
                handle.remove()

    def check_whole(self, where: str, output: Tensor) -> None:
        """Make sure that everything was seen, and is still what it was when it was noted."""
        held = (tensor for node in self.nodes for tensor in (*node.inputs, *node.outputs))
        if any(self.is_overwritten(tensor) for tensor in held):
            what = f"{where} overwrites tensors in place (as `x += …` does)"
            advice = "write `x = x + …`, or choose"
        elif not self.is_whole and self.foreign:
            what = f"{where} reads more than what leaves the last block"
            advice = "choose"
        elif not self.is_whole or not self.is_live(output):
            what = f"{where} runs something that cannot be looked into (compiled, or not torch's)"
            advice = "choose"
        else:
            return
        raise FaithscopeError(
            f"{what[0].upper()}{what[1:]}, so it cannot be followed: {advice} methods that read "
            "only attention or gradients.",
            reason=what,
        )

    def replay(self, root: Tensor, value: Tensor, wanted: Tensor, where: str) -> Tensor:
        """Compute `wanted` again from another value of a root, operation by operation."""
        if wanted is root:
            return value
        self.check_whole(where, wanted)
        known = {id(root): value}
        for node in self.nodes:
            if any(id(tensor) in known for tensor in node.inputs):
                again = list(tensors_in(node.call(known)))
                known |= {id(old): new for old, new in zip(node.outputs, again, strict=True)}
        return known[id(wanted)]


Part = tuple[Tape, Tensor]
"""What a module noted on a tape, and what it gave."""


def _may_mix(node: Node) -> bool:
    """Whether an operation may let tokens meet."""
    if node.kind == "convolution":
        weight = node.kwargs["weight"] if "weight" in node.kwargs else node.args[1]
        return bool(weight.shape[2:].numel() > 1)
    if node.kind == "pool":  # of a stack it is a sum
        return node.output.shape != node.inputs[0].shape[1:]
    return node.kind not in TOKENWISE | {"move", "attention"}


def by_token(values: Tensor, tokens: Tensor) -> Tensor | None:
    """Values that have one vector for each of the tokens, as [B, N, D]; None of any others.

    Tokens may be a row [B, N, D] or a grid [B, H, W, D], values of a grid also [B, D, H, W].
    """
    if values.ndim == tokens.ndim and values.shape[:-1] == tokens.shape[:-1]:
        return values.flatten(1, -2)
    if values.ndim == tokens.ndim == 4 and values.shape[2:] == tokens.shape[1:3]:
        return values.flatten(2).mT
    return None


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a module: what it got and what it gave."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Tensor
    autocast: tuple[tuple[str, torch.dtype], ...] = field(default_factory=lambda: _autocast())

    @property
    def tokens(self) -> Tensor:
        """What the module is about: its first argument."""
        found: Tensor = next(iter(tensors_in((self.args, self.kwargs))))
        return found

    def detached(self) -> Call:
        """The same outside of any graph."""
        known = {id(tensor): tensor.detach() for tensor in tensors_in((self.args, self.kwargs))}
        args, kwargs = swapped(self.args, known), swapped(dict(self.kwargs), known)
        return replace(self, args=args, kwargs=kwargs, output=self.output.detach())

    def again(self, module: nn.Module, tokens: Tensor | None = None) -> Tensor:
        """Run the module once more, perhaps on other tokens."""
        old = self.tokens
        known = {} if tokens is None else {id(old): tokens}
        with ExitStack() as stack:
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype))
            result = module(*swapped(self.args, known), **swapped(dict(self.kwargs), known))
        return first_tensor(result)


def _autocast() -> tuple[tuple[str, torch.dtype], ...]:
    """Where autocast is on right now, and in which type."""
    devices = ("cpu", "cuda")
    return tuple((d, torch.get_autocast_dtype(d)) for d in devices if torch.is_autocast_enabled(d))


def _arranged(tensor: Tensor, axes: list[int]) -> Tensor:
    """A tensor with its axes in another order; itself if they are."""
    return tensor if axes == sorted(axes) else tensor.permute(axes)


def first_tensor(output: Any) -> Tensor:
    """What a module gave, or the first of several things it gave."""
    found: Tensor = output if isinstance(output, Tensor) else next(iter(tensors_in(output)))
    return found


def scaled_by(node: Node) -> float | None:
    """The number that an operation multiplies its one operand by; None of another operation."""
    if node.name not in PRODUCTS or len(node.args) != 2 or len(node.inputs) != 1:
        return None
    return next((float(held) for held in node.args if isinstance(held, int | float)), None)


def is_whole(module: nn.Module) -> bool:
    """Whether a module treats every token, or every number, by itself."""
    if not WHOLE.search(type(module).__name__):
        return False
    return not any(isinstance(child, CONTAINERS) for child in module.modules())


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _places(constant: Tensor) -> int:
    """Along how many axes a constant varies: 1 of a bias, more of positions."""
    return sum(length > 1 for length in constant.shape)


def _bias(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    if causal:
        shape = (query.shape[-2], key.shape[-2])
        return query.new_full(shape, -torch.inf).triu(1)
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a value, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for held in value.values():
            yield from tensors_in(held)
    elif isinstance(value, list | tuple):
        for held in value:
            yield from tensors_in(held)


def swapped(value: Any, known: Mapping[int, Tensor]) -> Any:
    """A value with some of its tensors replaced."""
    if isinstance(value, Tensor):
        return known.get(id(value), value)
    if isinstance(value, dict):
        return {key: swapped(held, known) for key, held in value.items()}
    if isinstance(value, list):
        return [swapped(held, known) for held in value]
    if isinstance(value, tuple):
        parts = tuple(swapped(held, known) for held in value)
        return type(value)(*parts) if hasattr(value, "_fields") else parts
    return value
