"""Drop instead of fill: removed patches leave the sequence, rows of equal length run together."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import faithscope as fs
from commands import fails, run
from conftest import assert_same_scores, randn, score_cube, tiny_vit
from faithscope.perturb import FILLS, Fill
from faithscope.probes.perturb import probe
from faithscope.studies import make_study
from families import refused, seeded, small, state_of

IMAGES = randn(5, 3, 16, 16)
MAPS = {"first": randn(5, 4, 4, seed=1), "second": randn(5, 4, 4, seed=2)}
DROP = {"fill": "drop", "units": "patches"}
POOLED = {"class_token": False, "global_pool": "avg"}
FIVE = ["saco", "aopc", "log_odds", "auc", "comprehensiveness"]


def evaluate(module: nn.Module | fs.Model, images: Tensor = IMAGES, **options: object) -> fs.Result:
    asked = {"methods": (), "maps": MAPS, "random_draws": 0, **DROP, **options}
    return fs.evaluate(module, images, **asked)


def cut(module: nn.Module, image: Tensor, kept: Tensor) -> Tensor:
    """Logits of one image of which some patches are kept; all gone, a pool gets the mean."""
    prefix = module.num_prefix_tokens
    if not prefix and not len(kept):
        return module(image.mean((1, 2), keepdim=True).expand_as(image)[None])
    tokens = module._pos_embed(module.patch_embed(image[None]))
    tokens = torch.cat([tokens[:, :prefix], tokens[:, prefix:][:, kept]], dim=1)
    return module.forward_head(module.norm(module.blocks(tokens)))


# --- The answers are those of sequences cut by hand ---


@pytest.mark.parametrize("options", [{}, POOLED, {"reg_tokens": 2}, {"depth": 4}])
def test_every_answer_is_that_of_a_sequence_cut_by_hand(options):
    module = tiny_vit(**options)
    result = evaluate(module, metrics="registered", batch_size=7)
    targets = result.samples["target"].to_pylist()
    with torch.inference_mode():
        for row in result.responses.to_pylist():
            sample = int(row["sample"])
            order = MAPS[row["method"]][sample].flatten().argsort(descending=True, stable=True)
            kept = torch.cat([order[: row["start"]], order[row["stop"] :]]).sort().values
            logits = cut(module, IMAGES[sample], kept)[0]
            assert row["log_p"] == pytest.approx(
                float(logits.log_softmax(-1)[targets[sample]]), abs=1e-9
            )
            assert row["top1"] == int(logits.argmax())


def test_it_is_another_measurement_than_the_mean():
    drop, mean = evaluate(tiny_vit()), evaluate(tiny_vit(), fill="mean")
    assert np.abs(score_cube(drop) - score_cube(mean)).max() > 0.01
    assert {row["fill"] for row in drop.scores.to_pylist()} == {"drop"}


def test_a_copy_in_another_precision_drops_as_well():
    module = tiny_vit()
    exact, rough = evaluate(module), evaluate(module, precision="fp32")
    log_p = [np.array(one.responses["log_p"]) for one in (exact, rough)]
    np.testing.assert_allclose(*log_p, atol=1e-3)
    assert not np.array_equal(*log_p)


def test_images_of_several_sizes_drop_patches_of_their_own():
    module = tiny_vit(dynamic_img_size=True)
    images = [IMAGES[0], randn(3, 24, 16), IMAGES[1]]
    maps = [MAPS["first"][0], randn(6, 4), MAPS["first"][1]]
    result = evaluate(module, images, maps={"mine": maps}, metrics="aopc")
    square = evaluate(module, IMAGES[:2], maps={"mine": MAPS["first"][:2]}, metrics="aopc")
    samples = result.samples["sample"].to_pylist()
    found = dict(zip(samples, result.values("mine", "aopc"), strict=True))
    expected = square.values("mine", "aopc")
    np.testing.assert_allclose([found["0"], found["2"]], expected, atol=1e-9)


# --- Packing ---


class Watcher:
    """How many images and tokens went through the second block of a ViT, batch by batch."""

    def __init__(self, module: nn.Module) -> None:
        self.shapes: list[tuple[int, int]] = []
        module.blocks[1].register_forward_pre_hook(self)

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.shapes.append((args[0].shape[0], args[0].shape[1]))


def watched(module: nn.Module, **options: object) -> list[tuple[int, int]]:
    """Batches of a run alone, without what was tried while it was planned."""
    asked = {"methods": (), "maps": MAPS, "random_draws": 0, **DROP, **options}
    prepared = fs.prepare(module, IMAGES, **asked)
    seen = Watcher(module)
    prepared.run()
    return seen.shapes


def test_equal_lengths_run_together_the_longest_first():
    module = tiny_vit()
    intact, *shapes = watched(module, batch_size=1000)
    lengths = [tokens for _, tokens in shapes]
    assert intact == (5, 17)
    assert lengths == sorted(set(lengths), reverse=True)
    assert lengths[-1] == 1  # the class token alone
    most = watched(module, batch_size=7)
    assert max(images for images, _ in most) <= 7
    assert sum(images for images, _ in most) == sum(images for images, _ in shapes) + 5


@pytest.mark.parametrize("metrics", ["all", "registered"])
def test_dropping_takes_as_many_passes_as_filling(metrics):
    drop, mean = (
        evaluate(tiny_vit(), metrics=metrics, fill=fill).manifest.cost.response_passes
        for fill in ("drop", "mean")
    )
    assert drop == mean == sum(count for count, _ in watched(tiny_vit(), metrics=metrics))


@pytest.mark.parametrize("options", [{}, POOLED])
@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_scores_do_not_depend_on_the_batch_size(options, batch_size):
    module = tiny_vit(**options)
    asked = {"methods": ["rollout"] if not options else ["gradient"], "metrics": "registered"}
    reference = evaluate(module, random_draws=2, **asked)
    assert_same_scores(evaluate(module, random_draws=2, batch_size=batch_size, **asked), reference)


def test_the_same_call_gives_the_same_bits():
    module = tiny_vit(dtype=torch.float32)
    first, again = (evaluate(module, IMAGES.float(), batch_size=16) for _ in range(2))
    assert first.responses.equals(again.responses) and first.scores.equals(again.scores)


class LittleMemory(nn.Module):
    """Runs out of memory on more than so many images at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.inner, self.most = tiny_vit(), most

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return self.inner(images)


def test_a_batch_that_does_not_fit_is_halved():
    result = evaluate(LittleMemory(5), batch_size=64)
    assert result.manifest.cost.batch_halvings > 0
    assert_same_scores(result, evaluate(tiny_vit()))


class Fragile(nn.Module):
    """Raises on the marked image when half of its patches are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_vit()

    def forward(self, images: Tensor) -> Tensor:
        is_marked = bool((images[:, 0, 0, 0] == 7.0).any())

        def fail(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            if is_marked and args[0].shape[1] == 1 + 8:
                raise ValueError("half a face")

        handle = self.inner.blocks[1].register_forward_pre_hook(fail)
        try:
            return self.inner(images)
        finally:
            handle.remove()


@pytest.mark.parametrize("batch_size", [3, 1000])
def test_what_fails_is_put_down_to_its_own_rows(batch_size):
    images = IMAGES.clone()
    images[3, 0, 0, 0] = 7.0
    result = evaluate(Fragile(), images, batch_size=batch_size)
    expected = evaluate(tiny_vit(), images)
    for row, other in zip(
        result.responses.to_pylist(), expected.responses.to_pylist(), strict=True
    ):
        if row["sample"] == "3" and row["stop"] - row["start"] == 8:
            assert np.isnan(row["log_p"]) and row["top1"] == -2
        else:
            assert row["log_p"] == pytest.approx(other["log_p"], abs=1e-9)
    assert [(held.sample, held.method) for held in result.manifest.data.failed] == [
        ("3", "first"),
        ("3", "second"),
    ]


# --- Nothing is left behind; what is stopped goes on ---


@pytest.mark.parametrize("options", [{}, POOLED])
def test_the_model_is_left_as_found(options):
    module = tiny_vit(dtype=torch.float32, **options)
    before = state_of(module)
    evaluate(module, IMAGES.float())
    evaluate(module, IMAGES.float(), precision="fp64")
    assert state_of(module) == before


class Stops(nn.Module):
    """Is interrupted at its n-th call of a run."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.inner, self.call = tiny_vit(), call

    def forward(self, images: Tensor) -> Tensor:
        self.call -= 1
        if not self.call:
            raise KeyboardInterrupt
        return self.inner(images)


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "SHARD", 2)
    asked = {"batch_size": 16, "metrics": "registered"}
    whole = evaluate(Stops(-1), out=tmp_path / "whole", **asked)
    stopped = Stops(30)
    with pytest.raises(KeyboardInterrupt):
        evaluate(stopped, out=tmp_path / "part", **asked)
    assert 0 < len(list((tmp_path / "part" / "tasks").glob("*.json"))) < 3
    resumed = evaluate(Stops(-1), out=tmp_path / "part", **asked)
    for name in ("scores", "responses", "samples"):
        assert resumed.tables[name].equals(whole.tables[name])


# --- A model that pools patches needs some ---


def flags_of(result: fs.Result) -> dict[str, set[str]]:
    flags: dict[str, set[str]] = {}
    for row in result.scores.to_pylist():
        flags.setdefault(row["metric"], set()).add(row["flag"])
    return flags


def test_a_pool_without_patches_is_given_the_mean_and_says_so():
    result = evaluate(tiny_vit(**POOLED), k=4)
    assert flags_of(result) == {name: {"" if name == "saco" else "mean_fill"} for name in FIVE}
    assert any("pools patches" in said and "'mean_fill'" in said for said in result.warnings())
    assert not np.isnan(score_cube(result)).any()


def test_a_class_token_needs_no_patch():
    result = evaluate(tiny_vit(), k=4)
    assert flags_of(result) == {name: {""} for name in FIVE}
    assert not result.warnings()


def test_other_metrics_of_a_finished_run_have_the_flag_too():
    result = evaluate(tiny_vit(**POOLED), k=4)
    again = result.rescore(metrics=["saco", "deletion"])
    assert flags_of(again) == {"saco": {""}, "deletion": {"mean_fill"}}


# --- Bad input ---


def test_pixels_cannot_be_dropped():
    with refused("fill='drop'", "units='patches'"):
        evaluate(tiny_vit(), units="pixels")
    with refused("fill='drop'", "units='patches'"):
        fs.prepare(tiny_vit(), IMAGES, fill="drop")


def test_a_study_that_drops_pixels_is_refused_before_it_begins(tmp_path):
    asked = {"name": "s", "model": "bundled:cifar10_vit", "data": "bundled:cifar10"}
    with refused("fill='drop'", "units='patches'"):
        fs.run_study(
            make_study({**asked, "fill": ["mean", "drop"], "units": "pixels", "limit": 1}), tmp_path
        )
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_model_that_forbids_it_is_refused_before_anything_runs(tmp_path):
    module = seeded(lambda: small("vit_relpos_small_patch16_224", img_size=16, patch_size=4))
    with refused("place in the sequence", "choose another fill"):
        evaluate(module, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_fill_of_ones_own_may_drop():
    class Halfway(Fill):
        name, summary, drops = "halfway", "they leave, or are zero if all do", True

        def field(self, images, context):
            return images.new_zeros(len(images), images.shape[1], 1, 1)

    FILLS.register("halfway", Halfway())
    try:
        module = tiny_vit(**POOLED)
        own, ours = (evaluate(module, fill=name, metrics="saco") for name in ("halfway", "drop"))
        assert_same_scores(own, ours)
        with torch.inference_mode():
            zero = module(torch.zeros(1, 3, 16, 16, dtype=torch.float64)).log_softmax(-1)[0]
        target = own.samples["target"].to_pylist()
        emptied = [
            row
            for row in evaluate(module, fill="halfway").responses.to_pylist()
            if row["stop"] - row["start"] == 16
        ]
        assert emptied and all(
            row["log_p"] == pytest.approx(float(zero[target[int(row["sample"])]]), abs=1e-9)
            for row in emptied
        )
    finally:
        del FILLS._items["halfway"]


# --- From end to end ---


def test_the_command_line_drops_patches_of_the_bundled_model(tmp_path: Path):
    asked = ["--model", "bundled:cifar10_vit", "--data", "bundled:cifar10", "--limit", 1]
    asked += ["--methods", "rollout,gradient", "--fill", "drop", "--device", "cpu"]
    asked += ["--out", tmp_path / "run"]
    assert "units='patches'" in fails("evaluate", *asked)
    run("evaluate", *asked, "--units", "patches")
    result = fs.load_result(tmp_path / "run")
    assert result.manifest.protocol["fill"] == "drop"
    assert not np.isnan(score_cube(result)).any()
    run("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert "not replaced: they leave the sequence" in (tmp_path / "page.html").read_text()
