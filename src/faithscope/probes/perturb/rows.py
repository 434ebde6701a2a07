"""The rows of a shard: scores, responses, maps, spans, samples, pictures, and what it took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from faithscope.data import Skipped
from faithscope.data.pictures import picture_rows, text_rows
from faithscope.probes.perturb.ask import Answers, Setup
from faithscope.probes.perturb.failures import Failure
from faithscope.probes.perturb.plan import MapPlan
from faithscope.probes.perturb.score import ShardResult, score_shard
from faithscope.runs.tables import join_tables, make_table, table_of_rows
from faithscope.runs.task import Tables


def shard_tables(setup: Setup, data: str, answers: Answers) -> dict[str, pa.Table]:
    """Score one shard and write its rows."""
    scored = score_shard(setup, answers)
    samples = np.array(scored.batch.samples, dtype=object)
    labels = scored.batch.labels
    return {
        "scores": score_table(
            setup.model.name,
            data,
            _choices(setup),
            [(column.label, column.draw) for column in setup.columns],
            scored.batch.samples,
            scored.scores,
            scored.k,
            scored.flags,
        ),
        "responses": _joined("responses", _response_columns(setup, scored, samples)),
        "maps": _map_table(setup, answers, samples),
        "spans": span_table(answers),
        "samples": make_table(
            "samples",
            {
                "sample": samples,
                "label": np.full(len(samples), -1) if labels is None else labels.numpy(),
                "target": scored.target.numpy(),
                "predicted": scored.predicted.numpy(),
                "log_p0": scored.log_p0.numpy(),
                "digest": scored.batch.digests,
            },
        ),
        "pictures": make_table("pictures", _pictures(setup, answers)),
    }


def _choices(setup: Setup) -> tuple[str, str | None]:
    """The fill and the upsampling, which texts have none of."""
    request = setup.request
    return request.fill, None if setup.model.modality == "text" else request.upsample


def join_shards(parts: Sequence[Tables]) -> dict[str, pa.Table]:
    """The rows of several shards, those of images of several shapes, as one."""
    return {name: join_tables(name, [part[name] for part in parts]) for name in parts[0]}


def skipped_table(skipped: Sequence[Skipped]) -> pa.Table:
    """The images that were left out."""
    columns = {"sample": [s.sample for s in skipped], "reason": [s.reason for s in skipped]}
    return make_table("skipped", columns)


def failure_table(failures: Sequence[Failure]) -> pa.Table:
    """The samples on which the model or a method raised."""
    columns = {
        "sample": [failure.sample for failure in failures],
        "method": [failure.method for failure in failures],
        "reason": [failure.why for failure in failures],
    }
    return make_table("failures", columns)


def overflow_table(overflowed: Sequence[tuple[str, str]]) -> pa.Table:
    """The samples and methods that were explained again, since half precision overflowed."""
    rows = [{"sample": sample, "method": method} for sample, method in overflowed]
    return table_of_rows("overflows", rows)


def score_table(
    model: str,
    data: str,
    choices: tuple[str, str | None],
    columns: Sequence[tuple[str, int]],
    samples: Sequence[str],
    scores: Mapping[str, torch.Tensor],
    ks: Mapping[str, torch.Tensor],
    flags: Mapping[str, list[list[str]]],
) -> pa.Table:
    """The long table of scores, [S, M] by metric, of M columns of maps (method, draw).

    `choices` are the fill and the upsampling.
    """
    rows = len(samples) * len(columns)
    names = np.array(samples, dtype=object).repeat(len(columns))
    parts = [
        make_table(
            "scores",
            {
                "model": [model] * rows,
                "data": [data] * rows,
                "sample": names,
                "method": [method for method, _ in columns] * len(samples),
                "draw": [draw for _, draw in columns] * len(samples),
                "metric": [label] * rows,
                "k": ks[label].flatten().numpy(),
                "fill": [choices[0]] * rows,
                "upsample": [choices[1]] * rows,
                "value": values.flatten().numpy(),
                "flag": list(chain.from_iterable(flags[label])),
            },
        )
        for label, values in scores.items()
    ]
    return join_tables("scores", parts)


def _response_columns(
    setup: Setup, shard: ShardResult, samples: np.ndarray
) -> Iterator[dict[str, Any]]:
    labels = np.array([column.label for column in setup.columns], dtype=object)
    draws = np.array([column.draw for column in setup.columns])
    for part in shard.responses:
        pairs, cuts = part.log_p.shape
        bounds = np.array(part.plan.cuts)
        yield {
            "sample": samples[part.sample.numpy()].repeat(cuts),
            "method": labels[part.map.numpy()].repeat(cuts),
            "draw": draws[part.map.numpy()].repeat(cuts),
            "start": np.tile(bounds[:, 0], pairs),
            "stop": np.tile(bounds[:, 1], pairs),
            "log_p": part.log_p.flatten().numpy(),
            "top1": part.top1.flatten().numpy(),
            "salience": part.salience.flatten().numpy(),
        }


def _map_table(setup: Setup, answers: Answers, samples: np.ndarray) -> pa.Table:
    ranked, columns = answers.ranked, setup.columns
    rows = ranked.finite.numel()
    return make_table(
        "maps",
        {
            "sample": samples.repeat(len(columns)),
            "method": [column.label for column in columns] * len(samples),
            "draw": [column.draw for column in columns] * len(samples),
            "granularity": list(answers.granularity) * len(samples),
            "units": [ranked.ranks.shape[-1]] * rows,
            "k": ranked.auto.flatten().tolist() if ranked.is_automatic else [None] * rows,
            "finite": ranked.finite.flatten().tolist(),
            "constant": ranked.constant.flatten().tolist(),
            "failed": answers.failed.flatten().tolist(),
        },
    )


def span_table(answers: Answers) -> pa.Table:
    """Which responses every metric reads, by the units of a map and the K chosen for it."""
    ranked = answers.ranked
    return spans_of(
        [
            (plan, ranked.ranks.shape[-1], auto if ranked.is_automatic else None)
            for auto, plan in ranked.plans.items()
        ]
    )


def spans_of(plans: Sequence[tuple[MapPlan, int, int | None]]) -> pa.Table:
    """The same of plans, the units they are for and the K that "auto" stands for."""
    found: dict[str, list[Any]] = {name: [] for name in ("units", "k", "metric", "place")}
    cuts: list[tuple[int, int]] = []
    for plan, units, auto in plans:
        for label, index in plan.index.items():
            found["units"] += [units] * len(index)
            found["k"] += [auto] * len(index)
            found["metric"] += [label] * len(index)
            found["place"] += range(len(index))
            cuts += [plan.cuts[place] for place in index]
    bounds = {"start": [start for start, _ in cuts], "stop": [stop for _, stop in cuts]}
    return make_table("spans", {**found, **bounds})


def _pictures(setup: Setup, answers: Answers) -> dict[str, list[Any]]:
    maps = answers.miniatures
    count = len(next(iter(maps.values()), ()))
    batch, model = answers.batch, setup.model
    if batch.words:
        return text_rows(batch.samples, batch.words[:count], batch.seconds[:count], maps)
    images = batch.images[:count]
    return picture_rows(batch.samples, images, maps, mean=model.mean, std=model.std)


def _joined(name: str, parts: Iterator[dict[str, Any]]) -> pa.Table:
    return join_tables(name, [make_table(name, columns) for columns in parts])
