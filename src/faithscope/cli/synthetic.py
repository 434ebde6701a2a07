"""A synthetic problem with a known truth: what ROAR and Recursive ROAR can and cannot tell.

Four of sixteen features know the class; all sixteen share two nuisances. A model that has one of
the four left, and others to cancel the nuisances with, still knows the class. ROAR, whose order
the full model fixes, spends removals on features that only cancel; Recursive ROAR asks again
after every removal (Madsen et al. 2022, Figure 3, after Hooker et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import softplus

from faithscope.errors import FaithscopeError, choose
from faithscope.registry import check_whole

FEATURES = 16
INFORMATIVE = 4
MODELS = ("logistic", "linear")
NOISES = ("shared", "independent")
MOST_ROWS = 10_000_000
"""More than a memory of today holds."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SyntheticRows:
    """Rows of features, kept as a product: features [n, 16] = factors [n, r] · loadings [r, 16].

    Removing a feature sets its column of the loadings to 0, so a model is fitted on r = 3 columns
    instead of 16 where the noise is shared. The features are the same numbers either way.
    """

    factors: Array
    loadings: Array
    labels: Array
    """0 or 1, [n]."""

    @property
    def features(self) -> Array:
        """The features themselves, [n, 16]."""
        return self.factors @ self.loadings


@dataclass(frozen=True, eq=False)
class SyntheticData:
    """Rows to fit on and rows to test on."""

    train: SyntheticRows
    test: SyntheticRows


@dataclass(frozen=True, eq=False)
class SyntheticResult:
    """What each order of removal does, by name: truth, worst, roar, recursive.

    curves: test accuracy after 0, 1, …, 16 removals, float64 [17].
    orders: the features in the order of their removal; 0 to 3 are those that know the class.
    """

    curves: dict[str, Tensor]
    orders: dict[str, tuple[int, ...]]
    model: str
    noise: str
    train_size: int
    test_size: int
    seed: int


def synthetic_problem(
    train_size: int = 200_000,
    test_size: int = 50_000,
    *,
    model: str = "logistic",
    noise: str = "shared",
    seed: int = 0,
) -> SyntheticResult:
    """Remove features in four orders and refit after every removal.

    truth      the informative features first, then the others, both by index
    worst      the others first, then the informative ones
    roar       by the size of the full model's coefficients
    recursive  the largest coefficient of the model refitted after the removal before

    The model is a logistic regression without penalty, or least squares with the label as its
    target. The defaults are the paper's (its seed, too).

    >>> found = synthetic_problem(500, 200, model="linear")
    >>> found.orders["recursive"][:4]
    (2, 1, 0, 3)
    """
    data = synthetic_data(train_size, test_size, noise=noise, seed=seed)
    fits = _Fits(data, choose("synthetic model", model, MODELS))
    informative, others = range(INFORMATIVE), range(INFORMATIVE, FEATURES)
    orders = {
        "truth": (*informative, *others),
        "worst": (*others, *informative),
        "roar": fits.roar_order(),
        "recursive": fits.recursive_order(),
    }
    curves = {name: fits.curve(order) for name, order in orders.items()}
    return SyntheticResult(curves, orders, model, noise, train_size, test_size, seed)


def synthetic_data(
    train_size: int, test_size: int, *, noise: str = "shared", seed: int = 0
) -> SyntheticData:
    r"""Draw the data of the synthetic problem.

    .. math:: x = \frac{a z}{10} + d \eta + \frac{\epsilon}{10}, \qquad y = [z > 0]

    with standard normal z, η and ε, and normal weights a (four, then twelve zeros) and d. The
    paper's program draws one ε per row for all features (`noise="shared"`), so the features have
    rank 3 and z can be recovered exactly; Hooker et al. (2019) read like one for each feature
    ("independent").
    """
    choose("synthetic noise", noise, NOISES)
    for name, size in (("train_size", train_size), ("test_size", test_size)):
        if size is None or (check_whole(name, size, 2) or 0) > MOST_ROWS:
            raise FaithscopeError(f"{name} must be a number of rows, from 2 to {MOST_ROWS:,}.")
    check_whole("seed", seed, 0)
    rng = np.random.default_rng(seed)
    a = np.concatenate([rng.standard_normal(INFORMATIVE), np.zeros(FEATURES - INFORMATIVE)])
    d = rng.standard_normal(FEATURES)
    rows = [_draw_rows(rng, n, a, d, noise) for n in (train_size, test_size)]
    if len(np.unique(rows[0].labels)) < 2:
        raise FaithscopeError("The rows to fit are all of one class: ask for more of them.")
    return SyntheticData(*rows)


def _draw_rows(rng: np.random.Generator, n: int, a: Array, d: Array, noise: str) -> SyntheticRows:
    z, eta = rng.standard_normal(n), rng.standard_normal(n)
    labels = (z > 0).astype(np.float64)
    if noise == "shared":
        factors = np.stack([z, eta, rng.standard_normal(n)], axis=1)
        return SyntheticRows(factors, np.stack([a / 10, d, np.full(FEATURES, 0.1)]), labels)
    epsilon = rng.standard_normal((n, FEATURES))
    features = np.outer(z, a) / 10 + np.outer(eta, d) + epsilon / 10
    return SyntheticRows(features, np.eye(FEATURES), labels)


class _Fits:
    """The model fitted without each set of features that is asked for, every set once."""

    def __init__(self, data: SyntheticData, model: str) -> None:
        self.data = data
        self.fit: Callable[[Array], Array] = self._logistic if model == "logistic" else self._linear
        self._found: dict[frozenset[int], Array] = {}

    def without(self, removed: Sequence[int]) -> Array:
        """Coefficients and intercept [17]."""
        key = frozenset(removed)
        if key not in self._found:
            loadings = self.data.train.loadings.copy()
            loadings[:, list(removed)] = 0.0
            self._found[key] = self.fit(loadings)
        return self._found[key]

    def roar_order(self) -> tuple[int, ...]:
        size = np.abs(self.without(())[:-1])
        return tuple(int(i) for i in np.argsort(-size, kind="stable"))

    def recursive_order(self) -> tuple[int, ...]:
        removed: list[int] = []
        while len(removed) < FEATURES:
            size = np.abs(self.without(removed)[:-1])
            size[removed] = -1.0
            removed.append(int(size.argmax()))
        return tuple(removed)

    def curve(self, order: Sequence[int]) -> Tensor:
        accuracy = [self._accuracy(order[:count]) for count in range(FEATURES + 1)]
        return torch.tensor(accuracy, dtype=torch.float64)

    def _accuracy(self, removed: Sequence[int]) -> float:
        """Test accuracy; the coefficient of a removed feature is 0, or meets only zeros."""
        weights = self.without(removed).copy()
        weights[list(removed)] = 0.0
        test = self.data.test
        decision = test.factors @ (test.loadings @ weights[:-1]) + weights[-1]
        return float(((decision > 0) == (test.labels > 0)).mean())

    def _logistic(self, loadings: Array) -> Array:
        train = self.data.train
        return logistic_regression(train.factors, loadings, train.labels)

    def _linear(self, loadings: Array) -> Array:
        """Least squares of smallest norm, with an intercept; it decides for 1 above one half."""
        (q, r), train = self._decomposed, self.data.train
        weights = np.linalg.pinv(r @ loadings, rcond=1e-10) @ (q.T @ train.labels)
        middle = train.factors.mean(0) @ loadings @ weights
        return np.append(weights, train.labels.mean() - middle - 0.5)

    @cached_property
    def _decomposed(self) -> tuple[Array, Array]:
        """The centred factors as q · r: every least-squares fit needs no more than these."""
        factors = self.data.train.factors
        q, r = np.linalg.qr(factors - factors.mean(0))
        return q, r


def logistic_regression(factors: Array, loadings: Array, labels: Array) -> Array:
    r"""Logistic regression without penalty on factors · loadings, as scikit-learn fits it.

    .. math:: \min_{w, b} \frac1n \sum_i \log(1 + e^{m_i}) - y_i m_i, \qquad m = F (L w) + b

    L-BFGS from 0 with at most 100 iterations. Where the classes can be separated there is no
    minimum, and where it stops decides the size of the coefficients.

    Shapes: factors [n, r], loadings [r, p], labels 0 or 1 [n] -> [p + 1], the intercept last.
    """
    f, y = torch.from_numpy(np.ascontiguousarray(factors.T)), torch.from_numpy(labels)
    n, features = len(labels), loadings.shape[1]

    def objective(weights: Array) -> tuple[float, Array]:
        margin = torch.from_numpy(loadings @ weights[:-1]) @ f + weights[-1]
        loss = softplus(margin, threshold=40).sum() - torch.dot(y, margin)  # exact in float64
        residual = margin.sigmoid_().sub_(y).div_(n)
        gradient = loadings.T @ (f @ residual).numpy()
        return loss.item() / n, np.append(gradient, residual.sum().item())

    found = minimize(
        objective,
        np.zeros(features + 1),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 100, "maxls": 50, "gtol": 1e-4, "ftol": 64 * np.finfo(float).eps},
    )
    weights: Array = found.x
    return weights
