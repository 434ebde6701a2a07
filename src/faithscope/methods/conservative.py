"""Conservative LRP for Transformers (Ali et al. 2022): a gradient through a simplified model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import Evidence
from faithscope.methods.method import register_method
from faithscope.models.attention import check_recomputed
from faithscope.models.tape import ELEMENTWISE, LENGTHS, PRODUCTS, Tape


def _granularity(*, at: str, **_: object) -> str:
    return "pixel" if at == "pixels" else "patch"


@register_method(
    "conservative_lrp", granularity=_granularity, needs=("stream", "tapes"), in_papers=True
)
def conservative_lrp(
    evidence: Evidence,
    *,
    at: Literal["tokens", "patches", "pixels"] = "tokens",
    norm: Literal["std", "mean_std", "none"] = "std",
    activation: Literal["derivative", "ratio"] = "derivative",
) -> Tensor:
    r"""Tokens times their gradient, attention and the norms' deviations held constant.

    .. math:: R_j = \sum_d e[j, d] \, \frac{\partial \tilde f_t}{\partial e[j, d]}

    e are the tokens with their positions. :math:`\tilde f` has the value of f, but its attention
    probabilities, the gates of gated MLPs and the standard deviation of each LayerNorm (the root
    mean square of an RMSNorm; with norm="mean_std" the mean, too; with norm="none" neither) are
    constants. activation="ratio" takes :math:`\mathrm{GELU}(z) / z` as a constant, too. `at` reads
    the product at the "tokens", at the "patches" before positions are added, or at the "pixels".
    """
    gradient = conservative_gradient(evidence, norm=norm, activation=activation)
    rows, columns = evidence.model.require_grid(evidence.images, "conservative_lrp")
    stem, entered = evidence.tape("stem"), evidence.tensor("entered")
    with torch.enable_grad(), Simplified(norm, activation):
        if at == "pixels":
            start, wanted = stem.roots[0], evidence.images
        elif at == "patches":
            start = wanted = _patches(stem)
        else:
            start = wanted = before_norm(stem, entered)
        leaf = wanted.detach().clone().requires_grad_(True)
        tokens = stem.replay(start, leaf, entered, "its patch embedding")
        check_recomputed(evidence.checks, "The patch embedding", tokens, entered)
        (found,) = torch.autograd.grad(tokens, leaf, gradient)
    product = leaf.detach() * found
    if at == "pixels":
        return product.sum(1)
    if at == "patches":
        return product.flatten(2).sum(1).reshape(-1, rows, columns)
    return product.sum(-1).flatten(1)[:, evidence.prefix_tokens :].reshape(-1, rows, columns)


@register_method(
    "conservative_lrp",
    granularity="token",
    needs=("stream", "tapes"),
    in_papers=True,
    modality="text",
    by_token=False,
)
def text_conservative_lrp(
    evidence: Evidence,
    *,
    at: Literal["tokens", "words"] = "tokens",
    norm: Literal["std", "mean_std", "none"] = "std",
    activation: Literal["derivative", "ratio"] = "derivative",
) -> Tensor:
    r"""Tokens times their gradient, attention and the norms' deviations held constant.

    .. math:: R_j = \sum_d e[j, d] \, \frac{\partial \tilde f_t}{\partial e[j, d]}

    The rules of Ali et al. (2022) for whole models: :math:`\tilde f` as for images, e what enters
    the first block ("tokens") or, the deviation of the embeddings' norm held constant too, the
    word embeddings ("words").
    """
    found = conservative_gradient(evidence, norm=norm, activation=activation)
    values = entered = evidence.tensor("entered").detach()
    if at == "words":
        stem, values = evidence.tape("stem"), evidence.embedded
        with torch.enable_grad(), Simplified(norm, activation):
            leaf = values.clone().requires_grad_(True)
            tokens = stem.replay(stem.roots[0], leaf, evidence.tensor("entered"), "its embedding")
            check_recomputed(evidence.checks, "The embedding", tokens, entered)
            (found,) = torch.autograd.grad(tokens, leaf, found)
    return evidence.to_map((values * found).sum(-1))


def conservative_gradient(evidence: Evidence, *, norm: str, activation: str) -> Tensor:
    """The gradient of the simplified model at what enters the first block [B, N, D]."""
    head, target = evidence.tape("head"), evidence.target
    recorded = evidence.tensor("logits")
    blocks = evidence.vit.require_blocks("conservative_lrp")
    with torch.enable_grad(), Simplified(norm, activation) as mode:
        tokens = head.roots[0].detach().clone().requires_grad_(True)
        logits = head.replay(head.roots[0], tokens, recorded, "its head")
        check_recomputed(evidence.checks, "The head", logits, recorded)
        if not logits.requires_grad:
            what = "its output is a softmax, which conservative_lrp holds constant"
            raise FaithscopeError(
                f"{what[0].upper()}{what[1:]}: let the model return logits, or choose other "
                "methods.",
                reason=what,
            )
        chosen = logits.gather(1, target[:, None]).sum()
        (gradient,) = torch.autograd.grad(chosen, tokens)
        for (name, block), call in reversed(
            list(zip(blocks.items(), evidence.calls("block_calls"), strict=True))
        ):
            tokens = call.tokens.detach().clone().requires_grad_(True)
            mode.attended = False
            left = call.again(block, tokens)
            if not mode.attended:
                raise FaithscopeError(
                    f"conservative_lrp saw no softmax in the block '{name}', so its attention "
                    "cannot be held constant: choose other methods.",
                    reason=f"no softmax was seen in the block '{name}'",
                )
            check_recomputed(evidence.checks, f"The block '{name}'", left, call.output, tokens)
            (gradient,) = torch.autograd.grad(left, tokens, gradient)
    return gradient


def before_norm(stem: Tape, tokens: Tensor) -> Tensor:
    """The embedded tokens with their positions: before a norm, where there is one."""
    node, found = stem.maker(tokens), tokens
    while node is not None and node.kind in ("norm", "pass"):
        if node.kind == "norm":
            found = node.inputs[0]
        node = stem.maker(node.inputs[0])
    return found


def _patches(stem: Tape) -> Tensor:
    """What the patch projection gave, [B, D, h, w]."""
    made = [node.output for node in stem.nodes if node.kind == "convolution"]
    if len(made) != 1:
        raise FaithscopeError(
            f"conservative_lrp cannot reach the patches: the patch embedding has {len(made)} "
            "convolutions, not one. Use at=tokens.",
            reason=f"the patch embedding has {len(made)} convolutions, not one",
        )
    return made[0]


def _is_deviation(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a norm that is written out makes its deviation here."""
    root = name in ("pow", "__pow__") and args[1] in (0.5, -0.5)
    return root or name in ("rsqrt", "sqrt", "std") or name in LENGTHS


class Simplified(TorchFunctionMode):
    """Runs a model with the same values but fewer ways for gradients to flow.

    Attention probabilities, gates and the deviations of norms become constants.
    """

    def __init__(self, norm: str, activation: str) -> None:
        super().__init__()
        self.norm, self.activation = norm, activation
        self.attended = False
        """Whether some attention was held constant."""
        self._activated: dict[int, tuple[Tensor, Tensor]] = {}
        """By their ids, outputs of activations and what they were made of."""
        self._scaled: dict[int, tuple[Tensor, Tensor]] = {}
        """By their ids, products with a number and what was multiplied."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("scaled_dot_product_attention", "multi_head_attention_forward", "softmax"):
            self.attended = torch.is_grad_enabled()  # not in a function with a backward of its own
        if name == "scaled_dot_product_attention":
            tape = Tape()
            tape.root(args[0] if args else kwargs["query"])
            with tape:
                func(*args, **kwargs)
            seen = tape.attentions[-1]
            return seen.probabilities.detach() @ seen.value
        if name == "multi_head_attention_forward":
            return self._multi_head(func, args, kwargs)
        if name == "softmax":
            return func(*args, **kwargs).detach()
        if self.norm != "none" and _is_deviation(name, args):
            return func(*args, **kwargs).detach()
        if name in ("layer_norm", "rms_norm", "normalize") and self.norm != "none":
            return self._normalise(name, func, args, kwargs)
        if name in ("group_norm", "instance_norm") and self.norm != "none":
            raise FaithscopeError(
                f"conservative_lrp knows LayerNorm and RMSNorm, but this model uses {name}: choose "
                "other methods.",
                reason=f"conservative_lrp knows LayerNorm and RMSNorm, but this model uses {name}",
            )
        if name in ELEMENTWISE and "dropout" not in name:
            return self._activate(name, func, args, kwargs)
        if name in PRODUCTS:
            return self._multiply(func, args, kwargs)
        return func(*args, **kwargs)

    def _multi_head(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Torch's own multi-head attention, written out by a tape, its attention constant."""
        tape = Tape()
        for tensor in dict.fromkeys(args[:3]):
            tape.root(tensor)
        with tape:
            result = func(*args, **kwargs)
        seen = next(node for node in tape.nodes if node.kind == "attention")
        constant = seen.attention.probabilities.detach()  # type: ignore[union-attr]
        known = {id(root): root for root in tape.roots}
        for node in tape.nodes:
            if node is seen:
                value = known[id(seen.args[2])]
                known[id(node.output)] = constant @ value
                continue
            again = node.call(known)
            made = [again] if isinstance(again, Tensor) else list(again)
            known |= {id(old): new for old, new in zip(node.outputs, made, strict=True)}
        return known[id(result[0])], result[1]

    def _normalise(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Tensor:
        """A norm whose deviation, and mean if asked, are constants."""
        values = args[0] if args else kwargs["input"]
        if name == "normalize":
            made: Tensor = func(*args, **kwargs)
            given = {**dict(zip(("input", "p", "dim", "eps"), args, strict=False)), **kwargs}
            size = values.detach().norm(given.get("p", 2), given.get("dim", 1), keepdim=True)
            return values / size.clamp_min(1e-12) if size.shape[-1] == 1 else made
        names = ["input", "normalized_shape", "weight", "bias", "eps"]
        if name == "rms_norm":
            names.remove("bias")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if len(given["normalized_shape"]) != 1:
            raise FaithscopeError("conservative_lrp knows norms over channels only.")
        eps = given.get("eps")
        if name == "rms_norm":
            eps = torch.finfo(values.dtype).eps if eps is None else eps
            square = values.pow(2).mean(-1, keepdim=True)
            scaled = values / (square + eps).sqrt().detach()
        else:
            mean = values.mean(-1, keepdim=True)
            spread = values.var(-1, unbiased=False, keepdim=True)
            spread = (spread + (1e-5 if eps is None else eps)).sqrt().detach()
            scaled = (values - (mean.detach() if self.norm == "mean_std" else mean)) / spread
        if given.get("weight") is not None:
            scaled = scaled * given["weight"]
        shifted: Tensor = scaled if given.get("bias") is None else scaled + given["bias"]
        return shifted

    def _activate(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Tensor:
        values = args[0]
        result: Tensor = func(*args, **kwargs)
        if self.activation == "ratio" and name not in ("sigmoid", "tanh"):  # which saturate
            result = values * (result / values).masked_fill(values == 0, 0).detach()
        _, source = self._scaled.get(id(values), (values, values))
        self._activated[id(result)] = (result, source)
        return result

    def _multiply(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Tensor:
        """What multiplies something else after an activation is a gate, and constant."""
        first, second = args[:2]
        both = isinstance(first, Tensor) and isinstance(second, Tensor)
        if both and first.shape == second.shape:
            for gate, other, turned in ((first, second, False), (second, first, True)):
                _, source = self._activated.get(id(gate), (gate, None))
                if source is None:
                    continue
                own = source is other  # x · sigmoid(x) is itself an activation
                if own and self.activation == "derivative":
                    break
                operands = (other, gate.detach()) if turned else (gate.detach(), other)
                return func(*operands, *args[2:], **kwargs)  # type: ignore[no-any-return]
        result: Tensor = func(*args, **kwargs)
        if not both and isinstance(first if isinstance(first, Tensor) else second, Tensor):
            self._scaled[id(result)] = (result, first if isinstance(first, Tensor) else second)
        return result
