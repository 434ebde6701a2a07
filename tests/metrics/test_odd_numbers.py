"""Numbers of every kind: the score is that of the same numbers in float64, or they are refused."""

import numpy as np
import pytest
import torch

import faithscope as fs
from conftest import randn, score_cube, score_maps, tiny_vit
from faithscope.data import as_tensor
from faithscope.data.pictures import scale_map
from faithscope.metrics import absolute_area, area, auto_k, mean_drop, mean_log_odds
from faithscope.perturb import scaled, to_pixels
from families import refused

DROP = [0.07, 0.89]


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "uint16", "uint32", "uint64", "bool"])
def test_small_whole_numbers_do_not_wrap_around(kind):
    """uint8 [2, 1] gave 255, and -128 − 1 is 127 in int8."""
    salience = np.array([1, 0] if kind == "bool" else [2, 1]).astype(kind)
    assert float(fs.saco(salience, DROP)) == -1.0
    assert float(fs.saco(torch.from_numpy(salience), torch.tensor(DROP))) == -1.0
    wide = np.array([100, -100, 20], dtype=np.int8)
    assert float(fs.saco(wide, [3, 2, 1])) == float(fs.saco(wide.astype(float), [3, 2, 1]))


@pytest.mark.parametrize("size", [1e-320, 1e-300, 1e-160, 1e160, 1e306, 1.7e308])
def test_the_size_of_salience_does_not_matter(size):
    salience, drop = randn(5, 10), randn(5, 10, seed=1)
    salience = salience / salience.abs().max()
    large = salience * size
    tolerance = 1e-2 if size < 1e-310 else 1e-12  # of a subnormal number few bits are left
    torch.testing.assert_close(
        fs.saco(large, drop), fs.saco(salience, drop), rtol=0, atol=tolerance
    )
    if size > 1e-310:
        assert auto_k(large).equal(auto_k(salience))


@pytest.mark.parametrize("size", [1e306, 1e308])
@pytest.mark.parametrize("units", ["pixels", "patches"])
def test_huge_maps_are_not_degenerate(size, units):
    images, maps = randn(3, 3, 16, 16), randn(3, 16, 16, seed=3).clamp(-1.7, 1.7)
    patches = randn(3, 4, 4, seed=4).clamp(-1.7, 1.7)
    given = {"pixel": maps, "patch": patches}
    huge = {name: values * size for name, values in given.items()}
    results = [
        score_maps(tiny_vit(), images, held, units=units, k="auto") for held in (given, huge)
    ]
    np.testing.assert_allclose(score_cube(results[0]), score_cube(results[1]), atol=1e-12)
    assert {row["flag"] for row in results[1].scores.to_pylist()} == {""}
    assert np.isfinite(results[1].responses["salience"].to_numpy()).all()


def test_half_precision_maps_are_summed_exactly():
    images, maps = randn(2, 3, 16, 16), (randn(2, 16, 16, seed=3).abs() * 2e4).half()
    half, full = (
        score_maps(tiny_vit(), images, {"mine": held}, units="patches")
        for held in (maps, maps.double())
    )
    np.testing.assert_allclose(score_cube(half), score_cube(full), atol=1e-6)


def test_the_type_of_a_score_is_that_of_its_numbers():
    salience, drop = torch.tensor([2.0, 1.0]), torch.tensor(DROP)
    assert fs.saco(salience, drop).dtype == torch.float32
    assert fs.saco(salience.half(), drop.half()).dtype == torch.float32
    assert fs.saco(salience.int(), drop).dtype == torch.float64
    assert fs.saco(salience.double(), drop).dtype == torch.float64


def test_gradients_pass_through_scores():
    salience = torch.tensor([3.0, 2.0, 1.0], requires_grad=True)
    fs.saco(salience, torch.tensor([0.3, 0.1, 0.2])).backward()
    assert salience.grad is not None and salience.grad.isfinite().all()


REFUSED = {
    "complex": torch.tensor([1j, 2j]),
    "meta": torch.empty(2, device="meta"),
    "words": ["a", "b"],
    "bytes": b"ab",
    "text": "12",
    "nothing": None,
    "objects": np.array([{}, []], dtype=object),
    "dates": np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]"),
    "ragged": [[1], [2, 3]],
    "rows": np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
}


@pytest.mark.parametrize("values", REFUSED.values(), ids=REFUSED)
def test_what_holds_no_numbers_is_refused(values):
    for call in (
        lambda: fs.saco(values, DROP),
        lambda: fs.saco(DROP, values),
        lambda: fs.racu(values, DROP, [0.0, 1.0]),
        lambda: fs.racu(DROP, DROP, values),
        lambda: mean_drop(values, DROP),
        lambda: mean_log_odds(values, DROP),
        lambda: area(values),
    ):
        with refused("must be an array of numbers"):
            call()


def test_shapes_that_do_not_go_together_are_refused():
    with refused("p0 and p", "[3, 1]", "[2, 4]"):
        mean_drop(torch.ones(3), torch.ones(2, 4))
    with refused("curve and baseline"):
        absolute_area(torch.ones(3, 2), torch.ones(2, 2), [0.0, 1.0])
    with refused("at least 2 levels"):
        area(torch.ones(3, 1))
    with refused("at least two masked ratios"):
        fs.racu([1.0, 0.0], [1.0, 0.0], [0.0, float("nan")])
    with refused("K must be at least 2"):
        fs.saco(1.0, 2.0)
    for penalty in ("x", None, True, -1, float("nan"), float("inf")):
        with refused("penalty must be 0 or more"):
            fs.saco([2, 1], DROP, penalty=penalty)


KINDS = {
    "big-endian": lambda x: x.astype(">f8"),
    "longdouble": lambda x: x.astype(np.longdouble),
    "fortran": np.asfortranarray,
    "backwards": lambda x: x[::-1].copy()[::-1],
    "read-only": lambda x: np.frombuffer(x.tobytes()).reshape(x.shape),
    "objects": lambda x: x.astype(object),
    "sparse": lambda x: torch.from_numpy(x).to_sparse(),
    "csr": lambda x: torch.from_numpy(x).to_sparse_csr(),
    "grad": lambda x: torch.from_numpy(x).requires_grad_(),
    "list": lambda x: x.tolist(),
    "tensors": lambda x: [torch.from_numpy(row) for row in x],
    "masked": np.ma.masked_array,
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_numbers_of_every_kind_score_the_same(kind):
    salience, drop = randn(3, 5).numpy(), randn(3, 5, seed=1).numpy()
    torch.testing.assert_close(
        fs.saco(kind(salience), kind(drop)), fs.saco(salience, drop), rtol=0, atol=0
    )
    assert as_tensor(kind(salience)).is_floating_point()


def test_masked_values_are_no_numbers():
    held = as_tensor(np.ma.masked_array([1.0, 2.0], mask=[True, False]))
    assert held.isnan().tolist() == [True, False]


def test_an_inference_tensor_can_be_differentiated():
    with torch.inference_mode():
        made = torch.ones(2)
    assert not as_tensor(made).is_inference()


def test_scaling_changes_no_bit():
    values = randn(4, 7) * 10.0 ** torch.arange(-3, 4)
    again = scaled(values)
    ratio = again / values
    assert (ratio == ratio[:, :1]).all() and again.abs().amax(-1).le(1).all()
    assert scaled(torch.zeros(2, 3, dtype=torch.float64)).eq(0).all()


def test_upsampling_does_not_overflow():
    maps = torch.tensor([[[-1.7e308, 1.7e308]]], dtype=torch.float64)
    assert to_pixels(maps, (4, 8)).isfinite().all()
    kind, values = scale_map(maps[0].numpy())
    assert kind == "signed" and np.isfinite(values).all()
