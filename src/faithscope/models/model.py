"""A model as faithscope sees it: the user's own module, its preprocessing, and its ViT view."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from torch.overrides import handle_torch_function, has_torch_function_unary

from faithscope.errors import FaithscopeError, choose, shown
from faithscope.models.device import device_for, has_float64
from faithscope.models.memory import LESS, is_out_of_memory
from faithscope.models.vit import ViTView

Transform = Callable[[Image.Image], Tensor]
CHANNELS = (1, 3, 4)
"""How many a picture has: grey, colours, and transparency."""
OUTPUTS = ("softmax", "sigmoid")
"""How logits become probabilities."""
FEW_PATCHES = 16
"""Of fewer, an image has as few tokens as a coarse map may have rows."""


@dataclass(frozen=True, eq=False)
class Model:
    """An unmodified classifier and what must be known to feed and read it.

    `transform` turns a PIL image into the model's input [C, H, W]; `mean` and `std` are its
    normalisation; `patch_size` is in pixels; `vit` is the view of its attention, or a sentence
    saying what was not found; `weights` says where its weights come from; `origin`, where its name
    does not say it, what it was loaded from; `output` how its logits become probabilities: by the
    "softmax", or each by its own "sigmoid".
    """

    module: nn.Module
    name: str
    input_size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    transform: Transform | None = None
    classes: tuple[str, ...] | None = None
    patch_size: tuple[int, int] | None = None
    vit: ViTView | str = ""
    weights: str = "as given"
    origin: str = ""
    output: str = "softmax"
    _hashed: dict[str, Any] = field(default_factory=dict, repr=False)

    modality: ClassVar[str] = "image"

    def __repr__(self) -> str:
        kind = "a ViT" if isinstance(self.vit, ViTView) else "not known as a ViT"
        return f"Model({self.name}, {self.input_size}, {kind}, weights {self.weights})"

    def _repr_html_(self) -> str:
        from faithscope.models.card import model_html

        return model_html(self)

    def __deepcopy__(self, memo: object) -> Model:
        raise FaithscopeError(
            "A Model holds views into its module and cannot be copied: copy the module, and give "
            "it to fs.wrap."
        )

    def __reduce__(self) -> str:
        raise FaithscopeError(
            "A Model holds views into its module and cannot be pickled: save the module's weights, "
            "and load them with fs.load_model(…, checkpoint=FILE)."
        )

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """The model's floating-point type."""
        kinds = (p.dtype for p in self.module.parameters() if p.is_floating_point())
        return next(kinds, torch.float32)

    @property
    def fingerprint(self) -> str:
        """A hash of every weight and buffer, by name; hashed anew when any has changed."""
        tensors = [*self.module.parameters(), *self.module.buffers()]
        state = tuple((id(tensor), tensor._version) for tensor in tensors)
        if self._hashed.get("state") != state:
            self._hashed.update(state=state, hash=self._hash())
        return str(self._hashed["hash"])

    def _hash(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for name, value in self.module.state_dict().items():
            if isinstance(value, Tensor):
                digest.update(f"{name}|{value.dtype}|{list(value.shape)}".encode())
                flat = value.detach().cpu().contiguous().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
        return digest.hexdigest()

    def logits(self, inputs: Any) -> Tensor:
        """Run the model once on [B, C, H, W]; unwraps Hugging Face outputs, tuples and dicts.

        A single logit z, read by the sigmoid, is two: -z of class 0 and z of class 1.
        """
        return unwrap_logits(self.module(inputs), len(inputs), self.output)

    def embed(self, inputs: Any) -> Tensor:
        """What gradients are taken at: the images themselves, in at least float32."""
        own = torch.promote_types(self.dtype, torch.float32)
        return inputs.detach().to(own).clone()  # type: ignore[no-any-return]

    def read(self, inputs: Any, embedded: Tensor) -> Tensor:
        """Run the model on what stands for these inputs (`embed`), or on something near it."""
        return self.logits(embedded)

    def numbers(self, inputs: Any) -> int:
        """How many numbers the model reads of one image."""
        return int(inputs[0].numel())

    @property
    def preparation(self) -> str:
        """What decides how a picture becomes an input."""
        return f"mean {self.mean}, std {self.std}"

    @property
    def specials(self) -> dict[str, int | None]:
        """The ids of tokens that can stand in the place of others, of a text model."""
        return {}

    def with_output(self, output: str | None) -> Model:
        """The same module, read by "softmax" or "sigmoid"; None and "auto" change nothing."""
        chosen = check_output(output)
        return self if chosen is None else replace(self, output=chosen)

    def grid(self, height: int, width: int) -> tuple[int, int] | None:
        """Rows and columns of patches in an image of this size, where they are known to fit."""
        if self.patch_size is None or height % self.patch_size[0] or width % self.patch_size[1]:
            return None
        return height // self.patch_size[0], width // self.patch_size[1]

    def token_counts(self, height: int, width: int) -> frozenset[int]:
        """How many tokens such an image may have, all or its patches; none if they are few."""
        rows, columns = self.grid(height, width) or (0, 0)
        if rows * columns < FEW_PATCHES:
            return frozenset()
        known = self.vit.prefix_tokens if isinstance(self.vit, ViTView) else None
        prefixes = (1, 2, 5) if known is None else (known,)  # a class, distillation, registers
        return frozenset(rows * columns + extra for extra in (0, *prefixes))

    def require_grid(self, images: Any, needed_by: str) -> tuple[int, int]:
        """The patch grid of images [..., H, W], or an error that says what to give."""
        height, width = images.shape[-2:]
        grid = self.grid(height, width)
        if grid is None:
            known = self.patch_size and "×".join(map(str, self.patch_size))
            reason = f"{needed_by} needs whole patches, but {self.name} has " + (
                f"patches of {known} and images of {height}×{width}" if known else "none known"
            )
            raise FaithscopeError(
                f"{reason}: give fs.wrap(module, patch_size=…) one that divides the image.",
                reason=reason,
            )
        return grid

    def require_vit(self, needed_by: str) -> ViTView:
        """The ViT view, or an error that says which fields to give."""
        if isinstance(self.vit, ViTView):
            return self.vit
        raise FaithscopeError(
            f"{needed_by} needs a stack of attention blocks, which {self.name} lacks: {self.vit}; "
            "choose methods that need no attention, or give fs.wrap(module, attention=[…]) the "
            "attention module of each block.",
            reason=self.vit,
        )

    def class_name(self, index: int) -> str:
        """The name of a class, or its number."""
        if not isinstance(index, Integral):
            raise FaithscopeError(f"A class is a whole number, got {shown(index)}.")
        if self.classes is not None and 0 <= index < len(self.classes):
            return self.classes[int(index)]
        return shown(int(index)) if index >= 0 else "no class"

    def to(self, device: str | torch.device) -> Model:
        """Move the module, in place as torch does; returns self."""
        try:
            place = torch.device(device)
            has_type = self.dtype != torch.float64 or has_float64(place)
            if has_type:
                self.module.to(place)
        except (TypeError, ValueError, RuntimeError, NotImplementedError):
            raise FaithscopeError(f"{self.name} cannot be moved to {shown(device)}.") from None
        if not has_type:
            raise FaithscopeError(
                f"{self.name} is in float64, which the device '{place.type}' does not have: "
                "convert it first, module.float()."
            )
        return self


def check_output(output: str | None) -> str | None:
    """How logits are to become probabilities; None, as "auto" is, if nothing is said."""
    if output is None or (isinstance(output, str) and output == "auto"):
        return None
    return choose("output", output, OUTPUTS)


def log_probabilities(logits: Tensor, output: str = "softmax") -> Tensor:
    r"""Log-probability of every class, in at least float32.

    .. math:: \log p_c = z_c - \log \sum_j e^{z_j} \quad \text{(softmax)}, \qquad
        \log p_c = -\log(1 + e^{-z_c}) \quad \text{(sigmoid)}

    Shapes: logits [..., classes] -> [..., classes].

    >>> log_probabilities(torch.tensor([[-200.0, 0.0]]), "sigmoid")
    tensor([[-200.0000,   -0.6931]])
    """
    values = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logsigmoid(values) if output == "sigmoid" else values.log_softmax(dim=-1)


def both_sides(logit: Tensor) -> Tensor:
    """One logit as those of two classes, for sigmoid(-z) = 1 - sigmoid(z): [B, 1] -> [B, 2].

    Modes of torch see it as one operation, of which relevance has a rule.
    """
    if has_torch_function_unary(logit):
        made: Tensor = handle_torch_function(both_sides, (logit,), logit)
        return made
    return torch.cat([-logit, logit], dim=1)


def unwrap_logits(output: Any, count: int, read_by: str = "softmax") -> Tensor:
    """Find the logits [B, classes] in whatever a classifier returns for `count` inputs.

    One logit z an input, [B] or [B, 1], read by the sigmoid, is two classes: (-z, z).
    """
    if isinstance(output, dict) and "logits" in output:
        output = output["logits"]
    elif hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, Sequence) and output:
        output = output[0]
    if isinstance(output, Tensor) and output.ndim < 2 and output.numel() == count:
        output = output.reshape(count, 1)
    if not isinstance(output, Tensor) or output.ndim != 2:
        shape = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise FaithscopeError(
            f"The model must return logits of shape [batch, classes], got {shape}: wrap a "
            "classifier, not a feature extractor."
        )
    if output.is_complex() or output.is_meta or output.layout != torch.strided:
        raise FaithscopeError(
            "The model must return logits as an ordinary tensor of real numbers, not a complex, "
            "sparse or meta one."
        )
    if len(output) != count:
        raise FaithscopeError(
            f"The model returned {len(output)} answers to {count} images: it must answer each."
        )
    if output.shape[1] == 1 and read_by == "sigmoid":
        return both_sides(output)
    if output.shape[1] < 2:
        raise FaithscopeError(
            "The model has one output, whose softmax is always 1: if it is the logit of class 1, "
            "say output='sigmoid' (fs.wrap(module, output='sigmoid'), --output sigmoid), else wrap "
            "it so that it returns logits of at least two classes."
        )
    return output


def ends_in(module: nn.Module) -> str | None:
    """The "softmax" or "sigmoid" that a module ends in, as far as lists of modules show it.

    >>> ends_in(nn.Sequential(nn.Linear(4, 2), nn.Softmax(dim=1)))
    'softmax'
    """
    while isinstance(module, nn.Sequential) and len(module):
        module = module[-1]
    return {nn.Softmax: "softmax", nn.Sigmoid: "sigmoid"}.get(type(module))


def cannot_run(model: Model, inputs: Any, error: Exception) -> FaithscopeError:
    """Say that a model failed on intact images, and what it complained of."""
    if is_out_of_memory(error):
        return FaithscopeError(f"Memory ran out in {model.name}: {LESS}.")
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
    if model.modality == "text":
        return FaithscopeError(f"{model.name} cannot read these texts: {reason}.")
    shape = list(inputs.shape[1:])
    return FaithscopeError(f"{model.name} cannot run images of shape {shape}: {reason}.")


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without parameter gradients inside; training flags and the rest as before.

    Objects of pytorch-grad-cam, which keep what every pass shows them, see none of these passes.
    Hooks that are registered inside must be removed by whoever registers them.
    """
    training = [(child, child.training) for child in module.modules()]
    needing = [p for p in module.parameters() if p.requires_grad]
    module.eval()
    for parameter in needing:
        parameter.requires_grad_(False)
    try:
        with _unwatched(module):
            yield
    finally:
        for child, flag in training:
            child.training = flag
        for parameter in needing:
            parameter.requires_grad_(True)


@contextmanager
def _unwatched(module: nn.Module) -> Iterator[None]:
    """Take off the hooks of pytorch-grad-cam's objects, and put them back in their places."""

    def watches(hook: Any) -> bool:
        return type(getattr(hook, "__self__", None)).__module__.startswith("pytorch_grad_cam")

    kept = [(child._forward_hooks, dict(child._forward_hooks)) for child in module.modules()]
    kept = [(hooks, before) for hooks, before in kept if any(map(watches, before.values()))]
    for hooks, before in kept:
        for key in [key for key, hook in before.items() if watches(hook)]:
            del hooks[key]
    try:
        yield
    finally:
        for hooks, before in kept:
            now = dict(hooks)
            hooks.clear()
            hooks.update({k: hook for k, hook in before.items() if k in now or watches(hook)})
            hooks.update(now)


@contextmanager
def converted(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Run the user's own module in another floating-point type, on the CPU where need be.

    Its parameters, buffers and plain tensors are swapped for converted copies, and put back, the
    very same tensors, afterwards; nothing is written to them.
    """
    kept = []
    for child in module.modules():
        plain = {name: value for name, value in vars(child).items() if isinstance(value, Tensor)}
        kept.append((child, child._parameters, child._buffers, plain))
    try:
        for child, parameters, buffers, plain in kept:
            child._parameters = _convert(parameters, dtype)
            child._buffers = _convert(buffers, dtype)
            vars(child).update(_convert(plain, dtype))
        yield
    except (TypeError, RuntimeError) as error:
        if any(
            word in str(error)
            for word in ("dtype", "scalar type", "float64", "Half", "bias type", "same device")
        ):
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise FaithscopeError(
                f"The model or its device cannot run in {str(dtype).removeprefix('torch.')} "
                f"({reason}): ask for explain_precision='fp32', or precision=fp32 of a method that "
                "reads relevance, or choose other methods."
            ) from error
        raise
    finally:
        for child, parameters, buffers, plain in kept:
            child._parameters, child._buffers = parameters, buffers
            vars(child).update(plain)


def _convert(tensors: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    def convert(tensor: Any) -> Any:
        if tensor is None:
            return None
        made = tensor.detach().to(device_for(dtype, tensor.device))
        made = made.to(dtype) if made.is_floating_point() else made
        if made.dtype == tensor.dtype and made.device == tensor.device:
            return tensor
        is_parameter = isinstance(tensor, nn.Parameter)
        return nn.Parameter(made, requires_grad=False) if is_parameter else made

    return {name: convert(tensor) for name, tensor in tensors.items()}


class PassCounter:
    """Counts how many inputs went through the model's forward."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def watch(self, module: nn.Module) -> Iterator[None]:
        """Count every input that any caller, captum included, sends through `module`."""

        def tally(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
            first = next(tensors, None)
            self.count += 0 if first is None else len(first)

        handle = module.register_forward_pre_hook(tally, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
