"""Training and explaining packs of Vision Transformers (models/vit_pack.py): `vit`.

The recipe is that of recipes/train_cifar_vit.py, shortened: AdamW, a warm-up and a cosine, label
smoothing, random shifts and flips. All models of a pack take their step together; on a GPU the
step is compiled, its products are in bfloat16 and its weights in float32. Images stay on the
device as bytes, and nothing is fetched from it within an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from faithscope.data.labelled_images import ImageSplits
from faithscope.errors import FaithscopeError, said, warn
from faithscope.methods import Method, explain_images
from faithscope.models import Model, wrap
from faithscope.models.memory import is_out_of_memory
from faithscope.models.vit_pack import Flat, ViTShape, answer, flatten, initial, unflatten
from faithscope.perturb import to_units
from faithscope.probes.retrain.learner import Recipe, Weights
from faithscope.probes.retrain.pack import Packed
from faithscope.probes.retrain.pixels import PixelData, PixelSplit, pixel_data
from faithscope.registry import check_options, format_spec

RECIPE = Recipe(epochs=20, batch_size=128, learning_rate=1e-3, weight_decay=0.05)
SMOOTHING, WARM_UP, MOST_NORM = 0.1, 0.05, 1.0
"""Of labels; the share of steps that lead up; the length to which gradients are cut."""
SHIFT = 8
"""Images are moved by up to this part of their side."""

PACK = {"cpu": 4, "cuda": 24}
"""Models that are trained together at most."""
ROOM_ON_CPU, ROOM_ON_GPU = 2 << 30, 1 / 3
"""For the images of a pack and what a step remembers: bytes, and a share of a GPU's memory."""
IMAGES_PER_PASS = {"cpu": 256, "cuda": 1 << 15}
"""Images (of all models) that are tested in one pass."""
ONE_BLOCK = 128
"""Tokens that a kernel of fused attention takes at once."""
MOST_PROGRAMS = 256
"""Compiled in one process, one for packs of each size and shape of images."""
EXPLAINED_TOGETHER = {"cpu": 64, "cuda": 1024}
"""Images that are explained in one pass."""


Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class ViTOptions:
    """What a model may be given in brackets, `vit(dim=192, depth=6)`."""

    dim: int = 192
    depth: int = 6
    heads: int = 0
    """0 are as many as there are 64 numbers."""
    mlp: float = 3.0
    patch: int = 4
    augment: bool = True

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ViTOptions:
        """Options in brackets, checked."""
        check_options("model", "vit", given, vars(cls()))
        made = cls(**given)
        for name in ("dim", "depth", "mlp", "patch"):
            if getattr(made, name) <= 0:
                raise FaithscopeError(
                    f"The option '{name}' of model 'vit' is above 0, got {getattr(made, name)}."
                )
        if made.heads < 0 or made.dim % made.many_heads:
            raise FaithscopeError(
                f"The model vit(dim={made.dim}) cannot have {made.heads} heads: give a number "
                "that divides its dim."
            )
        return made

    @property
    def many_heads(self) -> int:
        """How many heads there are."""
        return self.heads or max(1, self.dim // 64)

    @property
    def label(self) -> str:
        """The name with what differs from the defaults."""
        plain = ViTOptions()
        own = {name: value for name, value in vars(self).items() if value != getattr(plain, name)}
        return format_spec("vit", own)


class ViTLearner:
    """Vision Transformers to be trained from the start on one data set of images."""

    modality = "image"
    weights = "random"
    explains_one_by_one = True

    def __init__(
        self,
        options: ViTOptions | None = None,
        *,
        device: str = "cpu",
        recipe: Recipe = RECIPE,
        pack_size: int | None = None,
    ) -> None:
        self.options = options or ViTOptions()
        self.name = self.options.label
        self.device, self.recipe = device, recipe
        self.pack_size = pack_size or PACK[self._place]
        self._is_pack_given = pack_size is not None

    @property
    def _place(self) -> str:
        return "cuda" if self.device.startswith("cuda") else "cpu"

    @property
    def dtype(self) -> torch.dtype:
        """In which products are computed."""
        return torch.bfloat16 if self._place == "cuda" else torch.float32

    @property
    def fingerprint(self) -> str:
        """What decides a model besides its data, recipe and seed."""
        own = ", ".join(f"{name} {value}" for name, value in vars(self.options).items())
        return f"{own}, label smoothing {SMOOTHING}, warm-up {WARM_UP}"

    def card(self, data: PixelData) -> dict[str, Any]:
        """What is needed to use a trained model, beside its weights."""
        sizes = {**vars(self.shape(data)), "classes": data.classes}
        return {"kind": "vit", **sizes, "mean": data.frame.mean, "std": data.frame.std}

    def encode(self, data: ImageSplits) -> PixelData:
        """Take in images whose sides are whole patches; large ones make packs small."""
        made = pixel_data(data)
        shape = self.shape(made)
        if not self._is_pack_given:
            tokens = min(self.recipe.batch_size, len(made.train)) * shape.tokens
            numbers = 34 + 8 * shape.mlp  # that a token leaves behind in a block, in bytes of dim
            pixels = sum(part.images.numel() for _, part in made.splits)
            each = pixels + tokens * shape.depth * shape.dim * numbers
            self.pack_size = max(1, min(self.pack_size, int(self._room() // each)))
        return made

    def _room(self) -> float:
        if self._place == "cpu":
            return ROOM_ON_CPU
        return ROOM_ON_GPU * torch.cuda.get_device_properties(self.device).total_memory

    def shape(self, data: PixelData) -> ViTShape:
        """The sizes of the model for a data set."""
        size, own = data.frame.size, self.options
        if size[0] % own.patch or size[1] % own.patch:
            raise FaithscopeError(
                f"The images of '{data.name}' are {size[1]}×{size[0]}, which are no whole patches "
                f"of {own.patch}: give another, vit(patch=…)."
            )
        return ViTShape(
            size,
            data.train.images.shape[1],
            len(data.classes),
            own.dim,
            own.depth,
            own.many_heads,
            own.mlp,
            own.patch,
        )

    def parameters(self, data: PixelData) -> int:
        """How many numbers a model learns."""
        return sum(math.prod(size) for size in self.shape(data).parameters().values())

    def begin(self, data: Sequence[PixelData], seeds: Sequence[int]) -> ViTTraining:
        """Begin to train a pack, model i on data[i] with seeds[i]."""
        return ViTTraining(self, data, seeds)

    def check(self, measure: Method) -> None:
        """Refuse a measure that a trained model could not give."""
        model = self._model(ViTShape((8, 8), 3, 2, 8, 1, 1, 1.0, 4))
        measure.check_layer(model)
        measure.check(model, torch.zeros(1, 3, 8, 8))

    def explain(
        self,
        weights: Sequence[Weights],
        parts: Sequence[PixelSplit],
        measure: Method,
        seeds: Sequence[int],
    ) -> list[Tensor]:
        """Scores [N, T] of every model on its images, for their labels; without weights random."""
        return self.explain_together(weights, parts, [measure], seeds)[0]

    def explain_together(
        self,
        weights: Sequence[Weights],
        parts: Sequence[PixelSplit],
        measures: Sequence[Method],
        seeds: Sequence[int],
    ) -> list[list[Tensor]]:
        """The same by several measures, which share what they read of the models."""
        found = []
        for state, part, seed in zip(weights, parts, seeds, strict=True):
            model = self._model(self._shape_of(part, state))
            if state:
                model.module.load_state_dict(state)
            found.append(self._maps(model.to(self.device), part, measures, seed))
        return [list(column) for column in zip(*found, strict=True)]

    def _maps(
        self, model: Model, part: PixelSplit, measures: Sequence[Method], seed: int
    ) -> list[Tensor]:
        frame, together = part.frame, EXPLAINED_TOGETHER[self._place]
        grid = frame.size[0] // self.options.patch, frame.size[1] // self.options.patch
        units = "pixels" if frame.units == frame.size else "patches"
        scores = [torch.empty(len(part), frame.count) for _ in measures]
        done = 0
        for some in part.chunks(together):
            images = frame.normalised(some.filled(self.device))
            labels = some.labels.to(self.device)
            explained = explain_images(
                model,
                images,
                labels,
                [(measure, 0) for measure in measures],
                keys=some.keys,
                seed=seed,
                batch_size=together,
            )
            together = explained.batch_size
            for held, own in zip(scores, explained.maps, strict=True):
                ranked = to_units(own, units, frame.size, grid)
                held[done : done + len(some)] = ranked.flatten(1).float().cpu()
            done += len(some)
        return scores

    def _shape_of(self, part: PixelSplit, state: Weights) -> ViTShape:
        own = self.options
        classes = len(state["head.bias"]) if state else 2
        size, colours = part.frame.size, part.images.shape[1]
        return ViTShape(
            size, colours, classes, own.dim, own.depth, own.many_heads, own.mlp, own.patch
        )

    def _model(self, shape: ViTShape) -> Model:
        """An untrained model as everything that explains models takes it."""
        return wrap(shape.module().eval(), name=self.name)


class ViTTraining(Packed):
    """The training of a pack: AdamW, warm-up and cosine; the best validation epoch is kept."""

    def __init__(
        self, learner: ViTLearner, data: Sequence[PixelData], seeds: Sequence[int]
    ) -> None:
        self.learner, self.frame = learner, data[0].frame
        device = torch.device(learner.device)
        self.images = {
            name: torch.stack([getattr(one, name).filled(device) for one in data])
            for name, _ in data[0].splits
        }
        """Bytes [M, N, C, H, W]."""
        self._labels = {name: part.labels for name, part in data[0].splits}
        self.targets = self._labels["train"].to(device)
        self.shape = learner.shape(data[0])
        heavy, light = flatten(self.shape, [initial(self.shape, seed) for seed in seeds])
        parameters = {
            name: piece.to(device).requires_grad_(True)
            for name, piece in (("heavy", heavy), ("light", light))
        }
        super().__init__(learner.recipe, seeds, data[0].selection, device, parameters)
        self.colours = tuple(
            torch.tensor(values, device=device)[:, None, None]
            for values in (self.frame.mean, self.frame.std)
        )
        self.losses = torch.zeros(self.steps_per_epoch, len(seeds), device=device)
        self._loss: Loss | None = None

    def make_optimizer(self) -> torch.optim.Optimizer:
        """AdamW; weight decay is of matrices alone."""
        decays = {"heavy": self.recipe.weight_decay, "light": 0.0}
        groups = [
            {"params": [self.parameters[name]], "weight_decay": decay}
            for name, decay in decays.items()
        ]
        return torch.optim.AdamW(groups, lr=self.recipe.learning_rate, fused=True)

    @property
    def batch_size(self) -> int:
        """Images in a step, not more than there are."""
        return min(self.recipe.batch_size, len(self.targets))

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of an epoch; what is left over waits for another order."""
        return len(self.targets) // self.batch_size

    def draws(self, epoch: int) -> tuple[Tensor, Tensor]:
        """What every step reads: rows [steps, M, B], and how each is moved [steps, M, B, 3].

        By (seed, epoch) alone. A move is rows down, columns to the right, and 1 for mirrored.
        """
        own = {seed: self._drawn(seed, epoch) for seed in set(self.seeds)}
        rows, moves = (
            torch.stack([own[seed][part] for seed in self.seeds], 1).to(self.device)
            for part in (0, 1)
        )
        return rows, moves

    def _drawn(self, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed((seed << 20) + epoch + 1)
        count = self.steps_per_epoch * self.batch_size
        order = torch.randperm(len(self.targets), generator=generator)[:count]
        moves = torch.zeros(count, 3, dtype=torch.int64)
        if self.learner.options.augment:
            for axis, side in enumerate(self.frame.size):
                far = side // SHIFT
                moves[:, axis] = torch.randint(-far, far + 1, (count,), generator=generator)
            moves[:, 2] = torch.randint(0, 2, (count,), generator=generator)
        steps = (self.steps_per_epoch, self.batch_size)
        return order.view(steps), moves.view(*steps, 3)

    def run_epoch(self) -> None:
        """Train one more epoch and validate it."""
        rows, moves = self.draws(self.epoch)
        for at in range(self.steps_per_epoch):
            self.losses[at] = self.step(rows[at], moves[at], self._rate(at))
        self.validate()

    def _rate(self, step: int) -> float:
        """The learning rate: linear up, then a cosine to zero."""
        steps = self.recipe.epochs * self.steps_per_epoch
        share = (self.epoch * self.steps_per_epoch + step + 1) / steps
        if share < WARM_UP:
            return self.recipe.learning_rate * share / WARM_UP
        down = (share - WARM_UP) / (1 - WARM_UP)
        return self.recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * min(down, 1.0)))

    def step(self, rows: Tensor, moves: Tensor, rate: float) -> Tensor:
        """One step of every model on its rows [M, B]; gives the losses [M]."""
        losses = self._gradients(rows, moves)
        pieces = list(self.parameters.values())
        length = torch.stack([_gradient(one).square().sum(1) for one in pieces]).sum(0).sqrt()
        shorter = (MOST_NORM / (length + 1e-6)).clamp(max=1.0)[:, None]
        for piece in pieces:
            _gradient(piece).mul_(shorter)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return losses

    def _gradients(self, rows: Tensor, moves: Tensor) -> Tensor:
        """The losses [M]; their gradients are left at the parameters. Compiled on a GPU."""
        if self._loss is not None:
            return self._descend(self._loss, rows, moves)
        self._loss = pack_loss
        if self.device.type == "cuda":
            try:
                found = self._descend(_compiled(), rows, moves)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                warn(f"Models are trained without torch.compile, slower: it fails ({said(error)}).")
            else:
                self._loss = _compiled()
                return found
        return self._descend(self._loss, rows, moves)

    def _descend(self, loss: Loss, rows: Tensor, moves: Tensor | None) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        heavy, light = self.parameters["heavy"], self.parameters["light"]
        moves = moves if self.learner.options.augment else None
        with _repeatable(self.device, self.shape.tokens):
            losses = loss(
                (heavy, light),
                self.images["train"],
                self.targets,
                rows,
                moves,
                self.colours,
                self.shape,
                self.learner.dtype,
            )
            torch.autograd.backward(losses.sum())
        return losses.detach()

    @torch.no_grad()
    def logits(self, split: str, p: Mapping[str, Tensor]) -> Tensor:
        """What the models say of a whole split: [M, N, C] on the CPU."""
        named = unflatten(self.shape, (p["heavy"].detach(), p["light"].detach()))
        images = self.images[split]
        size = max(1, IMAGES_PER_PASS[self.device.type] // len(images))
        with _repeatable(self.device, self.shape.tokens):
            found = [
                answer(self.shape, named, _normalised(part, self.colours), self.learner.dtype)
                for part in torch.split(images, size, 1)
            ]
        return torch.cat(found, 1).cpu()

    def labels(self, split: str) -> Tensor:
        """The classes of a split [N], on the CPU."""
        return self._labels[split]

    def weights(self, p: Mapping[str, Tensor], place: int) -> Weights:
        """One model of the pack by timm's names, on the CPU."""
        pieces = (p["heavy"][place : place + 1].cpu(), p["light"][place : place + 1].cpu())
        return {name: part[0].clone() for name, part in unflatten(self.shape, pieces).items()}


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _repeatable(device: torch.device, tokens: int) -> AbstractContextManager[None]:
    """Attention whose gradients are the same every time.

    Those of cuDNN are where all tokens are one block of its kernel, and it is the fastest there.
    """
    if device.type != "cuda":
        return nullcontext()
    fastest = [SDPBackend.CUDNN_ATTENTION] if tokens <= ONE_BLOCK else []
    return sdpa_kernel([*fastest, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True)


def _normalised(images: Tensor, colours: Sequence[Tensor]) -> Tensor:
    """Bytes [..., C, H, W] as a model reads them."""
    mean, std = colours
    return (images.to(mean.dtype) / 255 - mean) / std


def pack_loss(
    flat: Flat,
    images: Tensor,
    targets: Tensor,
    rows: Tensor,
    moves: Tensor | None,
    colours: Sequence[Tensor],
    shape: ViTShape,
    dtype: torch.dtype,
) -> Tensor:
    """The loss of every model on its own rows, moved as asked: [M].

    Shapes: images uint8 [M, N, C, H, W], targets [N], rows [M, B], moves [M, B, 3].
    """
    models = torch.arange(rows.shape[0], device=rows.device)[:, None]
    chosen = images[models, rows]
    if moves is None:
        seen = _normalised(chosen, colours)
    else:
        chosen, inside = _moved(chosen, moves)
        seen = torch.where(inside, _normalised(chosen, colours), 0.0)
    logits = answer(shape, unflatten(shape, flat), seen, dtype)
    each = functional.cross_entropy(
        logits.flatten(0, 1), targets[rows].flatten(), reduction="none", label_smoothing=SMOOTHING
    )
    return each.view(rows.shape).mean(1)


@cache
def _compiled(backend: Any = "inductor") -> Loss:
    """The loss compiled: a program for packs of each size, which depends on none before it.

    A program for all sizes would add up in an order that the first size decides, and a resumed run
    may begin with another one.
    """
    made: Loss = torch.compile(pack_loss, dynamic=False, backend=backend)

    def call(*given: Any) -> Tensor:
        with torch._dynamo.config.patch(cache_size_limit=MOST_PROGRAMS):
            return made(*given)

    return call


def _moved(images: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
    """Images moved by whole pixels and mirrored, and which pixels come from inside of them.

    Shapes: images [M, B, C, H, W], moves [M, B, 3] -> the same, bool [M, B, 1, H, W].
    """
    height, width = images.shape[-2:]
    down = torch.arange(height, device=images.device) + moves[..., 0, None]
    right = torch.arange(width, device=images.device) + moves[..., 1, None]
    right = torch.where(moves[..., 2, None] > 0, width - 1 - right, right)
    inside = ((down >= 0) & (down < height))[..., :, None]
    inside = inside & ((right >= 0) & (right < width))[..., None, :]
    place = down.clamp(0, height - 1)[..., :, None] * width
    place = (place + right.clamp(0, width - 1)[..., None, :]).flatten(-2)
    place = place[:, :, None].expand(-1, -1, images.shape[2], -1)
    moved = images.flatten(-2).gather(-1, place).view(images.shape)
    return moved, inside[:, :, None]
