"""Code from data: no study, card, configuration or name in brackets makes Python run."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import faithscope as fs
from commands import fails, run
from encoders import save_encoder
from families import refused
from text_models import save_classifier

CODE = """
from pathlib import Path
Path({marker!r}).touch()
from transformers import PretrainedConfig, PreTrainedModel
import torch

class MineConfig(PretrainedConfig):
    model_type = "mine"

class Mine(PreTrainedModel):
    config_class = MineConfig

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(3 * 8 * 8, 2)
        self.post_init()

    def forward(self, pixel_values):
        return {{"logits": self.layer(pixel_values.flatten(1))}}
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that is there once foreign code has run."""
    return tmp_path / "code-has-run"


@pytest.fixture
def remote(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as from a hub, whose model is a Python file in it."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    folder = tmp_path / "remote"
    folder.mkdir()
    (folder / "mine.py").write_text(CODE.format(marker=str(marker)))
    config = {
        "model_type": "mine",
        "auto_map": {
            "AutoConfig": "mine.MineConfig",
            "AutoModelForImageClassification": "mine.Mine",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    looks = {"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}}
    (folder / "preprocessor_config.json").write_text(json.dumps(looks))
    return folder


def study(folder: Path, model: str, **keys: object) -> Path:
    file = folder / "study.yaml"
    file.write_text(
        json.dumps(
            {"model": model, "data": "bundled:cifar10", "limit": 1, "pretrained": False, **keys}
        )
    )
    return file


def test_a_model_with_its_own_code_is_refused_without_asking(remote: Path, marker: Path):
    with refused("Python files of its own", "--trust-remote-code"):
        fs.load_model(f"hf:{remote}", pretrained=False)
    assert not marker.exists()


def test_brackets_cannot_trust(remote: Path, marker: Path):
    with refused("own code", "--trust-remote-code"):
        fs.load_model(f"hf:{remote}(trust_remote_code=true)", pretrained=False)
    assert not marker.exists()


@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_a_study_cannot_trust(remote: Path, marker: Path, tmp_path: Path, dry: list[str]):
    inside = study(tmp_path, f"hf:{remote}(trust_remote_code=true)")
    assert "own code" in fails("run", inside, *dry, "--out", tmp_path / "out")
    as_key = study(tmp_path, f"hf:{remote}", trust_remote_code=True)
    assert "A study may not give 'trust_remote_code'" in fails("run", as_key, *dry)
    by_set = study(tmp_path, f"hf:{remote}")
    assert "may not give" in fails("run", by_set, "--set", "trust_remote_code=true", *dry)
    of_model = study(tmp_path, {"name": f"hf:{remote}", "trust_remote_code": True})
    assert "trust_remote_code" in fails("run", of_model, *dry)
    assert not marker.exists()


def test_a_person_can_trust(remote: Path, marker: Path, tmp_path: Path):
    options = ["--limit", 1, "--dry-run", "--trust-remote-code", "--out", tmp_path / "out"]
    run("run", study(tmp_path, f"hf:{remote}", methods=["gradient"]), *options)
    assert marker.exists()
    model = fs.load_model(f"hf:{remote}", pretrained=False, trust_remote_code=True)
    assert model.logits(torch.zeros(1, 3, 8, 8)).shape == (1, 2)


def test_trust_is_for_hugging_face():
    with refused("for models of Hugging Face"):
        fs.load_model("bundled:cifar10_vit", trust_remote_code=True)
    with refused("by name"):
        fs.evaluate(torch.nn.Identity(), torch.zeros(1, 3, 8, 8), trust_remote_code=True)
    with refused("for models of Hugging Face"):
        fs.roar("bundled:babi1", trust_remote_code=True)


def test_a_text_model_with_its_own_code_is_refused(tmp_path: Path, marker: Path):
    save_encoder(tmp_path / "encoder", "Roberta")
    (tmp_path / "encoder" / "mine.py").write_text(CODE.format(marker=str(marker)))
    file = tmp_path / "encoder" / "config.json"
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.MineConfig"}}
    file.write_text(json.dumps(config))
    with refused("Python files of its own"):
        fs.roar("bundled:babi1", f"hf:{tmp_path / 'encoder'}", seeds=1)
    assert not marker.exists()


def test_a_text_model_is_loaded_as_one(tmp_path: Path):
    name = save_classifier(tmp_path / "classifier")
    assert fs.load_model(name).modality == "text"
    said = fails("evaluate", "--model", name, "--data", "bundled:cifar10")
    assert "reads texts, and 'bundled:cifar10' names images" in said and "network" not in said


def test_a_language_model_has_no_head_that_was_trained(tmp_path: Path):
    name = save_encoder(tmp_path / "encoder", "Bert")
    with pytest.warns(UserWarning, match=r"has no trained .*classifier\.weight.* random now"):
        fs.load_model(name)


def test_a_model_that_classifies_nothing_is_called_so(tmp_path: Path):
    from transformers import VitsConfig

    VitsConfig().save_pretrained(tmp_path)
    with refused("no classifier of images or texts of the kind 'vits'", "fs.wrap"):
        fs.load_model(f"hf:{tmp_path}", pretrained=False)


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.touch, (self.path,)


def card(folder: Path, **changes: object) -> str:
    options = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 1, "num_heads": 2}
    held = {"timm": options, "mean": [0.5] * 3, "std": [0.5] * 3, "classes": None}
    held["timm"] = {**options, **changes.pop("timm", {})}  # type: ignore[dict-item]
    (folder / "mine.json").write_text(json.dumps({**held, **changes}))
    save_file({"none": torch.zeros(1)}, folder / "mine.safetensors")
    return f"file:{folder / 'mine.safetensors'}"


@pytest.mark.parametrize(
    "option",
    ["checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "scriptable"],
)
def test_a_card_cannot_unpickle(tmp_path: Path, marker: Path, option: str):
    file = tmp_path / "evil.pth"
    file.write_bytes(pickle.dumps(Touch(marker)))
    value = {"file": str(file)} if "cfg" in option else str(file)
    with refused(f"option of a timm model '{option}'"):
        fs.load_model(card(tmp_path, timm={option: value}))
    with refused(f"option of a timm model '{option}'"):
        fs.load_model(f"timm:vit_tiny_patch16_224({option}={value!r})", pretrained=False)
    assert not marker.exists()


def test_a_checkpoint_is_never_unpickled(tmp_path: Path, marker: Path):
    file = tmp_path / "evil.pth"
    torch.save(Touch(marker), file)
    with refused("cannot be read"):
        fs.load_model("timm:vit_tiny_patch16_224", checkpoint=file)
    assert not marker.exists()


@pytest.mark.parametrize(
    "option",
    ["proxies={'https': 'x'}", "cache_dir='x'", "token='x'", "gguf_file='x'", "device_map='auto'"],
)
def test_hugging_face_takes_safe_options_only(option: str):
    with refused("option of a hf model", "fs.wrap"):
        fs.load_model(f"hf:x({option})")


def test_code_for_attention_is_not_fetched(tmp_path: Path):
    with refused("attention implementation"):
        fs.load_model("hf:x(attn_implementation='somebody/kernel')")
    from transformers import ViTConfig

    ViTConfig(image_size=16, patch_size=4, num_hidden_layers=1).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    for key in ("attn_implementation", "_attn_implementation"):
        config = json.loads(file.read_text())
        file.write_text(json.dumps({**config, key: "somebody/kernel"}))
        with refused("somebody/kernel"):
            fs.load_model(f"hf:{tmp_path}", pretrained=False)
        file.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"timm": {"img_size": 0}}, "img_size"),
        ({"timm": {"img_size": True}}, "img_size"),
        ({"timm": {"img_size": -4}}, "from 1 to"),
        ({"timm": {"depth": 10**9}}, "from 1 to 1,000"),
        ({"timm": {"num_classes": 10**5, "embed_dim": 10**5, "num_heads": 1}}, "memory"),
        ({"timm": {"depth": [[[[1]]]]}}, "must be a number"),
        ({"timm": {"depth": {"a": 1}}}, "must be a number"),
        ({"mean": "x"}, "mean"),
        ({"std": [0.0, 1, 1]}, "std"),
        ({"mean": [float("nan")] * 3}, "mean"),
        ({"classes": 3}, "classes"),
        ({"model": 3}, "model"),
        ({"model": "vit_nonsense"}, "Unknown timm model"),
    ],
)
def test_odd_cards_are_refused(tmp_path: Path, changes: dict[str, object], word: str):
    with refused(word):
        fs.load_model(card(tmp_path, **changes))


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"{" * 10_000, b"null", b"[" * 10**5])
def test_a_card_that_is_no_card_is_refused(tmp_path: Path, content: bytes):
    name = card(tmp_path)
    (tmp_path / "mine.json").write_bytes(content)
    with refused("card"):
        fs.load_model(name)


@pytest.mark.parametrize(
    "name", ["raft_large", "fcos_resnet50_fpn", "deeplabv3_resnet50", "r3d_18"]
)
def test_torchvision_models_that_are_no_classifiers_are_refused(name: str):
    with refused("Unknown torchvision model"):
        fs.load_model(f"torchvision:{name}", pretrained=False)


@pytest.mark.parametrize("size", ["0", "-1", "1e9", "'a'", "true", "10**9", "999999999"])
def test_odd_sizes_are_refused(size: str):
    for name in ("timm:vit_tiny_patch16_224(img_size=…)", "torchvision:vit_b_16(image_size=…)"):
        with pytest.raises(fs.FaithscopeError):
            fs.load_model(name.replace("…", size), pretrained=False)


@pytest.mark.parametrize("key", ["model_args", "backbone_kwargs"])
def test_a_configuration_cannot_pass_options_on_to_timm(tmp_path: Path, marker: Path, key: str):
    file = tmp_path / "evil.pth"
    file.write_bytes(pickle.dumps(Touch(marker)))
    options = {"img_size": 32, "depth": 1, "checkpoint_path": str(file)}
    config = {"model_type": "timm_wrapper", "architecture": "vit_tiny_patch16_224", key: options}
    config["num_classes"] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    with refused("checkpoint_path"):
        fs.load_model(f"hf:{tmp_path}", pretrained=False)
    assert not marker.exists()


def test_a_timm_model_of_hugging_face_is_loaded(tmp_path: Path):
    import timm
    from transformers import TimmWrapperConfig, TimmWrapperForImageClassification

    held = {"input_size": [3, 32, 32], "mean": [0.4] * 3, "std": [0.3] * 3, "crop_pct": 1.0}
    arguments = {"img_size": 32, "depth": 1}
    config = TimmWrapperConfig(
        architecture="vit_tiny_patch16_224", num_labels=4, model_args=arguments, pretrained_cfg=held
    )
    TimmWrapperForImageClassification(config).save_pretrained(tmp_path)
    model = fs.load_model(f"hf:{tmp_path}")
    assert timm.__version__ and (model.input_size, model.mean) == ((32, 32), (0.4,) * 3)
    assert model.logits(torch.zeros(1, 3, 32, 32)).shape == (1, 4)


@pytest.mark.parametrize("changes", [{"size": None}, {"size": 5}, {"size": "x"}, {"image_mean": 3}])
def test_odd_processors_are_refused_or_read(tmp_path: Path, changes: dict[str, object]):
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    config = ViTConfig(
        image_size=16, patch_size=4, num_hidden_layers=1, hidden_size=8, num_attention_heads=2
    )
    ViTForImageClassification(config).save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    try:
        fs.load_model(f"hf:{tmp_path}")
    except fs.FaithscopeError as error:
        assert "could not be loaded" in str(error) or "mean and std" in str(error)
