"""A model or a method that raises costs the image it raises on: named, counted, NaN with a flag."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import faithscope as fs
from commands import run
from conftest import randn, score_cube, tiny_vit, toy
from families import refused

IMAGES = randn(6, 3, 16, 16, dtype=torch.float32)
BAD = 2
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def is_bad(images: Tensor) -> Tensor:
    """Which of some images, perturbed or not, is the bad one: its first pixel says so."""
    return images[:, 0, 0, 0] == 7.0


@pytest.fixture
def images() -> Tensor:
    marked = IMAGES.clone()
    marked[:, 0, 0, 0] = 0.5
    marked[BAD, 0, 0, 0] = 7.0
    return marked


class Raises(nn.Module):
    """Raises on the bad image, wherever it stands in a batch."""

    def __init__(self, error: type[Exception] = ValueError) -> None:
        super().__init__()
        self.inner, self.error = tiny_vit(dtype=torch.float32), error

    def forward(self, images: Tensor) -> Tensor:
        if is_bad(images).any():
            raise self.error("no faces here")
        answers: Tensor = self.inner(images)
        return answers


def picky(model: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    """A method that raises on the bad image."""
    if is_bad(images).any():
        raise KeyError("a face")
    return images.sum(1)


def rows(result: fs.Result, sample: int, method: str | None = None) -> list[dict]:
    found = result.scores.to_pylist()
    return [r for r in found if r["sample"] == str(sample) and method in (None, r["method"])]


def without(result: fs.Result, sample: int) -> np.ndarray:
    return np.delete(score_cube(result), sample, axis=2)


def calm(images: Tensor) -> Tensor:
    """The same images, with nothing bad about them."""
    good = images.clone()
    good[BAD] = good[BAD - 1]
    return good


@pytest.mark.parametrize(
    "error", [ValueError, RuntimeError, KeyError, TypeError, ZeroDivisionError]
)
def test_a_model_that_raises_on_one_image_costs_that_image(images: Tensor, error: type[Exception]):
    module = Raises(error)
    asked = {"methods": ["gradient", "rollout"], "labels": LABELS}
    result = fs.evaluate(module, images, **asked)
    expected = fs.evaluate(module, calm(images), **asked)
    np.testing.assert_allclose(without(result, BAD), without(expected, BAD), atol=1e-5)
    lost = rows(result, BAD)
    assert len(lost) == len(rows(result, 0))  # the tables stay rectangular
    assert all(np.isnan(row["value"]) and row["flag"] == "failed" for row in lost)
    assert not any(row["flag"] == "failed" for row in rows(result, 0))
    (named,) = result.manifest.data.failed
    assert (named.sample, named.method) == (str(BAD), "")
    assert "the model raised" in named.why and "no faces here" in named.why
    assert "failed on 1 of 6 images (2: the model)" in result.warnings()[0]
    sample = result.samples.to_pylist()[BAD]
    assert sample["predicted"] == -2 and np.isnan(sample["log_p0"])
    others = np.array(expected.samples["predicted"])[[0, 1, 3, 4, 5]]
    assert result.manifest.data.accuracy == pytest.approx(
        (others == LABELS.numpy()[[0, 1, 3, 4, 5]]).mean()
    )


def test_a_method_that_raises_on_one_image_costs_its_map_alone(images: Tensor):
    result = fs.evaluate(tiny_vit(dtype=torch.float32), images, [picky, "gradient"])
    expected = fs.evaluate(tiny_vit(dtype=torch.float32), images, ["gradient"])
    assert all(row["flag"] == "failed" for row in rows(result, BAD, "picky"))
    assert not any("failed" in row["flag"] for row in rows(result, BAD, "gradient"))
    ours = np.array([result.values("gradient", m) for m in result.metrics])
    theirs = np.array([expected.values("gradient", m) for m in expected.metrics])
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    (named,) = result.manifest.data.failed
    assert (named.sample, named.method) == (str(BAD), "picky")
    assert named.why == "the method raised KeyError: 'a face'"


def test_paired_tests_leave_it_out_by_pair(images: Tensor):
    result = fs.evaluate(tiny_vit(dtype=torch.float32), images, [picky, "gradient"], "saco")
    counts = {row["method"]: row["n"] for row in result.summary().to_pylist()}
    assert counts["picky"] == 5
    assert counts["gradient"] == counts["random"] == 6
    for row in result.summary().to_pylist():
        assert np.isfinite(row["mean"])


class Fragile(nn.Module):
    """Raises on the bad image once its first pixel is replaced, if its last one is not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_vit(dtype=torch.float32)

    def forward(self, images: Tensor) -> Tensor:
        if ((images[:, 0, -1, -1] == 7.0) & (images[:, 0, 0, 0] != 0.5)).any():
            raise RuntimeError("half a face")
        answers: Tensor = self.inner(images)
        return answers


def test_a_model_that_raises_on_perturbed_inputs_costs_the_scores_that_read_them():
    images = IMAGES.clone()
    images[:, 0, 0, 0] = 0.5
    images[BAD, 0, -1, -1] = 7.0
    falling = torch.arange(256, 0, -1.0).reshape(1, 16, 16).expand(6, -1, -1)
    maps = {"falling": falling, "rising": falling.flip(1, 2)}
    asked = {"methods": (), "maps": maps, "random_draws": 0}
    result = fs.evaluate(Fragile(), images, **asked)
    expected = fs.evaluate(tiny_vit(dtype=torch.float32), images, **asked)
    np.testing.assert_allclose(without(result, BAD), without(expected, BAD), atol=1e-5)
    flags = {row["method"]: row["flag"] for row in rows(result, BAD) if row["metric"] == "saco"}
    assert flags == {"falling": "failed", "rising": "failed"}  # its first pixel has the last rank
    found = {(item.sample, item.method) for item in result.manifest.data.failed}
    assert found == {(str(BAD), "falling"), (str(BAD), "rising")}
    assert "half a face" in result.manifest.data.failed[0].why
    answers = [row for row in result.responses.to_pylist() if row["sample"] == str(BAD)]
    raised = [row for row in answers if row["top1"] == -2]
    assert 0 < len(raised) < len(answers) and all(np.isnan(row["log_p"]) for row in raised)


def test_rescoring_keeps_the_flags(images: Tensor):
    result = fs.evaluate(tiny_vit(dtype=torch.float32), images, [picky, "gradient"])
    again = result.rescore("all")
    assert flags_of(result) == flags_of(again)


def flags_of(result: fs.Result) -> dict[tuple, str]:
    names = ("sample", "method", "draw", "metric")
    return {tuple(row[n] for n in names): row["flag"] for row in result.scores.to_pylist()}


@pytest.mark.parametrize("maker", [Raises, tiny_vit])
def test_if_all_images_of_the_first_task_fail_the_run_stops(maker: Callable[..., nn.Module]):
    bad = IMAGES.clone()
    bad[:, 0, 0, 0] = 7.0
    module = maker() if maker is Raises else tiny_vit(dtype=torch.float32)
    words = ("cannot run images", "no faces here") if maker is Raises else ("'picky' fails", "face")
    with refused(*words):
        fs.evaluate(module, bad, [picky, "gradient"] if maker is Raises else picky)


def test_a_later_task_may_fail_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("faithscope.probes.perturb.probe.SHARD", 2)
    marked = IMAGES.clone()
    marked[2:4, 0, 0, 0] = 7.0
    result = fs.evaluate(Raises(), marked, "gradient", "saco", batch_size=4)
    assert {item.sample for item in result.manifest.data.failed} == {"2", "3"}
    assert np.isnan(result.values("gradient", "saco")[2:4]).all()
    assert np.isfinite(result.values("gradient", "saco")[[0, 1, 4, 5]]).all()


def test_strict_makes_it_an_error(images: Tensor, tmp_path: Path):
    with refused("'2'", "strict", "no faces here"):
        fs.evaluate(Raises(), images, "gradient", strict=True)
    with refused("'2' of 'picky'", "strict", "face"):
        fs.evaluate(tiny_vit(dtype=torch.float32), images, picky, strict=True)
    fs.evaluate(Raises(), images, "gradient", "saco", out=tmp_path / "run")
    with refused("'2' was left out", "strict"):
        fs.evaluate(Raises(), images, "gradient", "saco", out=tmp_path / "run", strict=True)


def test_strict_refuses_an_image_that_cannot_be_read(tmp_path: Path):
    from PIL import Image

    for name in "ab":
        Image.new("RGB", (32, 32), (90, 40, 200)).save(tmp_path / f"{name}.png")
    (tmp_path / "c.png").write_bytes(b"no image")
    command = ["evaluate", "--model", "bundled:cifar10_vit", "--data", tmp_path]
    options = ["--methods", "gradient", "--metrics", "saco", "--random-draws", 1]
    told = run(*command, *options)
    assert "1 of 3 images is left out; the first, 'c.png': " in told.stdout
    assert "c.png" not in told.stderr
    (tmp_path / "d.png").write_bytes(b"no image, either")
    told = run(*command, *options)
    assert "2 of 4 images left out:\n  c.png: " in told.stderr and "\n  d.png: " in told.stderr
    assert "c.png" in run(*command, *options, "--strict", code=2).stderr


def test_the_command_line_names_and_counts_it(images: Tensor, monkeypatch: pytest.MonkeyPatch):
    from faithscope import api
    from faithscope.cli import evaluate as command
    from faithscope.request import Given, Perturb, check_request

    request = check_request(Perturb, {"model": "m", "data": "d", "methods": "gradient"})
    prepared = api.prepare_request(request, Given(model=Raises(), data=images))
    result = command.carry_out(prepared)
    assert result.manifest.data.failed


def test_methods_that_fail_on_different_images_do_not_stop_the_estimate(images: Tensor):
    from faithscope import api

    def choosy(model: nn.Module, given: Tensor, target: Tensor) -> Tensor:
        if not is_bad(given).all():
            raise KeyError("no face")
        return given.sum(1)

    prepared = api.prepare(tiny_vit(dtype=torch.float32), images, [picky, choosy], "saco")
    assert prepared.executor.measure()["images"] > 0
    result = prepared.run(False)
    assert {item.method for item in result.manifest.data.failed} == {"picky", "choosy"}


def test_the_page_and_the_folder_hold_it(images: Tensor, tmp_path: Path):
    module = fs.wrap(Raises(), mean=(0.5,) * 3, std=(0.2,) * 3)
    result = fs.evaluate(module, images, ["gradient", picky], labels=LABELS, out=tmp_path / "run")
    again = fs.load_result(tmp_path / "run")
    assert again.manifest.data.failed == result.manifest.data.failed
    page = again.report(tmp_path / "page.html").read_text()
    assert "no faces here" in page and "failed" in page
    same = fs.compare(result, again)
    assert "2" in str(same) or same is not None


def test_a_resumed_run_gives_the_same_bits(images: Tensor, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("faithscope.probes.perturb.probe.SHARD", 2)
    asked = {"methods": ["gradient", picky], "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        fs.evaluate(Raises(), images, **asked, progress=Stop(after=300))
    result = fs.evaluate(Raises(), images, **asked)
    expected = fs.evaluate(Raises(), images, methods=["gradient", picky])
    np.testing.assert_array_equal(score_cube(result), score_cube(expected))
    assert result.manifest.data.failed == expected.manifest.data.failed


class Stop:
    """A progress report that interrupts."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, place: object) -> None:
        if place.done > self.after:  # type: ignore[attr-defined]
            raise KeyboardInterrupt


def test_a_lost_device_is_not_an_image(images: Tensor):
    class Lost(Raises):
        def forward(self, given: Tensor) -> Tensor:
            if is_bad(given).any():
                raise RuntimeError("CUDA error: device-side assert triggered")
            return super().forward(given)

    with refused("device failed"):
        fs.evaluate(Lost(), images, "gradient")


# A model that answers NaN


class Silent(nn.Module):
    """Answers NaN for the bad image."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = toy(16, 16).float()

    def forward(self, images: Tensor) -> Tensor:
        nothing = is_bad(images)[:, None]
        return self.inner(images).masked_fill(nothing, torch.nan)


def test_a_model_that_answers_nan_predicts_no_class(images: Tensor):
    labels = torch.zeros(6, dtype=torch.int64)
    result = fs.evaluate(Silent(), images, "gradient", "saco", labels=labels)
    sample = result.samples.to_pylist()[BAD]
    assert sample["predicted"] == sample["target"] == -1
    hits = np.array(result.samples["predicted"]) == 0
    assert result.manifest.data.accuracy == pytest.approx(hits.mean())
    assert all("nan_response" in row["flag"] for row in rows(result, BAD))
    assert "1 of 6 images (2) is not defined" in result.warnings()[0]
    every = fs.evaluate(Never(), images, "gradient", "saco", labels=labels)
    assert every.manifest.data.accuracy == 0.0


class Never(nn.Module):
    """Answers nothing but NaN."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :3] * torch.nan


def test_a_metric_that_fails_is_named(images: Tensor):
    def broken(responses: object) -> Tensor:
        raise LookupError("of a metric")

    with refused("The metric 'broken' failed", "LookupError"):
        fs.evaluate(toy(16, 16).float(), images, "gradient", broken)
    for made in (None, "text", torch.zeros(2), torch.zeros(3, dtype=torch.complex64)):
        with refused("metric 'odd'"):
            fs.evaluate(toy(16, 16).float(), images, "gradient", odd_metric(made))


def odd_metric(made: object) -> Callable[..., object]:
    def odd(responses: object) -> object:
        return made

    return odd


# What strict forbids


def test_strict_refuses_a_map_or_an_answer_without_a_number(images: Tensor, tmp_path: Path):
    maps = {"mine": randn(6, 16, 16)}
    maps["mine"][BAD, 3, 3] = torch.nan
    asked = {"methods": (), "maps": maps, "metrics": "saco", "random_draws": 0}
    with refused("saco of 'mine' is not defined for '2' (nan_map)", "strict"):
        fs.evaluate(toy(16, 16).float(), images, **asked, strict=True)
    with refused("nan_response", "strict"):
        fs.evaluate(Silent(), images, "random", "saco", strict=True)
    fs.evaluate(toy(16, 16).float(), images, **asked, out=tmp_path / "run")
    with refused("nan_map", "strict"):
        fs.evaluate(toy(16, 16).float(), images, **asked, out=tmp_path / "run", strict=True)


def test_strict_is_content_where_nothing_is_left_out(images: Tensor):
    model = toy(16, 16).float()
    strict = fs.evaluate(model, images, "gradient", strict=True)
    assert strict.scores.equals(fs.evaluate(model, images, "gradient").scores)


def test_a_loader_that_ends_too_early_is_noticed(images: Tensor):
    class Short(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, place: int) -> Tensor:
            if place == 2:
                raise StopIteration
            return images[place]

    loader = torch.utils.data.DataLoader(Short(), batch_size=2)
    with refused("ended after 1 of its 3 items"):
        fs.evaluate(toy(16, 16).float(), loader, "gradient", "saco")


@pytest.mark.parametrize(
    ("metrics", "k"), [("saco", [5, 5]), (["saco(k=5)", "saco"], [5, 6]), ("saco", "5,5")]
)
def test_a_k_given_twice_is_refused(images: Tensor, metrics: object, k: object):
    with pytest.raises(fs.FaithscopeError):
        fs.evaluate(toy(16, 16).float(), images, "gradient", metrics, k=k)


def test_names_that_cannot_be_written_are_refused(images: Tensor):
    model = toy(16, 16).float()
    with refused("cannot be written"):
        fs.evaluate(model, images, maps={"a\ud800": randn(6, 16, 16)})

    def odd(module: nn.Module, given: Tensor, target: Tensor) -> Tensor:
        return given.sum(1)

    odd.__name__ = "a\ud800"
    with refused("cannot be written"):
        fs.evaluate(model, images, odd)
