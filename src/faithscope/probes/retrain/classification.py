"""How well a classifier does: accuracy, F1, AUROC and cross-entropy from its logits.

Everything is computed on the CPU in float64, whatever made the logits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from faithscope.data.text import SELECTIONS
from faithscope.errors import FaithscopeError, choose

CLASSIFICATION_METRICS = ("accuracy", "macro_f1", "micro_f1", "auroc", "cross_entropy")


def classification_scores(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """All five metrics of a test split, by name.

    Shapes: logits [N, C], labels int [N].

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> scores = classification_scores(logits, torch.tensor([0, 1, 1]))
    >>> {name: round(score, 4) for name, score in scores.items()}
    {'accuracy': 0.6667, 'macro_f1': 0.6667, 'micro_f1': 0.6667, 'auroc': 1.0,
     'cross_entropy': 0.5845}
    """
    logits, labels = _checked(logits, labels)
    right = accuracy(logits, labels)
    return {
        "accuracy": right,
        "macro_f1": macro_f1(logits, labels),
        "micro_f1": right,  # every mistake is one false positive and one false negative
        "auroc": auroc(logits, labels),
        "cross_entropy": cross_entropy(logits, labels).item(),
    }


def selection_score(logits: Tensor, labels: Tensor, metric: str) -> float:
    """The metric that chooses the best epoch ("accuracy" or "auroc"), higher is better.

    Shapes: logits [N, C], labels int [N].

    >>> selection_score(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]), "accuracy")
    0.5
    """
    logits, labels = _checked(logits, labels)
    chosen = choose("selection metric", metric, SELECTIONS)
    return accuracy(logits, labels) if chosen == "accuracy" else auroc(logits, labels)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of rows whose largest logit is the label's; the first of equal ones counts.

    NaN if a logit is NaN: a model that has diverged answers nothing.
    """
    if logits.isnan().any():
        return float("nan")
    return (logits.argmax(-1) == labels).to(torch.float64).mean().item()


def macro_f1(logits: Tensor, labels: Tensor) -> float:
    r"""F1 averaged over the classes that occur in the labels or among the predictions.

    .. math:: F_1(c) = \frac{2\,\mathrm{TP}_c}{2\,\mathrm{TP}_c + \mathrm{FP}_c + \mathrm{FN}_c}

    NaN if a logit is NaN.
    """
    if logits.isnan().any():
        return float("nan")
    predicted, classes = logits.argmax(-1), logits.shape[-1]
    hits = torch.bincount(labels[predicted == labels], minlength=classes)
    times = torch.bincount(labels, minlength=classes) + torch.bincount(predicted, minlength=classes)
    occurs = times > 0
    return (2 * hits[occurs].to(torch.float64) / times[occurs]).mean().item()


def auroc(logits: Tensor, labels: Tensor) -> float:
    r"""Area under the ROC curve, each class against the rest, averaged over all C classes.

    .. math:: \mathrm{AUROC}(c) = \Pr(p_i > p_j) + \tfrac12 \Pr(p_i = p_j)

    for i of class c and j of another, with the softmax probability p of class c. A class that no
    row has, or that all rows have, counts 0. NaN if a logit is NaN.
    """
    if logits.isnan().any():
        return float("nan")
    ranks = _mid_ranks(logits.to(torch.float64).softmax(-1))
    positive = one_hot(labels, logits.shape[-1]).to(torch.float64)
    inside = positive.sum(0)
    pairs = inside * (len(labels) - inside)
    won = (ranks * positive).sum(0) - inside * (inside + 1) / 2
    return torch.where(pairs > 0, won / pairs.clamp_min(1), 0.0).mean().item()


def _mid_ranks(values: Tensor) -> Tensor:
    """Ranks from 1 in each column, ties at their mean rank: [N, C] -> [N, C]."""
    columns = values.T.contiguous()
    ordered = columns.sort(-1).values
    below = torch.searchsorted(ordered, columns)
    up_to = torch.searchsorted(ordered, columns, right=True)
    return ((below + up_to + 1).to(torch.float64) / 2).T


def _checked(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise FaithscopeError(
            "Scoring needs logits [N, C] and labels [N] of at least one text, got "
            f"{list(logits.shape)} and {list(labels.shape)}."
        )
    logits = logits.detach().to("cpu", torch.float64)
    labels = labels.detach().to("cpu", torch.int64)
    if not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[1]:
        raise FaithscopeError(
            f"Labels must be class numbers from 0 to {logits.shape[1] - 1}, got "
            f"{int(labels.min())} to {int(labels.max())}."
        )
    return logits, labels
