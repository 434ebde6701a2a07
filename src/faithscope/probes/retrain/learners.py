"""Models to retrain by name: of texts `bilstm` and `hf:ID`, any encoder; of images `vit`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from faithscope.errors import FaithscopeError, unknown
from faithscope.models.device import device_to_train_on
from faithscope.probes.retrain.learner import Learner
from faithscope.registry import parse_spec
from faithscope.request import Given, Retrain
from faithscope.request.code import split_label

if TYPE_CHECKING:
    from faithscope.probes.retrain.modality import Modality

TRAINED_MODELS = {
    "bilstm": "BiLSTM-attention, single or paired, as in the paper; trained from the start.",
    "hf:ID": "Any sequence classifier of Hugging Face, an id or a folder; fine-tuned.",
    "vit": "Vision Transformer of labelled images, as vit(dim=192, depth=6); trained from the "
    "start.",
}


def modality_of(request: Retrain, given: Given) -> Modality:
    """Texts or images: what the model is trained on; only here is one chosen."""
    if given.model is None:
        check_model(request.model)
        is_image = _is_vit(split_label(request.model)[1])
    else:
        is_image = getattr(given.model, "modality", "text") == "image"
    if is_image:
        from faithscope.probes.retrain.images import ImageModality

        return ImageModality(request)
    from faithscope.probes.retrain.texts import TextModality

    return TextModality()


def load_learner(
    name: str,
    data: Any,
    *,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
) -> Learner:
    """Make a model ready to be trained on a data set.

    Args:
        name: ``bilstm`` or ``hf:ID or folder``, for example ``hf:roberta-base``; ``vit`` or
            ``vit(dim=192, depth=6)``; with a label, ``mine=hf:roberta-base``.
        data: the data set; of texts, the paper's hyper-parameters go by its kind.
        epochs: how long to train; by default as long as the paper.
        batch_size: texts or images per step, if not the paper's.
        learning_rate: of Adam, if not the paper's.
        device: "auto" is a GPU if there is one.
        trust_remote_code: run the Python files that come with a model of Hugging Face.
    """
    check_model(name)
    label, name = split_label(name)
    learner = _load(name, data, epochs, batch_size, learning_rate, device, trust_remote_code)
    learner.name = label or learner.name
    return learner


def _load(
    name: str,
    data: Any,
    epochs: int | None,
    batch_size: int | None,
    learning_rate: float | None,
    device: str,
    trust_remote_code: bool,
) -> Learner:
    asked = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    place = str(device_to_train_on(device))
    if not name.startswith("hf:") and trust_remote_code:
        raise FaithscopeError("trust_remote_code is for models of Hugging Face, hf:….")
    if _is_vit(name):
        from faithscope.probes.retrain.vit import RECIPE, ViTLearner, ViTOptions

        options = ViTOptions.of(parse_spec(name)[1])
        return ViTLearner(options, device=place, recipe=replace(RECIPE, **changes))
    if name == "bilstm":
        from faithscope.probes.retrain.bilstm import SETTINGS, BiLSTMLearner

        recipe = replace(SETTINGS[data.kind].recipe, **changes)
        return BiLSTMLearner(data.kind, device=place, recipe=recipe)
    from faithscope.probes.retrain.finetune import FinetuneLearner, finetune_recipe

    recipe = replace(finetune_recipe(data.kind), **changes)
    return FinetuneLearner(
        name, data, recipe=recipe, device=place, trust_remote_code=trust_remote_code
    )


def check_model(name: str) -> None:
    """Refuse a name that cannot be a model's, before anything is loaded."""
    plain = split_label(name)[1] if isinstance(name, str) else name
    if isinstance(plain, str) and _is_vit(plain):
        from faithscope.probes.retrain.vit import ViTOptions

        ViTOptions.of(parse_spec(plain)[1])
    elif not isinstance(plain, str) or not (plain == "bilstm" or plain.partition(":")[0] == "hf"):
        raise unknown("model to train", str(name), TRAINED_MODELS)


def _is_vit(name: str) -> bool:
    return name.partition("(")[0].strip() == "vit"
