"""Models that a run of retraining trained, `run:FOLDER(seed=0)`: those of the intact data.

The artifact that holds the weights says what else is needed to use them, as its `card`: how to
build the model, the words or the normalisation that it was trained with, and its classes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from faithscope.errors import FaithscopeError, shown
from faithscope.models.bilstm_text import bilstm_text
from faithscope.models.model import Model
from faithscope.models.sources import SOURCES, load_state, wrap
from faithscope.models.tensor_files import read_tensors
from faithscope.models.text_classifier import Pretrained
from faithscope.models.text_model import text_model, tokenizer_digest
from faithscope.models.vit_pack import ViTShape
from faithscope.registry import check_options
from faithscope.request.paths import Place, as_place

State = Mapping[str, Tensor]
START = "weights."
"""Of the names of weights in an artifact."""
INTACT = re.compile(r"k000-s(\d+)\.safetensors")
"""The artifact of the model that was trained on the intact data with a seed."""
Size = Annotated[int, Field(ge=1, le=1 << 20)]


class ModelCard(BaseModel):
    """What the artifact of a model says of it, beside its weights."""

    model_config = ConfigDict(strict=True, extra="forbid")

    classes: list[str]


class BiLSTMCard(ModelCard):
    """A BiLSTM: its vocabulary, and the kind of texts, by which they are cut into words."""

    texts: str
    words: list[str]

    def model(self, weights: State, name: str, trust_remote_code: bool) -> Model:
        """The model, trained."""
        classes = self.classes
        return bilstm_text(weights, self.words, name=name, classes=classes, kind=self.texts)


class EncoderCard(ModelCard):
    """A fine-tuned encoder: the checkpoint that it began as, and a hash of its tokenizer."""

    checkpoint: str
    tokenizer: str

    def model(self, weights: State, name: str, trust_remote_code: bool) -> Model:
        """The model, trained; its configuration and tokenizer are those of the checkpoint."""
        made = Pretrained(
            self.checkpoint,
            len(self.classes),
            pretrained=False,
            trust_remote_code=trust_remote_code,
        )
        if tokenizer_digest(made.tokenizer) != self.tokenizer:
            raise FaithscopeError(
                f"The tokenizer of '{self.checkpoint}' is not the one that {name} was trained "
                "with: put that back."
            )
        module = made.build(0)
        load_state(module, weights, name)
        return text_model(module, made.tokenizer, name=name, classes=self.classes)


class ViTCard(ModelCard):
    """A Vision Transformer: its sizes, and the normalisation of its images."""

    size: tuple[Size, Size] = Field(strict=False)
    channels: Size
    dim: Size
    depth: Annotated[int, Field(ge=1, le=1000)]
    heads: Size
    mlp: Annotated[float, Field(gt=0, le=100)]
    patch: Size
    mean: list[float]
    std: list[float]

    def model(self, weights: State, name: str, trust_remote_code: bool) -> Model:
        """The model, trained."""
        sizes = self.model_dump(exclude={"classes", "mean", "std"})
        shape = ViTShape(classes=len(self.classes), **sizes)
        if {key: tuple(held.shape) for key, held in weights.items()} != shape.parameters():
            raise ValueError("its weights are not those of such a model")
        module = shape.module()
        load_state(module, weights, name)
        return wrap(
            module,
            name=name,
            input_size=self.size,
            mean=self.mean,
            std=self.std,
            classes=self.classes,
        )


CARDS: Mapping[str, type[BiLSTMCard | EncoderCard | ViTCard]] = {
    "bilstm": BiLSTMCard,
    "hf": EncoderCard,
    "vit": ViTCard,
}
"""By what is trained."""


def _run(
    name: str, *, pretrained: bool, state: Mapping[str, Tensor] | None, options: dict[str, Any]
) -> Model:
    """The model that a run of `fs.roar` trained on the intact data with a seed."""
    trust = bool(options.pop("trust_remote_code", False))
    check_options("model", "run", options, {"seed": 0})
    label, seed = f"run:{name}", int(options.get("seed", 0))
    if not pretrained:
        raise FaithscopeError(
            f"'{label}' is a trained model: leave pretrained and checkpoint out (--no-pretrained, "
            "--checkpoint)."
        )
    file = _weights_file(as_place(name, "The folder of the run"), seed)
    try:
        tensors, about = read_tensors(file.read_bytes())
        weights = {k.removeprefix(START): v for k, v in tensors.items() if k.startswith(START)}
        if weights and "card" not in about:
            raise FaithscopeError(
                f"'{file}' holds weights and does not say of what model (it is of a learner of "
                "your own, or of an older faithscope): run fs.roar again, with another folder."
            )
        card = json.loads(about["card"])
        return CARDS[card.pop("kind")].model_validate(card).model(weights, label, trust)
    except FaithscopeError:
        raise
    except (OSError, ValidationError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error) if type(error) is ValueError else type(error).__name__
        raise FaithscopeError(
            f"'{file}' cannot be used ({reason}): it is damaged, or no model of a run; restore it, "
            "or run fs.roar again, with another folder."
        ) from None


def _weights_file(folder: Place, seed: int) -> Place:
    """The file of the model of a seed in a run, or in the only run below a folder."""
    below = [file for file in folder.glob("**/k000-s*") if file.parent.name == "models"]
    found = {file: int(name[1]) for file in below if (name := INTACT.fullmatch(file.name))}
    if not found:
        raise FaithscopeError(
            f"'{folder}' holds no trained model: give the folder in which fs.roar ran (faithscope "
            "roar --out FOLDER); a finished run that was packed and unpacked has none."
        )
    runs = sorted({str(file.parent.parent.parent) for file in found})
    if len(runs) > 1:
        some = " or ".join(f"run:{run}" for run in runs[:5])
        raise FaithscopeError(f"'{folder}' holds {len(runs)} runs: name one, such as {some}.")
    seeds = {own: file for file, own in found.items()}
    if seed not in seeds:
        raise FaithscopeError(
            f"The run '{folder}' trained no model with seed {shown(seed)}: its seeds are "
            f"{', '.join(map(str, sorted(seeds)))}, as run:{folder}(seed={min(seeds)})."
        )
    return seeds[seed]


SOURCES.register(
    "run",
    _run,
    summary="What fs.roar trained on the intact data of a run (option seed).",
    example="run:runs/roar-babi-1(seed=0)",
)
