"""Maps in files: read without running code, found by name, cut as the model cuts its photos."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2 as transforms

import faithscope as fs
from conftest import randn, toy
from faithscope.data.maps import by_sample, map_files, photo_box, read_maps
from faithscope.perturb import resample
from families import refused

NORMALISE = (transforms.ToDtype(torch.float32, scale=True), transforms.Normalize([0.5], [0.2]))
VALUES = np.random.default_rng(0).random((6, 5)).astype(np.float32)


def seeing(*steps: object) -> fs.Model:
    """A model with this preprocessing of photos."""
    pipeline = transforms.Compose([*steps, transforms.PILToTensor(), *NORMALISE])
    return fs.wrap(toy(16, 16), transform=pipeline, name="toy")


# Reading


@pytest.mark.parametrize("kind", ["npy", "npz", "pt", "tif"])
def test_floats_are_read_as_they_were_written(tmp_path, kind):
    file = tmp_path / f"a.{kind}"
    if kind == "npy":
        np.save(file, VALUES)
    elif kind == "npz":
        np.savez(file, anything=VALUES)
    elif kind == "pt":
        torch.save({"map": torch.from_numpy(VALUES)}, file)
    else:
        Image.fromarray(VALUES).save(file)
    assert torch.equal(read_maps(file), torch.from_numpy(VALUES))


def test_grey_pictures_are_their_levels(tmp_path):
    levels = (255 * VALUES).astype(np.uint8)
    Image.fromarray(levels).save(tmp_path / "a.png")
    Image.fromarray(levels).convert("RGB").save(tmp_path / "b.png")
    Image.fromarray((65535 * VALUES).astype(np.uint16)).save(tmp_path / "c.png")
    for name in "ab":
        assert (read_maps(tmp_path / f"{name}.png").numpy() == levels).all()
    assert (read_maps(tmp_path / "c.png").numpy() == (65535 * VALUES).astype(np.uint16)).all()


def test_what_is_no_map_is_refused_in_a_sentence(tmp_path):
    colours = np.random.default_rng(0).integers(0, 255, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(colours).save(tmp_path / "jet.png")
    np.savez(tmp_path / "two.npz", a=VALUES, b=VALUES)
    (tmp_path / "code.pt").write_bytes(pickle.dumps(print))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "broken.npy").write_bytes(b"no array")
    np.save(tmp_path / "complex.npy", VALUES + 1j)
    (tmp_path / "a.txt").write_text("1 2")
    for name, words in {
        "jet.png": ["colours"],
        "two.npz": ["2 arrays, a, b"],
        "code.pt": ["cannot be read (it holds something else than numbers)"],
        "objects.npy": ["cannot be read (it holds something else than numbers)"],
        "broken.npy": ["cannot be read (it holds something else than numbers)", "numpy.save"],
        "complex.npy": ["an array of complex"],
        "a.txt": [".npy", ".tif"],
        "gone.npy": ["no file or folder"],
    }.items():
        with refused(name, *words):
            read_maps(tmp_path / name)


# Names


def test_files_go_by_the_image_with_its_ending_or_in_its_place(tmp_path):
    (tmp_path / "cats").mkdir()
    for name in ("cats/a.npy", "b.jpg.npy", "7.npy", "other.npy", "note.txt"):
        (tmp_path / name).touch()
    samples = ["cats/a.png", "b.jpg", "7", "a.png", "c.png"]
    found = map_files(tmp_path, samples, "The maps")
    names = [held and held.relative_to(tmp_path).as_posix() for held in found]
    assert names == ["cats/a.npy", "b.jpg.npy", "7.npy", None, None]


def test_two_candidates_are_refused(tmp_path):
    for name in ("a.npy", "a.png"):
        (tmp_path / name).touch()
    with refused("The maps have 2 for 'a.jpg'", "a.npy", "a.png"):
        map_files(tmp_path, ["a.jpg"], "The maps")
    with refused("The maps have 2 for 'a.jpg', one called as it is and one called 'a'"):
        by_sample({"a": [1], "a.jpg": [2]}, ["a.jpg"], "The maps")
    assert by_sample({"a": [1], "a.jpg": [2]}, ["a.jpg", "a.png"], "The maps") == [2, 1]
    with refused("one 'a' for two images, 'a.jpg' and 'a.png'"):
        by_sample({"a": [1]}, ["a.jpg", "a.png"], "The maps")
    (tmp_path / "empty").mkdir()
    with refused("holds no maps", ".npy"):
        map_files(tmp_path / "empty", ["a.jpg"], "The maps")


# Photos


@pytest.mark.parametrize("size", [(60, 80), (300, 400), (16, 16), (1200, 700), (10, 13)])
def test_what_a_model_sees_of_a_photo_is_read_off_its_preprocessing(size):
    """Resize the shorter side to 20 and cut 16 from the middle: 4/5 of it, in the middle."""
    height, width = size
    seen = 0.8 * min(size)
    expected = ((height - seen) / 2, (width - seen) / 2, (height + seen) / 2, (width + seen) / 2)
    model = seeing(transforms.Resize(20), transforms.CenterCrop(16))
    near = 0.02 * max(size)  # resizing rounds the longer side, and cropping the margin, to pixels
    assert photo_box(model, size) == pytest.approx(expected, abs=near)
    whole = seeing(transforms.Resize((16, 16)))
    assert photo_box(whole, size) == (0, 0, height, width)


def test_a_map_goes_where_the_pixels_go():
    """The map of a photo is that photo: after cutting both the same they are the same."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (12, 16), dtype=np.uint8)
    photo = Image.fromarray(small).resize((320, 240), Image.Resampling.BICUBIC).convert("RGB")
    model = seeing(transforms.Resize(40), transforms.CenterCrop(32))
    seen = model.transform(photo)[0].double() * 0.2 + 0.5
    values = torch.from_numpy(np.asarray(photo)[..., 0] / 255.0)
    ours = resample(values[None], photo_box(model, (240, 320)), (32, 32))[0]
    assert (ours - seen).abs().max() < 0.02


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([transforms.Resize((12, 12)), transforms.Pad(2)], "fills a part"),
        ([transforms.Resize((16, 16)), transforms.RandomHorizontalFlip(1.0)], "more than cut"),
        ([transforms.RandomRotation((30, 30)), transforms.Resize((16, 16))], "fills a part"),
        ([transforms.Resize((16, 16)), transforms.RandomInvert(1.0)], "fills|more than cut"),
    ],
)
def test_another_geometry_is_refused(steps, why):
    with pytest.raises(fs.FaithscopeError, match=why):
        photo_box(seeing(*steps), (60, 80))


@pytest.mark.parametrize(
    "box", [(0.0, 0.0, 30.0, 40.0), (3.5, 4.25, 20.0, 39.0), (2.0, 2.0, 6.0, 7.0)]
)
def test_resampling_is_pillows_bilinear_filter(box):
    values = randn(30, 40)
    top, left, bottom, right = box
    picture = Image.fromarray(values.float().numpy())
    theirs = picture.resize((9, 7), Image.Resampling.BILINEAR, box=(left, top, right, bottom))
    ours = resample(values[None], box, (7, 9))[0]
    torch.testing.assert_close(ours.float(), torch.from_numpy(np.array(theirs)), atol=1e-5, rtol=0)
    assert torch.allclose(resample(torch.ones(1, 30, 40), box, (7, 9)), torch.ones(()).double())
