"""Pictures that a run keeps, and the gallery that shows them."""

import base64
import io
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import faithscope as fs
from conftest import randn, single_vit, tiny_vit
from faithscope.data.pictures import photographs, picture_rows, scale_map
from faithscope.report.gallery import _halved, disagreement, make_gallery
from faithscope.report.page import write_page
from faithscope.runs.tables import table_of_rows

EVIL = "</script><script>alert(1)</script>"


@pytest.fixture(scope="module")
def model() -> fs.Model:
    return single_vit(classes=[EVIL, "b", "c", "d", "e"])


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return randn(9, 3, 16, 16, seed=1, dtype=torch.float32)


@pytest.fixture(scope="module")
def result(model: fs.Model, images: torch.Tensor) -> fs.Result:
    maps = randn(9, 16, 16, seed=2)
    maps[0], maps[1, 3, 4] = 1.0, float("nan")
    labels = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3])
    return fs.evaluate(
        model, images, ["rollout", "gradient"], maps={EVIL: maps}, labels=labels, random_draws=2
    )


def kept(result: fs.Result, method: str) -> list[dict]:
    return [row for row in result.pictures.to_pylist() if row["method"] == method]


def test_every_image_is_kept_in_its_own_colours(model, images, result) -> None:
    rows = kept(result, "")
    assert [row["sample"] for row in rows] == result.samples["sample"].to_pylist()
    wanted = photographs(images, model.mean, model.std)
    for row, photograph in zip(rows, wanted, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(row["content"])))
        assert row["kind"] == "png"
        np.testing.assert_array_equal(pixels, (255 * photograph).round())


def test_maps_are_kept_on_the_scale_of_their_colours(model, images, result) -> None:
    targets = torch.from_numpy(result.samples["target"].to_numpy().copy()).long()
    maps = fs.explain(model, images, "rollout", target=targets, units="patches").double()
    for row, values in zip(kept(result, "rollout"), maps, strict=True):
        kind, scaled = scale_map(values.numpy())
        assert row["kind"] == kind == "plain"
        stored = np.frombuffer(row["content"], np.uint8).reshape(row["height"], row["width"])
        np.testing.assert_array_equal(stored, (255 * scaled).round())
    assert [row["kind"] for row in kept(result, EVIL)] == ["constant", "nan"] + ["signed"] * 7


def test_one_draw_of_random_attribution_is_kept(result) -> None:
    assert len(kept(result, "random")) == len(kept(result, "random_patch")) == 9


@pytest.mark.parametrize("count", [0, 4])
def test_only_the_first_images_are_kept(model, images, count: int) -> None:
    few = fs.evaluate(model, images, "rollout", "saco", random_draws=0, pictures=count)
    assert [row["sample"] for row in kept(few, "")] == [str(place) for place in range(count)]
    assert len(few.scores) == 9


def test_keeping_pictures_changes_no_score(model, images, result) -> None:
    bare = fs.evaluate(model, images, ["rollout", "gradient"], random_draws=2, pictures=0)
    for method in bare.methods:
        np.testing.assert_array_equal(bare.values(method, "saco"), result.values(method, "saco"))


def test_pictures_are_saved_and_a_run_may_have_none(result, tmp_path: Path) -> None:
    result.save(tmp_path / "run")
    assert fs.load_result(tmp_path / "run").pictures.equals(result.pictures)
    tables = {name: table for name, table in result.tables.items() if name != "pictures"}
    without = replace(result, tables=tables)
    assert without.pictures.num_rows == 0
    page = without.report(tmp_path / "page.html").read_text("utf-8")
    assert "This run kept no images to look at" in page


def test_pictures_must_be_a_number_of_images(model, images) -> None:
    with pytest.raises(fs.FaithscopeError, match="pictures must be 0 or more"):
        fs.evaluate(model, images, "rollout", pictures=-1)


def test_large_images_and_maps_are_kept_small() -> None:
    images, maps = torch.rand(2, 3, 300, 150), {"m": torch.rand(2, 7, 7)}
    rows = picture_rows(["a", "b"], images, maps, mean=None, std=None)
    image = Image.open(io.BytesIO(rows["content"][0]))
    assert (rows["kind"][0], image.size) == ("jpeg", (64, 128))
    assert (rows["height"][1], rows["width"][1], len(rows["content"][1])) == (7, 7, 49)


def test_wide_maps_keep_their_shape() -> None:
    def wide(module, images, target):
        return images.mean(1)

    big = fs.wrap(tiny_vit(img_size=112, patch_size=16, dtype=torch.float32))
    run = fs.evaluate(big, randn(1, 3, 112, 112, dtype=torch.float32), wide, "saco", random_draws=1)
    assert (kept(run, "wide")[0]["height"], kept(run, "wide")[0]["width"]) == (56, 56)
    assert (kept(run, "random_patch")[0]["height"]) == 7


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([[0.0, 0.0]], "constant"),
        ([[0.0, np.inf]], "nan"),
        ([[-1.0, 2.0]], "signed"),
        ([[-3.0, -2.0]], "plain"),
    ],
)
def test_scales(values, kind: str) -> None:
    found, scaled = scale_map(np.array(values))
    assert found == kind
    assert np.abs(scaled).max() <= 1


def test_gallery_holds_scores_flags_and_removals_of_the_run(result) -> None:
    gallery = make_gallery(result)
    assert gallery is not None
    data = json.loads(json.dumps(gallery.data, allow_nan=False))
    assert gallery.shown == gallery.kept == 9
    assert gallery.has_labels
    assert {"degenerate", "nan_map"} <= set(gallery.flags)
    saco = result.metrics.index("saco")
    for place, entry in enumerate(data["samples"]):
        row = result.samples.to_pylist()[place]
        assert [entry[key] for key in ("label", "target", "predicted")] == [
            row[key] for key in ("label", "target", "predicted")
        ]
        for m, method in enumerate(result.methods):
            value = result.values(method, "saco")[place]
            found = entry["scores"][m][saco]
            assert (found is None) if np.isnan(value) else abs(found - value) <= 5e-5
            if method == "rollout":
                assert len(entry["groups"][0][m]["drop"]) == 10
                curve = np.array(entry["curves"][m])
                np.testing.assert_allclose(
                    (curve[0] - curve).mean(), result.values(method, "aopc")[place], atol=2e-4
                )
    assert data["samples"][1]["groups"][0][result.methods.index(EVIL)] is None  # the NaN map
    matched = dict(zip(data["methods"], data["matched"], strict=True))
    assert result.methods[matched["rollout"]] == "random_patch"
    assert result.methods[matched["gradient"]] == "random"
    assert matched["random"] == -1
    draws = dict(zip(data["methods"], data["draws"], strict=True))
    assert (draws["rollout"], draws["random"]) == (1, 2)


def test_every_saco_has_its_own_groups(model, images) -> None:
    run = fs.evaluate(model, images[:2], "rollout", ["saco(k=4)", "saco(k=8)"], random_draws=0)
    gallery = make_gallery(run)
    assert gallery is not None
    sizes = [len(groups[0]["drop"]) for groups in gallery.data["samples"][0]["groups"]]
    assert sizes == [4, 8]
    assert gallery.data["sacos"] == [0, 1]


def test_data_cannot_leave_its_element(result, tmp_path: Path) -> None:
    page = write_page(result, tmp_path / "page.html").read_text("utf-8")
    blocks = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert len(blocks) == 1
    assert EVIL in json.loads(blocks[0])["methods"]
    assert not set(blocks[0]) & set("<>&")


def test_a_page_that_would_be_too_large_shrinks_maps_then_leaves_images_out(result) -> None:
    big = [np.arange(56 * 56, dtype=np.uint8).reshape(56, 56)] * 9
    rows = [
        {**row, "height": 56, "width": 56, "content": big[0].tobytes()} if row["method"] else row
        for row in result.pictures.to_pylist()
    ]
    tables = {**result.tables, "pictures": table_of_rows("pictures", rows)}
    large = replace(result, tables=tables)
    whole = make_gallery(large)
    assert whole is not None
    assert whole.data["samples"][0]["maps"][0][1:3] == [56, 56]
    small = make_gallery(large, most_bytes=9 * len(result.methods) * 28 * 28 * 3)
    assert small is not None
    assert small.shown == 9
    assert small.is_halved
    assert not whole.is_halved
    assert small.data["samples"][0]["maps"][0][1:3] == [28, 28]
    some = make_gallery(large, most_bytes=4 * len(result.methods) * 28 * 28)
    assert some is not None
    assert 0 < some.shown < 9 == some.kept


def test_halving_averages_neighbours() -> None:
    values = np.zeros((40, 30), np.uint8)
    values[:2, :2] = [[4, 8], [12, 16]]
    assert _halved(values).shape == (20, 15)
    assert _halved(values)[0, 0] == 10
    assert _halved(values[:8, :8]) is not None


def test_disagreement_compares_maps_on_the_coarsest_grid() -> None:
    coarse = np.array([[0, 50], [100, 200]], np.uint8)
    fine = coarse.repeat(8, 0).repeat(8, 1)
    assert disagreement([("plain", coarse), ("signed", fine)]) == pytest.approx(0)
    assert disagreement([("plain", coarse), ("plain", 255 - fine)]) == pytest.approx(2)
    assert np.isnan(disagreement([("plain", coarse), ("constant", fine)]))


def test_several_runs_share_one_page(result, model, images, tmp_path: Path) -> None:
    other = fs.evaluate(model, images, ["rollout", "gradient"], random_draws=2, fill="black")
    page = write_page({"a": result, "b <i>": other}, tmp_path / "page.html").read_text("utf-8")
    assert "2 runs: fill mean, black" in page
    assert page.count('<article class="run"') == 2
    assert "b &lt;i&gt;" in page
    with pytest.raises(fs.FaithscopeError, match="no finished run"):
        write_page({}, tmp_path / "page.html")


def test_colours_of_the_page_are_those_of_the_figures() -> None:
    from faithscope.report.gallery import colour_table
    from faithscope.report.style import colours

    table = np.frombuffer(base64.b64decode(colour_table("signed")), np.uint8).reshape(256, 3)
    np.testing.assert_array_equal(table[255], (255 * colours(np.ones(1), "signed")[0]).round())
    np.testing.assert_array_equal(table[128], (255 * colours(np.zeros(1), "signed")[0]).round())


def test_maps_without_a_name_are_refused(model, images) -> None:
    with pytest.raises(fs.FaithscopeError, match="have no name"):
        fs.evaluate(model, images, maps={"": randn(9, 16, 16)})


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_images_of_other_channels_are_stretched(channels: int) -> None:
    pixels = photographs(torch.rand(2, channels, 5, 6), (0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    assert pixels.shape == (2, 5, 6, 3)
    assert 0 <= pixels.min() < pixels.max() <= 1
    if channels == 1:
        assert (pixels.min(), pixels.max()) == (0, 1)


def test_scores_count_towards_the_size_of_a_page(result) -> None:
    gallery = make_gallery(result, most_bytes=20_000)
    assert gallery is not None
    assert len(json.dumps(gallery.data["samples"])) <= 20_000 + 9 * 2
    assert gallery.shown < gallery.kept


def test_a_finished_run_says_that_it_keeps_no_more_pictures(model, images, tmp_path) -> None:
    def run(pictures: int) -> fs.Result:
        options = {"random_draws": 0, "pictures": pictures, "out": tmp_path / "run"}
        return fs.evaluate(model, images, "rollout", "saco", **options)

    run(2)
    with pytest.warns(UserWarning, match="kept pictures of 2 images"):
        run(9)


def test_a_page_is_whole_or_not_there(result, tmp_path: Path, monkeypatch) -> None:
    from faithscope.runs import files

    page = write_page(result, tmp_path / "page.html")
    before = page.read_bytes()

    def cut_off(path: Path, chunks: Iterable[bytes]) -> None:
        path.write_bytes(b"".join(chunks)[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_file", cut_off)
    with pytest.raises(KeyboardInterrupt):
        write_page(result, page)
    assert page.read_bytes() == before
    assert list(tmp_path.iterdir()) == [page]
