"""Odd models: names, options in brackets, cards, checkpoints, arguments of fs.wrap, odd answers."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor, nn

import faithscope as fs
from faithscope.models.options import SAFE
from fuzzing import answered, cases

PARTS = "timm hf file bundled torchvision vit_b_16 raft_large vit_tiny_patch16_224 ~ ../.. é"
ODD_PARTS = ("", " ", ":", "(", ")", "=", ",", "'", "~nosuchuser/x", "\0", "\ud800", "\x1b[31m")
WORDS = st.sampled_from(
    [*PARTS.split(), *ODD_PARTS, "a" * 300, "img_size=0", "**{}", "__import__('os')", "[" * 50]
)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 40),
    st.sampled_from([10**6, -(10**400), 2**63, 1e308, float("nan"), float("inf"), 0.5]),
    st.text(max_size=5),
    st.sampled_from(["gelu", "token", "avg", "", "relu"]),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
OPTIONS = st.sampled_from(sorted({*SAFE["timm"], "checkpoint_path", "pretrained_cfg", "x", ""}))
GOOD = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2}
GOOD |= {"num_classes": 3}
IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


@cases(40)
@given(st.lists(WORDS, min_size=1, max_size=8).map("".join))
def test_names_of_models(name: str):
    if not name.startswith("hf:"):  # those ask a hub, or wait for it
        answered(fs.load_model, name, pretrained=False)


@cases(40)
@given(st.dictionaries(OPTIONS, VALUES, max_size=3))
def test_options_in_brackets(options: dict[str, Any]):
    held = {**{name: GOOD[name] for name in GOOD}, **options}
    inside = ", ".join(f"{name}={value!r}" for name, value in held.items())
    model = answered(fs.load_model, f"timm:vit_tiny_patch16_224({inside})", pretrained=False)
    if isinstance(model, fs.Model):
        answered(fs.evaluate, model, IMAGES, "gradient", "saco", k=2, random_draws=0)


CARD = {"timm": GOOD, "mean": [0.5] * 3, "std": [0.5] * 3, "classes": ["a", "b", "c"]}


@cases(40)
@given(
    changes=st.dictionaries(
        st.sampled_from(["model", "timm", "mean", "std", "classes", "x"]), VALUES, max_size=3
    ),
    options=st.dictionaries(OPTIONS, VALUES, max_size=2),
)
def test_cards(tmp_path_factory: pytest.TempPathFactory, changes: Any, options: Any):
    folder = tmp_path_factory.mktemp("card")
    card = {**CARD, "timm": {**GOOD, **options}, **changes}
    (folder / "w.json").write_text(json.dumps(card))
    (folder / "w.safetensors").write_bytes(save({}))
    model = answered(fs.load_model, f"file:{folder / 'w.safetensors'}", pretrained=False)
    if isinstance(model, fs.Model):
        answered(fs.evaluate, model, IMAGES, "gradient", "saco", k=2, random_draws=0)


@cases(30)
@given(st.binary(max_size=200), st.sampled_from(["w.safetensors", "w.pth", "w", "w.json"]))
def test_checkpoints(tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str):
    file = tmp_path_factory.mktemp("weights") / name
    file.write_bytes(content)
    inside = ", ".join(f"{key}={value}" for key, value in GOOD.items())
    answered(fs.load_model, f"timm:vit_tiny_patch16_224({inside})", checkpoint=file)


OBJECTS = st.one_of(
    VALUES,
    st.sampled_from([b"x", object(), torch.zeros(2), torch.zeros(()), Path(), len, nn.Identity()]),
    st.sampled_from([(8, 8), [8, 8], (0, 0), (-1, 8), ("a", "b"), 4, (4, 4), "class", "mean"]),
)
ARGUMENTS = st.sampled_from(sorted(set(inspect.signature(fs.wrap).parameters) - {"module"}))


@cases(60)
@given(st.dictionaries(ARGUMENTS, OBJECTS, max_size=3))
def test_arguments_of_wrap(arguments: dict[str, Any]):
    model = answered(fs.wrap, Linear(), **arguments)
    if isinstance(model, fs.Model):
        answered(fs.evaluate, model, IMAGES, "gradient", "saco", k=2, random_draws=1, fill="black")


class Linear(nn.Module):
    """A classifier of 8×8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 8 * 8, 3)

    def forward(self, images: Tensor) -> Tensor:
        answers: Tensor = self.layer(images.flatten(1))
        return answers


class Answers(nn.Module):
    """A model that answers whatever it is told to."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, images: Tensor) -> Any:
        return self.answer(images) if callable(self.answer) else self.answer


ODD_ANSWERS = st.sampled_from(
    [
        lambda x: x.flatten(1)[:, :3],
        lambda x: x.flatten(1)[:, :3].half(),
        lambda x: x.flatten(1)[:, :3].long(),
        lambda x: x.flatten(1)[:, :3] > 0,
        lambda x: x.flatten(1)[:, :3].to(torch.complex64),
        lambda x: x.flatten(1)[:, :3].to_sparse(),
        lambda x: x.flatten(1)[:, :3].to("meta"),
        lambda x: x.flatten(1)[:, :3] * torch.nan,
        lambda x: x.flatten(1)[:, :3] * torch.inf,
        lambda x: x.flatten(1)[:1, :3],
        lambda x: x.flatten(1)[:, :1],
        lambda x: x.flatten(1)[:, :0],
        lambda x: x.flatten()[0],
        lambda x: x,
        lambda x: None,
        lambda x: "text",
        lambda x: {"logits": None},
        lambda x: {"scores": x},
        lambda x: [],
        lambda x: (x.flatten(1)[:, :3], x),
        lambda x: x.flatten(1)[:, :3].detach().numpy(),
        lambda x: 1 / 0,
        lambda x: x.flatten(1)[:, : torch.randint(2, 5, ())],
        lambda x: torch.ones(2, 3),
    ]
)


@cases(24)
@given(ODD_ANSWERS, st.sampled_from(["gradient", "random", "integrated_gradients(steps=2)"]))
def test_odd_answers(answer: Any, method: str):
    answered(fs.evaluate, Answers(answer), IMAGES, method, "all", k=2, random_draws=1)
    answered(fs.explain, Answers(answer), IMAGES, method)
