"""From what finished trainings gave, their cards, to a result; results of several seeds as one."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from typing import Any

import pyarrow as pa
import torch

from faithscope.probes.retrain.jobs import Job, Jobs
from faithscope.probes.retrain.result import ROAR_SCHEMAS, RoarResult
from faithscope.result import FORMAT
from faithscope.version import __version__

Cards = Mapping[Job, Mapping[str, Any]]
"""What came out of finished trainings, in the order of the jobs."""


def join_results(
    jobs: Jobs,
    cards: Cards,
    manifests: Sequence[Mapping[str, Any]],
    examples: Sequence[Mapping[str, Any]],
    pack_size: int,
) -> RoarResult | None:
    """The result of all seeds, from results of some that differ in nothing else; or None.

    Args:
        jobs: The trainings of all seeds.
        cards: What came out of them.
        manifests: Of the results that are joined.
        examples: Of the one that has the first seed.
        pack_size: How many were trained together at most, in all of them.
    """
    told = [_same_for_all_seeds(manifest) for manifest in manifests]
    if len(cards) < len(jobs) or any(one != told[0] for one in told):
        return None
    sections = {
        **told[0],
        "protocol": {**manifests[0]["protocol"], "seeds": list(jobs.seeds)},
    }
    made = {part: _in_all([one[part] for one in manifests]) for part in ("machine", "versions")}
    own = {job: {**_made_by(job.seed, manifests), **card} for job, card in cards.items()}
    return result_of(jobs, own, examples, sections, pack_size, made)


def _made_by(seed: int, manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a card of an earlier version does not name: the machine and versions of its seed."""
    one = next(one for one in manifests if seed in one["protocol"]["seeds"])
    return {"machine": one["machine"].get("device"), "versions": one["versions"]}


def _same_for_all_seeds(manifest: Mapping[str, Any]) -> dict[str, Any]:
    protocol = {key: value for key, value in manifest["protocol"].items() if key != "seeds"}
    model = {key: manifest["model"][key] for key in ("name", "recipe")}
    return {"data": manifest["data"], "model": model, "protocol": protocol}


def _in_all(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What parts say, key by key; where they differ, all of it.

    >>> _in_all([{"torch": "2.11", "threads": 2}, {"torch": "2.15", "threads": 2}])
    {'torch': '2.11, 2.15', 'threads': 2}
    """
    return {
        key: value if all(one.get(key) == value for one in parts) else _all_of(parts, key)
        for key, value in parts[0].items()
    }


def _all_of(parts: Iterable[Mapping[str, Any]], key: str, otherwise: object = None) -> str:
    said = (str(value) for one in parts if (value := one.get(key, otherwise)) is not None)
    return ", ".join(dict.fromkeys(chain.from_iterable(value.split(", ") for value in said)))


def package_versions() -> dict[str, str]:
    """Of faithscope and of what its numbers depend on."""
    packages = ("torch", "numpy", "scipy", "transformers")
    return {"faithscope": __version__, **{name: version(name) for name in packages}}


def made_here(device: str) -> dict[str, dict[str, Any]]:
    """This machine, whose device has a name, and the versions on it."""
    machine = {
        "device": device,
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }
    return {"machine": machine, "versions": package_versions()}


def result_of(
    jobs: Jobs,
    cards: Cards,
    examples: Sequence[Mapping[str, Any]],
    sections: Mapping[str, Mapping[str, Any]],
    pack_size: int,
    made: Mapping[str, Mapping[str, Any]],
) -> RoarResult:
    """The result that cards make; `made` is the machine and versions of those that name none."""
    about = {"data": sections["data"]["name"], "model": sections["model"]["name"]}
    trainings = [
        {
            **about,
            "job": job.id,
            "measure": measure,
            "procedure": procedure,
            "strategy": job.strategy,
            "k": k,
            "seed": seed,
            "metric": metric,
            "value": value,
            "epoch": cards[job]["epoch"],
            "seconds": cards[job]["seconds"],
        }
        for (measure, procedure, seed), curve in jobs.curves.items()
        for k, job in curve.items()
        for metric, value in cards[job]["scores"].items()
    ]
    shares = [
        {
            **about,
            "measure": job.measure,
            "seed": job.seed,
            "kind": kind,
            "x": int(x),
            "value": value,
        }
        for job, card in cards.items()
        for kind, values in card.get("sparsity", {}).items()
        for x, value in values.items()
    ]
    return RoarResult(
        pa.Table.from_pylist(trainings, schema=ROAR_SCHEMAS["trainings"]),
        pa.Table.from_pylist(shares, schema=ROAR_SCHEMAS["sparsity"]),
        examples,
        _manifest(jobs, cards, sections, pack_size, made),
    )


def _manifest(
    jobs: Jobs,
    cards: Cards,
    sections: Mapping[str, Mapping[str, Any]],
    pack_size: int,
    made: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    # cards of earlier versions name neither machine nor versions
    versions = [card.get("versions", {}) for card in cards.values()]
    device = _all_of(cards.values(), "machine", made["machine"].get("device"))
    training = sum(card["seconds"] for card in cards.values())
    explaining: dict[str, float] = defaultdict(float)
    for job, card in cards.items():
        if job.measure is not None:
            explaining[job.measure] += card["explaining"]
    model = sections["model"]
    return {
        "format": FORMAT,
        "kind": "roar",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": dict(sections["data"]),
        "model": {
            "name": model["name"],
            "parameters": next(iter(cards.values()))["parameters"],
            "recipe": model["recipe"],
            "device": _all_of(cards.values(), "device"),
        },
        "protocol": dict(sections["protocol"]),
        "cost": {
            "seconds": training + sum(explaining.values()),
            "trainings": len(jobs),
            "training_seconds": training,
            "explaining_seconds": {measure: explaining[measure] for measure in jobs.measures},
            "explained": explained(jobs),
            "packs": len(jobs.packs(pack_size)),
            "pack_size": pack_size,
        },
        "machine": {**made["machine"], "device": device},
        "versions": {
            name: _all_of(versions, name, value) for name, value in made["versions"].items()
        },
    }


def explained(jobs: Jobs) -> dict[str, int]:
    """How many models each measure explains."""
    found: dict[str, set[str]] = {}
    for job in jobs.jobs:
        if job.measure is not None and job.parent is not None:
            found.setdefault(job.measure, set()).add(job.parent.id)
    return {measure: len(parents) for measure, parents in found.items()}
