"""Models to retrain by name: `bilstm`, the paper's BiLSTM-attention, or `hf:ID`, any encoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from faithscope.data.text import TextData
from faithscope.errors import FaithscopeError, unknown
from faithscope.models.device import device_to_train_on
from faithscope.probes.retrain.learner import Learner
from faithscope.request.code import split_label

TEXT_MODELS = {
    "bilstm": "BiLSTM-attention, single or paired, as in the paper; trained from the start.",
    "hf:ID": "Any sequence classifier of Hugging Face, an id or a folder; fine-tuned.",
}


def load_learner(
    name: str,
    data: TextData,
    *,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
) -> Learner:
    """Make a model ready to be trained on a data set.

    Args:
        name: ``bilstm`` or ``hf:ID or folder``, for example ``hf:roberta-base``; with a label,
            ``mine=hf:roberta-base``.
        data: the data set; the paper's hyper-parameters go by its kind.
        epochs: how long to train; by default as long as the paper.
        batch_size: texts per step, if not the paper's.
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
    data: TextData,
    epochs: int | None,
    batch_size: int | None,
    learning_rate: float | None,
    device: str,
    trust_remote_code: bool,
) -> Learner:
    asked = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    place = str(device_to_train_on(device))
    if name == "bilstm":
        if trust_remote_code:
            raise FaithscopeError("trust_remote_code is for models of Hugging Face, hf:….")
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
    if not isinstance(plain, str) or not (plain == "bilstm" or plain.partition(":")[0] == "hf"):
        raise unknown("text model", str(name), TEXT_MODELS)
