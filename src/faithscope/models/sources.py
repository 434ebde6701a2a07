"""Where models come from: timm, Hugging Face, torchvision, the bundle, or a custom module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from faithscope.errors import FaithscopeError, choose, shortened, shown, unknown, warn
from faithscope.models.attention import AttentionView
from faithscope.models.code import built
from faithscope.models.device import choose_device
from faithscope.models.model import Model, check_output
from faithscope.models.options import SAFE, check_config, check_memory, check_safe, not_loaded
from faithscope.models.text_classifier import quietly, read_tokenizer
from faithscope.models.text_model import text_model, word_embeddings
from faithscope.models.vit import READOUTS, as_pair, find_patch_size, find_vit
from faithscope.registry import Registry, listed
from faithscope.request import split_options
from faithscope.request.code import as_code, split_label

Source = Callable[..., Model]
SOURCES: Registry[Source] = Registry("model source", group="faithscope.models")
BUNDLE = resources.files("faithscope") / "bundled"


def load_model(
    name: str,
    *,
    pretrained: bool = True,
    checkpoint: str | Path | None = None,
    device: str | torch.device = "auto",
    trust_remote_code: bool = False,
    output: str | None = None,
) -> Model:
    """Load a model by name, unmodified, with the preprocessing of its own configuration.

    Args:
        name: ``timm:NAME``, ``hf:ID or folder``, ``torchvision:NAME``, ``bundled:NAME``,
            ``file:WEIGHTS.safetensors`` with its card, ``WEIGHTS.json``, beside it, or
            ``run:FOLDER(seed=0)``, what `fs.roar` trained on the intact data; options of the
            model's constructor may follow in brackets, ``timm:NAME(img_size=32)``, as far as they
            are known to be safe. ``FILE.py:NAME`` runs your own file and takes a module, or what a
            function gives, out of it. ``LABEL=NAME`` calls the model LABEL in tables.
        pretrained: fetch the library's weights (needs a network or a cache).
        checkpoint: a local file of weights instead, safetensors or a torch state dict.
        device: "auto" is a GPU if there is one (CUDA's before Apple's), else the CPU.
        trust_remote_code: run the Python files that come with a model of Hugging Face.
        output: how logits become probabilities, "softmax" or "sigmoid", if not as its
            configuration says.
    """
    if not isinstance(name, str):
        raise FaithscopeError(f"A model is named by a text, got {type(name).__name__}.")
    label, plain = split_label(name)
    code = as_code(plain)
    kind, colon, rest = plain.partition(":")
    if not colon or not rest:
        raise FaithscopeError(
            f"A model is named 'source:name', got '{name}': for example 'bundled:cifar10_vit', "
            "'timm:vit_base_patch16_224', 'hf:google/vit-base-patch16-224', "
            "'torchvision:vit_b_16' or 'mynet.py:build'."
        )
    check_output(output)
    chosen = choose_device(device)
    state = None if checkpoint is None else read_checkpoint(Path(checkpoint))
    identifier, options = split_options(rest)
    fetch = pretrained and state is None
    if kind in SAFE and code is None:
        check_safe(kind, identifier, options)
    if trust_remote_code:
        if kind not in ("hf", "run"):
            raise FaithscopeError(
                f"trust_remote_code is for models of Hugging Face, hf:…, not for '{name}'."
            )
        options = {**options, "trust_remote_code": True}
    if code is not None:
        model = as_model(built(code))
    else:
        model = SOURCES[kind](identifier, pretrained=fetch, state=state, options=options)
    if state is not None:
        load_state(model.module, state, str(checkpoint))
    model.module.eval()
    weights = "pretrained" if fetch else "random" if state is None else f"checkpoint {checkpoint}"
    origin = plain if label else ""
    if code is not None:
        weights = "as given" if state is None else weights
        plain, origin = str(code), f"{code}, {code.digest}"
    named = replace(model, name=label or plain, weights=weights, origin=origin)
    return named.with_output(output).to(chosen)


def wrap(
    module: nn.Module,
    *,
    name: str | None = None,
    input_size: tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    classes: Sequence[str] | None = None,
    transform: Callable[[Image.Image], Tensor] | None = None,
    attention: Sequence[AttentionView | nn.Module] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    prefix_tokens: int | None = None,
    readout: str | None = None,
    output: str | None = None,
    tokenizer: Any = None,
) -> Model:
    """Wrap your own classifier; what is not given is read off the module where possible.

    Args:
        module: any module that maps [B, C, H, W] to logits [B, classes], or to one logit, [B] or
            [B, 1], with output="sigmoid"; left as it is.
        name: how it is called in tables.
        input_size: (height, width) of its input.
        mean: per-channel mean of its normalisation (for `fill="black"` and for pictures).
        std: per-channel standard deviation of its normalisation.
        classes: class names.
        transform: PIL image to input tensor; made from size, mean and std if those are given.
        attention: its attention modules, first block first, if they are not found.
        patch_size: size of a patch in pixels, if it is not found.
        prefix_tokens: tokens before the patches (class, distillation, registers), if they are
            not counted rightly.
        readout: what the head reads, to be checked: "class" (the first token), "mean" (of the
            patches), "all" (the mean of all tokens) or "attention" (an attention pool).
        output: how logits become probabilities: by the "softmax", or each by its own "sigmoid" (of
            models with several labels an image, or with one logit, that of class 1).
        tokenizer: of a text classifier of Hugging Face, which takes no sizes, colours or patches.
    """
    if not isinstance(module, nn.Module):
        raise FaithscopeError(f"fs.wrap takes a torch module, got {type(module).__name__}.")
    if name is not None and (not isinstance(name, str) or not name):
        raise FaithscopeError(f"name must be a text, got {shown(name)}.")
    _check_weights(module)
    if tokenizer is not None:
        of_images = (input_size, mean, std, transform, patch_size, prefix_tokens, readout)
        if any(given is not None for given in of_images):
            raise FaithscopeError(
                "A tokenizer goes with a text classifier, which has no input_size, mean, std, "
                "transform, patch_size, prefix_tokens or readout: leave these out."
            )
        label = name or type(module).__name__
        made = text_model(
            module, tokenizer, name=label, classes=_class_names(classes), attention=attention
        )
        return made.with_output(output)
    if word_embeddings(module) is not None:
        raise FaithscopeError(
            f"{type(module).__name__} reads texts: give fs.wrap(module, tokenizer=…) its tokenizer."
        )
    size = _given_pair("input_size", input_size) or _declared_size(module)
    patches = _given_pair("patch_size", patch_size)
    if readout is not None:
        choose("readout", readout, READOUTS)
    read_by = check_output(output)
    if prefix_tokens is not None and (
        not isinstance(prefix_tokens, int) or isinstance(prefix_tokens, bool) or prefix_tokens < 0
    ):
        raise FaithscopeError(
            f"prefix_tokens must be a whole number of at least 0, got {shown(prefix_tokens)}."
        )
    if transform is not None and not callable(transform):
        raise FaithscopeError(
            f"transform must be a function of a PIL image, got {shown(transform)}."
        )
    if attention is not None and not isinstance(attention, list | tuple):
        raise FaithscopeError(
            f"attention must be a list of attention modules, got {shown(attention)}."
        )
    mean_, std_ = _normalisation(mean, std)
    if transform is None and size and mean_ and std_:
        transform = plain_transform(size, mean_, std_)
    return Model(
        module=module,
        name=name or type(module).__name__,
        input_size=size,
        mean=mean_,
        std=std_,
        transform=transform,
        classes=_class_names(classes),
        patch_size=patches or find_patch_size(module, size),
        vit=find_vit(module, attention=attention, prefix_tokens=prefix_tokens, readout=readout),
        output=read_by or _declared_output(module),
    )


def _check_weights(module: nn.Module) -> None:
    """Refuse parameters and buffers that have no values."""
    for name, held in chain(module.named_parameters(), module.named_buffers()):
        if is_lazy(held):
            advice = "run the module once on an image"
        elif held.is_meta:
            advice = "load its weights, and leave out what keeps them elsewhere (device_map)"
        else:
            continue
        raise FaithscopeError(f"'{name}' of {type(module).__name__} has no values yet: {advice}.")


def _normalisation(
    mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Check that mean and std come together, one number per channel."""
    if mean is None and std is None:
        return None, None
    try:
        means, stds = (tuple(map(float, listed(given, "channels"))) for given in (mean, std))
    except Exception:  # of somebody's own numbers, too
        means, stds = (), ()
    numbers = (*means, *stds)
    if not means or len(means) != len(stds) or min(stds) <= 0 or not all(map(isfinite, numbers)):
        raise FaithscopeError(
            f"mean and std must be given together, one number per channel and std above 0, got "
            f"{shown(mean)} and {shown(std)}."
        )
    return means, stds


def _class_names(classes: Any) -> tuple[str, ...] | None:
    """Check the names of classes, one text each."""
    if classes is None:
        return None
    names = listed(classes, "classes") if isinstance(classes, Sequence) else []
    if isinstance(classes, str) or not names or not all(isinstance(one, str) for one in names):
        raise FaithscopeError(f"classes must be a list of names, got {shown(classes)}.")
    return tuple(names) if len(names) > 1 else (f"not {names[0]}", names[0])


def _given_pair(what: str, value: Any) -> tuple[int, int] | None:
    """Check a size in pixels: height and width, or one number for both."""
    if value is None:
        return None
    found = None if isinstance(value, bool) else as_pair(value)
    if found is None:
        raise FaithscopeError(
            f"{what} must be whole numbers above 0, height and width, got {shown(value)}."
        )
    return found


def as_model(model: Model | nn.Module | str) -> Model:
    """Accept a model, a plain module or a name wherever a model is taken."""
    if isinstance(model, Model):
        return model
    if isinstance(model, nn.Module):
        return wrap(model)
    if isinstance(model, str):
        return load_model(model)
    raise FaithscopeError(
        f"A model is a name, a torch module or a faithscope Model, got {type(model).__name__}."
    )


def plain_transform(
    size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
) -> Callable[[Image.Image], Tensor]:
    """Resize to the whole input, scale to [0, 1], normalise."""
    from torchvision.transforms import v2 as transforms

    pipeline: Callable[[Image.Image], Tensor] = transforms.Compose(
        [
            transforms.PILToTensor(),
            transforms.Resize(size, antialias=True),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize(list(mean), list(std)),
        ]
    )
    return pipeline


def _timm(
    name: str, *, pretrained: bool, state: Mapping[str, Tensor] | None, options: dict[str, Any]
) -> Model:
    import timm

    if not timm.is_model(name.partition(".")[0]):
        raise unknown("timm model", name, timm.list_models("*vit*"))
    if state is not None and "num_classes" not in options:
        options = {**options, **_classes_in(state)}
    module = _timm_module(f"timm:{name}", name, pretrained=pretrained, options=options)
    config = timm.data.resolve_model_data_config(module)
    size = _declared_size(module) or tuple(config["input_size"][1:])  # img_size=… may be an option
    config["input_size"] = (config["input_size"][0], *size)
    return wrap(
        module,
        name=f"timm:{name}",
        input_size=size,
        mean=config["mean"],
        std=config["std"],
        transform=timm.data.create_transform(**config, is_training=False),
        classes=_imagenet_classes(module.num_classes) if pretrained else None,
    )


def _timm_module(
    label: str, architecture: str, *, pretrained: bool, options: Mapping[str, Any]
) -> Any:
    """Build a timm model; one that was shaped by options is first built without memory."""
    import timm

    def build(pretrained: bool) -> Any:
        return timm.create_model(architecture, pretrained=pretrained, **options)

    if options:
        with torch.device("meta"):
            check_memory(f"'{label}'", _fetch(label, lambda: build(False)))
    return _fetch(label, lambda: build(pretrained))


def _hugging_face(
    name: str, *, pretrained: bool, state: Mapping[str, Tensor] | None, options: dict[str, Any]
) -> Model:
    from transformers import (
        AutoConfig,
        AutoImageProcessor,
        AutoModelForImageClassification,
        AutoModelForSequenceClassification,
    )

    trust = {"trust_remote_code": bool(options.get("trust_remote_code"))}
    where = {key: options[key] for key in ("revision", "local_files_only") if key in options}
    how = {key: options[key] for key in ("ignore_mismatched_sizes",) if key in options}
    shape = {key: options[key] for key in options if key not in {*trust, *where, *how}}

    def configure() -> Any:
        found = AutoConfig.from_pretrained(name, **shape, **where, **trust)
        check_config(f"hf:{name}", found)
        return found

    config = _fetch(f"hf:{name}", configure)
    of_texts = _is_of_texts(f"hf:{name}", config)
    kind = AutoModelForSequenceClassification if of_texts else AutoModelForImageClassification

    def build() -> nn.Module:
        if pretrained:
            loaded: nn.Module
            loaded, found = kind.from_pretrained(
                name, config=config, output_loading_info=True, **how, **where, **trust
            )
            if state is None:
                _warn_of_untrained(f"hf:{name}", found)
            return loaded
        made: nn.Module = kind.from_config(config, **trust)
        return made

    module: Any = _fetch(f"hf:{name}", lambda: quietly(build))
    if of_texts:
        return text_model(module, read_tokenizer(f"hf:{name}", name, trust), name=f"hf:{name}")

    def prepare() -> Any:
        try:
            return AutoImageProcessor.from_pretrained(name, **where, **trust)
        except OSError:
            if not Path(name).is_dir():
                raise
            raise FaithscopeError(
                f"'hf:{name}' comes without an image processor: save one beside the model "
                "(processor.save_pretrained)."
            ) from None

    processor = _fetch(f"hf:{name}", prepare)

    def transform(image: Image.Image) -> Tensor:
        pixels: Tensor = processor(images=image, return_tensors="pt")["pixel_values"][0]
        return pixels

    config = module.config
    looks = _fetch(f"hf:{name}", lambda: _looks(processor))
    labels = _fetch(f"hf:{name}", lambda: [config.id2label[i] for i in sorted(config.id2label)])
    return wrap(module, name=f"hf:{name}", transform=transform, classes=labels, **looks)


def _warn_of_untrained(name: str, found: Mapping[str, Any]) -> None:
    """Say which weights are random since the checkpoint has none that fit."""
    others = (held if isinstance(held, str) else held[0] for held in found["mismatched_keys"])
    missing = sorted({*found["missing_keys"], *others})
    if missing:
        warn(
            f"'{name}' has no trained {shortened(', '.join(missing), 200)}, which "
            f"{'is' if len(missing) == 1 else 'are'} random now: take a model that was trained to "
            "classify."
        )


def _is_of_texts(name: str, config: Any) -> bool:
    """Whether it is texts that a model reads; one of which no classifier is known is refused."""
    from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

    kinds = (AutoModelForImageClassification, AutoModelForSequenceClassification)
    own = getattr(config, "auto_map", None) or {}
    known = [kind.__name__ in own or type(config) in kind._model_mapping for kind in kinds]
    if all(known):  # one kind, Perceiver, has classifiers of both
        return "ForSequence" in " ".join(getattr(config, "architectures", None) or ())
    if any(known):
        return known[1]
    kind = getattr(config, "model_type", type(config).__name__)
    raise FaithscopeError(
        f"Hugging Face has no classifier of images or texts of the kind '{kind}', which '{name}' "
        "is: name another model, or give a module to fs.wrap."
    )


def _looks(processor: Any) -> dict[str, Any]:
    """Size and normalisation of the images that an image processor makes."""
    if hasattr(processor, "data_config"):  # of a timm model
        held = processor.data_config
        size = tuple(held["input_size"][1:])
        return {"input_size": size, "mean": held["mean"], "std": held["std"]}
    sides = getattr(processor, "crop_size", None) or getattr(processor, "size", None) or {}
    normal = bool(getattr(processor, "do_normalize", False))
    return {
        "input_size": (sides["height"], sides["width"]) if "height" in sides else None,
        "mean": processor.image_mean if normal else None,
        "std": processor.image_std if normal else None,
    }


def _torchvision(
    name: str, *, pretrained: bool, state: Mapping[str, Tensor] | None, options: dict[str, Any]
) -> Model:
    from torchvision import models

    if name not in models.list_models(module=models):  # others detect, segment or compress
        raise unknown("torchvision model", name, models.list_models(models, include="vit*"))
    if state is not None and "num_classes" not in options:
        options = {**options, **_classes_in(state)}
    weights = models.get_model_weights(name).DEFAULT
    preset = weights.transforms()
    module = _fetch(
        f"torchvision:{name}",
        lambda: models.get_model(name, weights=weights if pretrained else None, **options),
    )
    side = int(options.get("image_size", preset.crop_size[0]))
    given = side == preset.crop_size[0]
    return wrap(
        module,
        name=f"torchvision:{name}",
        input_size=(side, side),
        mean=preset.mean,
        std=preset.std,
        transform=preset if given else plain_transform((side, side), preset.mean, preset.std),
        classes=weights.meta["categories"] if pretrained else None,
    )


def bundled_models() -> list[str]:
    """The models that come with the package: weights with a card, or a folder of Hugging Face."""
    return sorted(
        entry.name.removesuffix(".safetensors")
        for entry in BUNDLE.iterdir()
        if entry.name.endswith(".safetensors") or (entry / "config.json").is_file()
    )


def _bundled(
    name: str, *, pretrained: bool, state: Mapping[str, Tensor] | None, options: dict[str, Any]
) -> Model:
    from safetensors.torch import load

    if options:
        raise FaithscopeError(f"The bundled model '{name}' takes no options.")
    if name not in bundled_models():
        raise unknown("bundled model", name, bundled_models())
    label, weights = f"bundled:{name}", BUNDLE / f"{name}.safetensors"
    if weights.is_file():
        model = _from_card((BUNDLE / f"{name}.json").read_text(), label)
    else:
        weights = BUNDLE / name / "model.safetensors"
        made = _hugging_face(str(BUNDLE / name), pretrained=False, state=None, options={})
        model = replace(made, name=label)
    if pretrained:
        load_state(model.module, load(weights.read_bytes()), label)
    return model


def _file(
    name: str, *, pretrained: bool, state: Mapping[str, Tensor] | None, options: dict[str, Any]
) -> Model:
    """Weights with their card beside them: FILE.safetensors and FILE.json, as the recipes write."""
    if options:
        raise FaithscopeError(f"The model 'file:{name}' takes no options: its card has them.")
    weights = Path(name).expanduser()
    card = weights.with_suffix(".json")
    if not card.is_file():
        raise FaithscopeError(
            f"There is no card '{card}' beside the weights '{name}': give one, as recipes/ writes "
            "it, or name the architecture and give checkpoint=FILE (--checkpoint FILE)."
        )
    model = _from_card(_read_card(card), f"file:{name}")
    if pretrained:
        load_state(model.module, read_checkpoint(weights), name)
    return model


def _read_card(card: Path) -> str:
    try:
        return card.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FaithscopeError(
            f"The card '{card}' cannot be read ({type(error).__name__}): give a JSON file."
        ) from None


class Card(BaseModel):
    """What lies beside weights in a file: how to build their model, and how its images look."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model: str = "vit_tiny_patch16_224"
    timm: dict[str, Any]
    mean: list[Annotated[float, Field(allow_inf_nan=False)]]
    std: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    classes: list[str] | None = None
    output: Literal["softmax", "sigmoid"] | None = None


def _from_card(text: str, name: str) -> Model:
    """Build a timm model as its card says: architecture, options, normalisation, class names."""
    import timm

    try:
        card = Card.model_validate_json(text)
    except ValidationError as error:
        wrong = ".".join(map(str, error.errors()[0]["loc"])) or "its text"
        raise FaithscopeError(
            f"The card of '{name}' cannot be used ({shortened(wrong, 100)} is not what it should "
            "be): it is JSON with 'model', 'timm' (options, img_size among them), 'mean', 'std' "
            "and 'classes'."
        ) from None
    if not timm.is_model(card.model):
        raise unknown("timm model", card.model, timm.list_models("*vit*"))
    check_safe("timm", card.model, card.timm)
    size = card.timm.get("img_size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise FaithscopeError(
            f"The card of '{name}' must say the size of its images, timm: {{img_size: 224}}, got "
            f"{shown(size)}."
        )
    module = _timm_module(name, card.model, pretrained=False, options=card.timm)
    return wrap(
        module,
        name=name,
        input_size=(size, size),
        mean=card.mean,
        std=card.std,
        classes=card.classes,
        output=card.output,
    )


SOURCES.register(
    "timm", _timm, summary="Any image classifier of timm.", example="timm:vit_base_patch16_224"
)
SOURCES.register(
    "hf",
    _hugging_face,
    summary="Any classifier of images or texts on Hugging Face.",
    example="hf:google/vit-base-patch16-224",
)
SOURCES.register(
    "torchvision",
    _torchvision,
    summary="Any classifier of torchvision.",
    example="torchvision:vit_b_16",
)
SOURCES.register("bundled", _bundled, summary="Comes with faithscope.")
SOURCES.register(
    "file",
    _file,
    summary="Your weights, their card (.json) beside them.",
    example="file:my.safetensors",
)


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read weights from safetensors, or from a torch file without running any code in it."""
    if not path.is_file():
        raise FaithscopeError(f"There is no checkpoint file '{path}': check the path.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "it is damaged"
        raise FaithscopeError(
            f"The checkpoint '{path}' cannot be read ({reason}): give a .safetensors file or a "
            "torch file that holds only a state dict."
        ) from None
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content:
        raise FaithscopeError(
            f"The checkpoint '{path}' holds no state dict: save one and try again."
        )
    state = {str(key).removeprefix("module."): value for key, value in content.items()}
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}


def load_state(module: nn.Module, state: Mapping[str, Tensor], origin: str) -> None:
    """Load weights strictly; what does not fit is named."""
    own = module.state_dict()
    missing = [key for key in own if key not in state]
    extra = [key for key in state if key not in own]
    shapes = [
        f"{key} is {list(state[key].shape)} there, {list(own[key].shape)} here"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    problems = [
        f"{len(found)} {what} (first: {found[0]})"
        for what, found in (("missing", missing), ("unknown", extra), ("of another shape", shapes))
        if found
    ]
    if problems:
        raise FaithscopeError(
            f"The checkpoint '{origin}' does not fit this model: weights {', '.join(problems)}; "
            "name the architecture it was trained with."
        )
    module.load_state_dict({key: state[key].to(own[key].dtype) for key in own})


def _fetch(name: str, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except FaithscopeError:
        raise
    except Exception as error:
        advice = "without a network give a local folder"
        if not name.startswith("hf:"):  # whose configuration could not be fetched, either
            advice += (
                " or checkpoint=FILE (--checkpoint FILE), or pretrained=False (--no-pretrained) "
                "for random weights"
            )
        raise not_loaded(name, error, advice) from None


def _classes_in(state: Mapping[str, Tensor]) -> dict[str, int]:
    """Read the number of classes off the head in a checkpoint."""
    for key in ("head.weight", "heads.head.weight", "classifier.weight", "fc.weight"):
        if key in state:
            return {"num_classes": len(state[key])}
    return {}


def _imagenet_classes(count: int) -> list[str] | None:
    if count != 1000:
        return None
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    return [info.index_to_description(index) for index in range(count)]


def _declared_output(module: nn.Module) -> str:
    """Hugging Face says which models have several labels an image, or one logit."""
    config = getattr(module, "config", None)
    problem = getattr(config, "problem_type", None)
    single = problem is None and getattr(config, "num_labels", None) == 1
    return "sigmoid" if single or problem == "multi_label_classification" else "softmax"


def _declared_size(module: nn.Module) -> tuple[int, int] | None:
    """Find the input size in the places where the libraries keep it, below wrappers, too."""
    for child in module.modules():
        patches, config = getattr(child, "patch_embed", None), getattr(child, "config", None)
        for owner in (patches, config, child):
            for attribute in ("img_size", "image_size"):
                size = as_pair(getattr(owner, attribute, None))
                if size is not None:
                    return size
    return None
