"""The models of docs/model_table.py: which ones are listed, by a rule, and how one is built.

The rule, over what the three libraries register:

- timm: models are grouped by file and by structure (the class of the model, the set of classes of
  its submodules, its pooling, its number of prefix tokens). A file whose smallest model keeps one
  grid from end to end gives the smallest model of every structure; a file whose grids shrink from
  stage to stage gives its smallest model that attends.
- transformers: every image classifier; every tower for zero-shot classification, times random
  class embeddings; every other image model that pools to one vector, with a linear probe.
- torchvision: the smallest model of every file, and of every structure that attends.

Convolutional networks of timm and transformers are left out: the same methods run on all of them,
and those of torchvision stand for them. What does not take one image is left out, too; "left_out"
says why. Weights are random. Models
that keep one grid have two narrow blocks and 8 × 8 patches where the constructor takes such
options, and no image is larger than it must be: none of that changes what is known or refused.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import faithscope as fs
from faithscope.models.vit import find_patch_size

LIST = Path(__file__).with_name("model_list.json")
SMALL = {"depth": 2, "embed_dim": 192, "num_heads": 3}
"""Two narrow blocks, where the constructor takes such options."""
SIDE = 8
"""Patches in a row and a column of the image, where the constructor takes its size."""
LARGEST = 256
"""The largest side of an image that is kept; a larger one becomes 224."""
LARGEST_MODEL = 4e8
"""Parameters from which on a model of transformers is left out."""
KINDS = {
    "grid": "attention over one grid of tokens",
    "stages": "attention in stages of shrinking grids",
    "none": "no softmax attention between positions",
}

Entry = dict[str, Any]


class Tower(nn.Module):
    """The image tower of a model for zero-shot classification, without its text part."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        for name, _ in list(whole.named_children()):
            if name.startswith("text"):
                delattr(whole, name)
        self.whole = whole

    def forward(self, pixel_values: Tensor) -> Tensor:
        return pooled(self.whole.get_image_features(pixel_values=pixel_values))


class Probe(nn.Module):
    """A linear probe on what a backbone pools."""

    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(width, 10)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(pooled(self.backbone(pixel_values=pixel_values)).flatten(1))


def pooled(output: Any) -> Tensor:
    """The one vector per image that an image model of transformers gives."""
    found = output if isinstance(output, Tensor) else getattr(output, "pooler_output", None)
    if not isinstance(found, Tensor):
        raise TypeError("it pools to no vector")
    return found


# Building


def build(entry: Mapping[str, Any]) -> fs.Model:
    """A model of the list, with random weights."""
    torch.manual_seed(0)
    library, _, rest = entry["model"].partition(":")
    if library != "transformers":
        return with_head(fs.load_model(entry["model"], pretrained=False, device="cpu"))
    normal = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    module = transformers_module(rest).eval()
    size = (image_side(module),) * 2
    return with_head(fs.wrap(module, name=entry["model"], input_size=size, **normal))


def with_head(model: fs.Model) -> fs.Model:
    """The model; a head that was initialised to zeros, which reads nothing, gets random weights."""
    for layer in model.module.modules():
        if isinstance(layer, nn.Linear) and not layer.weight.any():
            nn.init.normal_(layer.weight, std=0.02)
    return model


def images_of(entry: Mapping[str, Any], model: fs.Model, count: int = 2) -> Tensor:
    """Random images of the size that the list says, or of the model's own."""
    given = re.search(r"img_size=(\d+)", entry["model"])  # not all models say so
    side = entry.get("side") or (int(given[1]) if given else (model.input_size or (224,))[0])
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def transformers_module(rest: str) -> nn.Module:
    """`Class`, `zero_shot(Class)` or `probe(Class)` of transformers, small and random."""
    import transformers

    kind, _, inner = rest.rpartition("(")
    made = getattr(transformers, inner.rstrip(")"))
    ask = "get_image_features" if kind == "zero_shot" else "forward"
    with torch.device("meta"):
        if weight(made(small_config(made.config_class))) > LARGEST_MODEL:
            raise MemoryError("it is too large to be built for this table")
    for narrow in (True, False):  # not all widths fit each other
        module = made(small_config(made.config_class, narrow=narrow)).eval()
        try:
            with torch.no_grad():
                output = getattr(module, ask)(torch.zeros(1, 3, *(image_side(module),) * 2))
            break
        except (RuntimeError, ValueError):
            if not narrow:
                raise
    if not kind:
        return module
    width = pooled(output).flatten(1).shape[1]
    if kind == "probe":
        return Probe(module, width)
    return fs.zero_shot(Tower(module), torch.randn(10, width), 100.0).module


def small_config(config_class: Any, *, narrow: bool = False) -> Any:
    """The default configuration, where it keeps one grid with two blocks and SIDE patches."""
    config = config_class(num_labels=10)
    for part in (config, *(getattr(config, name, None) for name in config_class.sub_configs)):
        if not isinstance(getattr(part, "num_hidden_layers", None), int) or hasattr(part, "depths"):
            continue
        part.num_hidden_layers = 2
        patch, side = getattr(part, "patch_size", None), getattr(part, "image_size", None)
        if isinstance(patch, int) and isinstance(side, int):
            part.image_size = SIDE * patch
        for option, value in (
            ("hidden_size", SMALL["embed_dim"]),
            ("num_attention_heads", SMALL["num_heads"]),
            ("intermediate_size", 2 * SMALL["embed_dim"]),
        ):
            if narrow and isinstance(getattr(part, option, None), int):
                setattr(part, option, value)
    return config


def image_side(module: nn.Module) -> int:
    """How large its images are by its configuration; 224 instead of more than LARGEST."""
    for child in module.modules():
        config = getattr(child, "config", None)
        for part in (config, getattr(config, "vision_config", None)):
            side = getattr(part, "image_size", None)
            side = side[0] if isinstance(side, list | tuple) else side
            if isinstance(side, int):
                return side if side <= LARGEST else 224
    return 224


# Looking at a model


class Attending(TorchFunctionMode):
    """Records how many queries, over the batch, each softmax attention answers."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: list[int] = []
        self.softmax: list[int] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            query = args[0] if args else kwargs["query"]
            if query.shape[-2] > 1:  # one query is a pool
                self.queries.append(query.shape[:-3].numel() * query.shape[-2])
        elif name == "multi_head_attention_forward":
            if args[0].shape[0] > 1:
                self.queries.append(args[0].shape[0] * args[0].shape[1])
        elif name == "softmax" and args[0].ndim > 2:
            self.softmax.append(args[0].numel() // args[0].shape[-1])
        elif name in ("matmul", "__matmul__", "bmm", "baddbmm", "einsum") and self.softmax:
            self.queries.append(self.softmax.pop())  # the softmax was multiplied with something
        return func(*args, **(kwargs or {}))


def kind_of(module: nn.Module, images: Tensor) -> str:
    """Which of KINDS a model is, by one forward pass."""
    with torch.no_grad(), Attending() as seen:
        module(images)
    if not seen.queries:
        return "none"
    return "grid" if max(seen.queries) <= 1.5 * min(seen.queries) else "stages"


def structure(module: nn.Module) -> tuple[Any, ...]:
    """What makes a variant of an architecture, whatever its size."""
    pool = getattr(module, "global_pool", None)
    return (
        type(module).__name__,
        frozenset(type(child).__name__ for child in module.modules()),
        pool if isinstance(pool, str) else None,
        getattr(module, "num_prefix_tokens", None),
    )


def weight(module: nn.Module) -> int:
    """Its number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


# The list


def choose() -> dict[str, list[Entry]]:
    """The list of models by the rule above, and what was left out."""
    listed: list[Entry] = []
    left_out: list[Entry] = []
    for entry in chain(timm_models(), transformers_models(), torchvision_models()):
        (left_out if "reason" in entry else listed).append(entry)
        print(entry, file=sys.stderr, flush=True)
    return {"models": listed, "left_out": left_out}


def timm_models() -> Iterator[Entry]:
    """One entry per structure or file of timm."""
    import timm

    def shell(name: str, **options: Any) -> Any:
        with torch.device("meta"):
            return timm.create_model(name, num_classes=10, **options).eval()

    for file in timm.list_modules():
        groups: dict[Any, list[tuple[int, str]]] = defaultdict(list)
        for name in timm.list_models(module=file):
            made = shell(name)
            groups[structure(made)].append((weight(made), name))
        smallest = sorted(min(group) for group in groups.values())
        keeps_grid = one_reduction(shell(smallest[0][1]))
        for _, name in smallest:
            entry = {"model": f"timm:{name}", "family": f"timm {file}"}
            choices: list[Entry] = [{"side": 224}, {}]
            if keeps_grid:
                small = timm_options(name, shell)
                whole = {key: value for key, value in small.items() if key != "img_size"}
                choices = [{"model": f"timm:{name}{written(part)}"} for part in (small, whole, {})]
            found = first_that_runs(entry, choices)
            if found.get("kind", "none") != "none" and not keeps_grid:
                yield found | {"kind": "stages"}
                break
            if keeps_grid:
                yield found


def one_reduction(module: Any) -> bool:
    """Whether every feature map that timm declares has the same grid."""
    info = getattr(module, "feature_info", None) or []
    info = info if isinstance(info, list) else list(getattr(info, "info", []))
    return len({stage["reduction"] for stage in info}) == 1


def timm_options(name: str, shell: Callable[..., nn.Module]) -> dict[str, int]:
    """A small variant, as far as the constructor allows and the structure stays as it is."""
    options: dict[str, int] = {}
    wanted = structure(shell(name))
    patch = (find_patch_size(shell(name), None) or (16,))[0]
    width = {"embed_dim": SMALL["embed_dim"], "num_heads": SMALL["num_heads"]}
    for more in ({"depth": SMALL["depth"]}, width, {"img_size": SIDE * max(patch, 4)}):
        try:
            made = shell(name, **options, **more)
        except Exception:
            continue
        if structure(made) == wanted:
            options |= more
    return options


def transformers_models() -> Iterator[Entry]:
    """One entry per class of transformers that classifies, has a tower, or can be probed."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    classifiers = auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    towers = auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES
    bare = {
        family: name
        for family, name in auto.MODEL_FOR_IMAGE_MAPPING_NAMES.items()
        if family not in classifiers
    }
    convolutional = "no attention between positions: torchvision's stand for it"
    for form, mapping in (("{}", classifiers), ("zero_shot({})", towers), ("probe({})", bare)):
        seen = set()
        for family, classes in mapping.items():
            for name in classes if isinstance(classes, tuple) else (classes,):
                if not hasattr(transformers, name) or name in seen:
                    continue
                seen.add(name)
                spec = f"transformers:{form.format(name)}"
                entry = {"model": spec, "family": f"transformers {family}"}
                found = first_that_runs(entry, [{}])
                none = found.get("kind") == "none"
                yield {**entry, "reason": convolutional} if none else found


def torchvision_models() -> Iterator[Entry]:
    """One entry per file of torchvision, and per structure of one that attends."""
    from torchvision import models

    files = defaultdict(list)
    for name in models.list_models(module=models):
        files[models.get_model_builder(name).__module__.rpartition(".")[2]].append(name)
    for file, names in files.items():
        groups: dict[Any, list[tuple[int, str]]] = defaultdict(list)
        for name in names:
            try:
                with torch.device("meta"):
                    made = models.get_model(name)
            except NotImplementedError:  # it computes its widths with tensors
                made = models.get_model(name)
            groups[structure(made)].append((weight(made), name))
        for _, name in sorted(min(group) for group in groups.values()):
            entry = {"model": f"torchvision:{name}", "family": f"torchvision {file}"}
            found = first_that_runs(entry, [{}])
            yield found
            if found.get("kind", "none") == "none":
                break


def first_that_runs(entry: Entry, choices: Sequence[Entry]) -> Entry:
    """The entry with the first choice that runs an image, or with the reason why none does."""
    reason = ""
    for more in choices:
        try:
            model = build(entry | more)
            images = images_of(entry | more, model, 1)
            kind = kind_of(model.module, images)
            with torch.no_grad():
                model.logits(images)  # it classifies
            return {**entry, **more, "kind": kind}
        except Exception as error:
            reason = first_line(error)
    return {**entry, "reason": reason}


def written(options: dict[str, int]) -> str:
    """Options as a name has them in brackets."""
    inner = ", ".join(f"{key}={value}" for key, value in options.items())
    return f"({inner})" if inner else ""


def first_line(error: Exception) -> str:
    """What an error says, in one line of bounded length."""
    text = re.sub(r"/\S+/", "", (str(error).strip().splitlines() or [""])[0])
    return f"{type(error).__name__}: {text[:160]}"
