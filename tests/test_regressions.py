"""What a reviewer once broke must stay fixed: each test is one way it lied or crashed."""

from __future__ import annotations

import copy
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import faithscope as fs
from commands import fails, run
from conftest import randn
from faithscope.metrics import SaCo
from faithscope.registry import Registry, parse_spec
from families import refused, seeded, timm_vit


@pytest.fixture(scope="module")
def vit():
    return seeded(lambda: timm_vit(img_size=16, patch_size=4, num_classes=5), torch.float64)


def images(count=3, size=16):
    return randn(count, 3, size, size)


def scored(model, *args, metrics="saco", random_draws=1, **options):
    return fs.evaluate(model, *args, metrics=metrics, random_draws=random_draws, **options)


def test_a_save_that_is_cut_off_leaves_no_run_to_load(vit, tmp_path, monkeypatch):
    scored(vit, images(), ["gradient"]).save(tmp_path)
    other = scored(vit, images(), ["gradient"], fill="blur", k=5)
    from faithscope.runs import files as module

    write = module.replace_with

    def cut_off(path, chunks):
        if path.name == "responses.parquet":
            raise KeyboardInterrupt
        write(path, chunks)

    monkeypatch.setattr(module, "replace_with", cut_off)
    with pytest.raises(KeyboardInterrupt):
        other.save(tmp_path)
    with refused("no finished run"):
        fs.load_result(tmp_path)


def test_a_declared_granularity_decides_the_matched_random(vit):
    fine = fs.Method("fine", lambda e: e.images.sum(1), granularity="patch")
    card = scored(vit, images(), [fine]).manifest.methods["fine"]
    assert (card.granularity, card.is_random) == ("patch", False)
    assert card.matched_random == "random_patch"


def test_a_model_with_one_output_is_refused():
    one = nn.Sequential(nn.Flatten(), nn.Linear(768, 1)).double()
    with refused("one output", "two classes"):
        scored(one, images(), ["gradient"])


@pytest.mark.parametrize("wrong", [lambda r: r.p.mean(), lambda r: r.p], ids=["scalar", "curve"])
def test_a_metric_must_give_one_number_per_curve(vit, wrong):
    with refused("returned a score of shape", "one number each"):
        scored(vit, images(), ["gradient"], metrics=[wrong])


def test_two_metrics_of_one_name_are_refused(vit):
    def saco(responses):
        return responses.p[..., 0] * 0 + 42

    with refused("Two metrics are called 'saco'"):
        scored(vit, images(), ["gradient"], metrics=["saco", saco])
    assert scored(vit, images(), ["gradient"], metrics=["saco", SaCo()]).metrics == ["saco"]


def test_a_plan_runs_as_often_as_its_data_can_be_read(vit):
    prepared = fs.prepare(vit, images(), ["gradient"], "saco", random_draws=0)
    assert prepared.run().scores.equals(prepared.run().scores)
    once = fs.prepare(vit, iter([images()]), ["gradient"], "saco", random_draws=0)
    once.run()
    with refused("no images"):
        once.run()


def test_labels_must_be_classes_of_the_model(vit):
    with refused("class 99", "0 to 4"):
        scored(vit, images(), ["gradient"], labels=[99, 0, 1])


def test_maps_and_a_loader_do_not_go_together(vit):
    with refused("loader"):
        scored(vit, iter([images()]), maps={"mine": torch.rand(3, 16, 16)})


@pytest.mark.parametrize("text", ["saco(k=5)(penalty=1)", "saco(k={[]: 1})", "saco(k=5"])
def test_text_that_is_no_spec_is_refused(text):
    with refused("not of the form"):
        parse_spec(text)


def test_an_option_can_go_back_to_its_default():
    changed = fs.method("integrated_gradients", steps=5)
    assert changed.with_options(steps=50).label == "integrated_gradients"


def test_the_protocol_tells_target_and_draws(vit):
    one = scored(vit, images(), ["gradient"], target=1).manifest.protocol
    two = scored(vit, images(), ["gradient"], target=2, random_draws=2).manifest.protocol
    assert (one["target"], one["random_draws"]) == (1, 1)
    assert (two["target"], two["random_draws"]) == (2, 2)
    by_image = scored(vit, images(), ["gradient"], target=torch.tensor([0, 1, 2]))
    assert by_image.manifest.protocol["target"].startswith("given:")


def test_autocast_around_the_call_changes_nothing():
    model = seeded(lambda: timm_vit(img_size=16, patch_size=4, num_classes=5), torch.float32)
    x = images().float()
    plain = scored(model, x, ["gradient", "rollout"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = scored(model, x, ["gradient", "rollout"])
    assert plain.scores.equals(cast.scores)


def test_inference_mode_around_the_call_changes_nothing(vit):
    plain = scored(vit, images(), ["gradient", "integrated_gradients(steps=3)"])
    with torch.inference_mode():
        inside = scored(vit, images(), ["gradient", "integrated_gradients(steps=3)"])
    assert plain.scores.equals(inside.scores)


def test_auto_k_with_few_units_is_flagged(vit):
    peaked = torch.zeros(2, 4, 4, dtype=torch.float64)
    peaked[:, 0, 0] = 1
    maps = {"peaked": peaked}
    result = scored(vit, images(2), maps=maps, k="auto", units="patches", random_draws=0)
    assert result.scores["k"].to_pylist() == [16, 16]
    assert result.scores["flag"].to_pylist() == ["few_units"] * 2


def test_a_captum_class_that_mixes_the_batch_is_refused():
    with refused("mixes the images"):
        fs.method("captum:FeaturePermutation")


@pytest.mark.parametrize("std", [(0, 0, 0), (0.5,), None, 0.5])
def test_a_normalisation_that_cannot_be_right_is_refused(vit, std):
    with refused("mean and std"):
        fs.wrap(vit, mean=(0.5, 0.5, 0.5), std=std)


def test_a_file_name_that_is_no_text_costs_nothing(tmp_path):
    model = fs.wrap(
        seeded(lambda: timm_vit(img_size=16, patch_size=4, num_classes=5), torch.float32),
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
    )
    name = os.path.join(os.fsencode(tmp_path), b"bad\xff.png")
    with open(name, "wb") as file:
        Image.new("RGB", (16, 16), "red").save(file, "PNG")
    result = scored(model, Path(tmp_path), ["gradient"])
    assert result.samples["sample"].to_pylist() == ["bad\\xff.png"]


def test_the_bundled_model_takes_no_options():
    with refused("takes no options"):
        fs.load_model("bundled:cifar10_vit(depth=3)")


def test_a_forecast_for_images_that_do_not_fit_is_a_sentence(vit):
    with refused("cannot run images"):
        fs.prepare(vit, images(2, 15), ["gradient"]).forecast()


def test_maps_with_gradients_and_odd_arrays_are_taken(vit):
    maps = np.random.default_rng(0).random((3, 16, 16))
    same = [
        torch.tensor(maps).requires_grad_(),
        maps[::-1][::-1],
        maps.astype(">f8"),
    ]
    same[1].flags.writeable = False
    results = [scored(vit, images(), maps={"mine": kind}, random_draws=0) for kind in same]
    assert all(results[0].scores.equals(other.scores) for other in results)
    flipped = images().numpy()[:, :, ::-1]
    assert scored(vit, flipped, ["gradient"]).scores.equals(
        scored(vit, torch.tensor(flipped.copy()), ["gradient"]).scores
    )


def test_numbers_of_numpy_are_numbers(vit, tmp_path):
    seed, k = np.int64(3), np.int64(5)
    result = scored(vit, images(), ["gradient"], seed=seed, k=k, batch_size=np.int64(7))
    result.save(tmp_path)
    assert fs.load_result(tmp_path).manifest.protocol["seed"] == 3


def test_an_error_does_not_wait_for_a_slow_loader(vit):
    def slow():
        yield images()
        yield images()
        time.sleep(30)
        yield images()

    def broken(*_):
        raise ZeroDivisionError

    started = time.perf_counter()
    with refused("'broken' fails on every image", "ZeroDivisionError"):
        scored(vit, slow(), [broken])
    assert time.perf_counter() - started < 25


def test_too_few_images_get_no_verdict(vit):
    few, enough = (scored(vit, images(count), ["gradient"]) for count in (5, 6))
    assert few.verdicts() == [] and "too few for a verdict" in few.headline()
    assert "at least 6" in few.headline()
    assert enough.verdicts() and "too few" not in enough.headline()


def test_the_manifest_says_where_the_weights_come_from():
    name = "timm:vit_tiny_patch16_224(img_size=32, depth=1)"
    model = fs.load_model(name, pretrained=False, device="cpu")
    said = scored(model, images(1, 32).float(), ["gradient"]).manifest.model
    assert (said.name, said.weights) == (name, "random")


def test_results_and_models_print_in_one_line(vit):
    result = scored(vit, images(), ["gradient"])
    assert "\n" not in repr(result) + repr(fs.wrap(vit))


def test_threads_that_explain_one_model_wait_for_each_other(vit):
    module = copy.deepcopy(vit).float().train()
    methods, fast = ["lrp", "transformer_mm"], torch.backends.mha.get_fastpath_enabled()
    expected = fs.explain(module, images(), methods, target=1)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(fs.explain, module, images(), methods, target=1) for _ in range(12)]
        for job in jobs:
            for name, maps in job.result().items():
                assert torch.equal(maps, expected[name])
    assert module.training and "forward" not in vars(module.blocks[0])
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert torch.backends.mha.get_fastpath_enabled() == fast


class MixedTypes(nn.Module):
    """A body in one type and a head in another, as mixed-precision checkpoints have them."""

    def __init__(self, body):
        super().__init__()
        self.head = nn.Linear(5, 5).double()
        self.body = body.float()

    def forward(self, x):
        return self.head(self.body(x.float()).double())


def test_a_model_of_two_types_is_run_as_it_is(vit):
    module = MixedTypes(copy.deepcopy(vit))
    inputs = images().requires_grad_(True)
    module(inputs)[:, 1].sum().backward()
    maps = fs.explain(module, images(), "gradient", target=1)
    torch.testing.assert_close(maps, inputs.grad.norm(dim=1))


class Float32Norm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.float()).to(x.dtype)


def test_a_model_that_cannot_run_in_float64_is_told_so():
    module = seeded(lambda: timm_vit(norm_layer=Float32Norm), torch.float32)
    pixels = images(2, 32).float()
    with refused("cannot run in float64", "precision=fp32"):
        fs.explain(module, pixels, "lrp", target=1)
    assert fs.explain(module, pixels, "lrp(precision=fp32)", target=1).isfinite().all()


class Squares(nn.Module):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.pow(2)


@pytest.mark.parametrize("count", [1, 2])
def test_a_stem_that_changes_tokens_after_positions_is_refused_whatever_the_batch(count):
    options = {"global_pool": "avg", "class_token": False, "dynamic_img_size": True}
    module = seeded(lambda: timm_vit(**options))
    assert fs.explain(module, images(count, 48), "lrp", target=1).isfinite().all()
    module.pos_drop = Squares()
    with refused("patch embedding", "'pow'"):
        fs.explain(module, images(count, 48), "lrp", target=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_half_precision_models_do_not_vanish(dtype):
    module = seeded(lambda: timm_vit(init_values=1e-5), torch.float32).to(dtype)
    pixels = images(2, 32).to(dtype)
    methods = ["transformer_mm", "attcat", "conservative_lrp", "input_x_gradient", "rollout"]
    halves = fs.explain(module, pixels, methods, target=1)
    whole = fs.explain(module.float(), pixels.float(), methods, target=1)
    for name in methods:
        assert halves[name].dtype == torch.float32
        assert torch.equal(halves[name], whole[name])


def test_a_compiled_module_is_explained_like_the_module_itself(vit):
    compiled = torch.compile(vit, backend="eager")
    for method in ("lrp", "transformer_mm"):
        expected = fs.explain(vit, images(), method, target=1)
        torch.testing.assert_close(fs.explain(compiled, images(), method, target=1), expected)


def test_copying_a_model_is_refused_since_its_views_would_stay_behind(vit):
    model = fs.wrap(copy.deepcopy(vit))
    for copying in (copy.deepcopy, pickle.dumps):
        with refused("views into its module"):
            copying(model)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("integrated_gradients(steps=1, rule=riemann_trapezoid)", ["at least 2"]),
        ("rollout(start_layer=1, start_layer=0)", ["name(option=value"]),
        ("attention(layers=last, aggregate=sum)", ["layers=all"]),
        ("attention(clamp=mean)", ["gradient=true"]),
        ("gradient_rollout(discard=many)", ["'discard'", "a number"]),
        ("lrp(rules=orignal)", ["did you mean 'original'"]),
    ],
)
def test_options_that_say_nothing_or_nonsense_are_refused(vit, method, words):
    with refused(*words):
        fs.explain(vit, images(), method)


def test_numbers_of_other_libraries_are_options_too(vit):
    method = fs.method("rollout", start_layer=np.int64(1))
    assert torch.equal(
        fs.explain(vit, images(), method), fs.explain(vit, images(), "rollout(start_layer=1)")
    )


def test_a_head_of_zeros_reads_nothing_and_attention_can_be_shown(vit):
    module = copy.deepcopy(vit)
    nn.init.zeros_(module.head.weight)
    assert torch.equal(
        fs.explain(module, images(), "rollout"), fs.explain(vit, images(), "rollout")
    )


def test_a_plugin_that_cannot_be_imported_is_left_out_with_a_warning(monkeypatch):
    point = EntryPoint("broken", "nowhere.to_be:found", "faithscope.methods")
    monkeypatch.setattr("faithscope.registry.entry_points", lambda group: [point])
    methods = Registry("method", group="faithscope.methods")
    methods.register("mine", 1)
    with pytest.warns(UserWarning, match="'broken'.*nowhere"):
        assert list(methods) == ["mine"]
    with refused("'broken'", "nowhere", "uninstall"):
        methods["broken"]


def test_the_patch_size_is_read_off_a_plain_convolution():
    module = nn.Sequential(nn.Conv2d(3, 4, (8, 4), (8, 4)), nn.Flatten(), nn.Linear(128, 5))
    assert fs.wrap(module).patch_size == (8, 4)
    assert fs.wrap(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 2, 2))).patch_size is None


def test_one_bundled_image_is_explained_by_its_number(tmp_path):
    picture = tmp_path / "cat.png"
    told = run("explain", "bundled:cifar10:67", "--methods", "rollout", "--out", picture)
    assert "predicted: cat" in told.output and picture.exists()
    assert "0 to 199" in fails("explain", "bundled:cifar10:200", "--methods", "rollout")


def test_a_method_that_also_loses_is_not_praised_alone(vit):
    result = scored(vit, images(6), ["gradient"], metrics=["aopc", "log_odds"])
    for row, verdict in zip(result.rows, ["better", "worse"], strict=False):
        row["verdict"] = verdict
    assert "on some metrics and worse on others (gradient)" in result.headline()


def test_maps_in_bfloat16_can_be_kept(vit, tmp_path):
    maps = randn(3, 16, 16)
    asked = {"model": vit, "data": images(), "methods": None, "out": tmp_path}
    first = scored(**asked, maps={"mine": maps.bfloat16()})
    assert "maps mine" in first.manifest.plan.given
    with refused("holds another run"):
        scored(**asked, maps={"mine": maps.flip(0).bfloat16()})


def test_changed_labels_are_noticed(vit, tmp_path):
    asked = {"model": vit, "data": images(), "methods": "gradient", "target": "label"}
    scored(**asked, labels=[0, 1, 2], out=tmp_path)
    with refused("The data has changed"):
        scored(**asked, labels=[1, 2, 0], out=tmp_path)


def test_another_normalisation_is_another_run(tmp_path):
    def ask(std: float) -> fs.Result:
        model = fs.wrap(seeded(timm_vit), mean=(0.5,) * 3, std=(std,) * 3)
        return scored(model, images(size=32), "gradient", fill="black", out=tmp_path)

    ask(0.5)
    with refused("holds another run", "normalisation"):
        ask(0.25)


def test_a_result_is_not_saved_over_another_run(vit, tmp_path):
    kept = scored(vit, images(), "gradient", metrics=["saco", "aopc"], out=tmp_path)
    with refused("holds another run"):
        kept.rescore(["aopc"]).save(tmp_path)
    kept.save(tmp_path)
    assert fs.load_result(tmp_path).scores.equals(kept.scores)


def test_a_run_with_chosen_k_is_scored_again_by_what_needs_none(vit):
    found = scored(vit, images(), "gradient", metrics=["saco", "aopc"], k="auto")
    again = found.rescore(["aopc"])
    assert again.values("gradient", "aopc").tolist() == found.values("gradient", "aopc").tolist()
    with refused("k='auto' looks at maps"):
        found.rescore(["saco"])


def test_a_function_may_not_have_the_name_of_random_attribution(vit):
    def random_patch(module, inputs, target):
        return inputs.sum(1)

    with refused("'random_patch' is the name of random attribution"):
        scored(vit, images(), [random_patch])


def test_a_damaged_result_is_not_packed(vit, tmp_path):
    from faithscope.api import pack_run

    scored(vit, images(), "gradient", out=tmp_path / "run")
    good = Path(pack_run(tmp_path / "run").file)
    before = good.read_bytes()
    (tmp_path / "run" / "scores.parquet").write_text("x")
    with refused("damaged", "scores.parquet"):
        pack_run(tmp_path / "run")
    assert good.read_bytes() == before


def test_the_folder_of_a_run_has_a_name(vit):
    with refused("out is empty"):
        scored(vit, images(), "gradient", out="")
