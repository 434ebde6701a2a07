r"""Do perturbation and retraining rank explanation methods alike?

Perturbation judges the models that ROAR trains on the intact data, one for each seed, with the same
methods for the same (true) labels. On a GPU:

faithscope run studies/ranks_cifar10.yaml --out runs/ranks_cifar10 --yes
python studies/ranks.py perturb runs/ranks_cifar10 --data cifar10:data/cifar10 --device cuda
python studies/ranks.py summarise runs/ranks_cifar10        # studies/results/ranks_cifar10.json

`perturb` writes a run for every seed and fill into RUN_perturbed and resumes where it was stopped.
`summarise` correlates, seed by seed, the ranking of methods by RACU (random attribution, whose RACU
is 0, among them) with their ranking by every metric and fill: Kendall's tau-b and Spearman's rho,
means over seeds with Student's interval. Seeds whose RACU has its sign turned, or is undefined, are
left out. For comparison it gives how far the rankings of two seeds by one probe agree. `page`
writes a page and a figure of summaries:

python studies/ranks.py page studies/results/ranks_*.json --out docs/ranks.md
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy.stats import kendalltau, rankdata, spearmanr
from summarise import command, protocol, table, written
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

import faithscope as fs
from faithscope.errors import FaithscopeError
from faithscope.perturb import DEFAULTS, FILLS
from faithscope.report.style import INK, LINE, MUTED, SERIES, Drawing, house_style
from faithscope.verdicts.sentences import in_words
from faithscope.verdicts.statistics import student_interval

Array = NDArray[np.float64]
Row = dict[str, Any]

METRICS = {"saco": "SaCo", "aopc": "AOPC", "log_odds": "LOdds", "comprehensiveness": "Comp."}
"""And how papers write them."""
IMAGES = 1000
FEWEST = 4
"""Methods of which ranks are correlated at least, when some are left out."""
BUNDLED = Path(fs.__file__).parent / "bundled" / "sst_text"
CORRELATIONS = {"kendall": kendalltau, "spearman": spearmanr}
TITLES = {
    "ranks_bert": "A BERT of two blocks on SST",
    "ranks_cifar10": "A ViT of six blocks on CIFAR-10",
    "ranks_fashion": "A ViT of two blocks on Fashion-MNIST",
    "ranks_sst": "MiniLM-L6 on SST",
}
ABOUT = {
    "ranks_bert": "A small BERT from random weights, with the words of the bundled classifier, "
    "trained for two epochs each time.",
    "ranks_fashion": "A small ViT from random weights, trained for six epochs on 6,000 images each "
    "time (so it is far from the best there is), judged by patches. ROAR fills with the mean "
    "colour of an image, which tells something of the class where all is masked.",
}


# A model to begin with


def untrained(folder: Path) -> None:
    """Keep a BERT like the bundled text classifier, with its words but with random weights."""
    config = AutoConfig.from_pretrained(BUNDLED, hidden_dropout_prob=0.1)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(BUNDLED).save_pretrained(folder)


# The half that perturbs


def perturb(
    run: Path,
    data: str,
    *,
    limit: int | None,
    samples: int,
    fills: Sequence[str],
    seeds: Sequence[int],
    device: str,
) -> None:
    """Evaluate the model of every seed under every fill."""
    (result,) = fs.load_results(run).results.values()
    plan = result.manifest.plan
    methods = [name for name, card in result.manifest.methods.items() if not card.is_random]
    known = protocol(result)
    masked = {name: known[name] for name in ("fill", "units") if name in known}
    prepared = fs.prepare_roar(
        data, plan.model.name, measures=methods, limit=limit, device=device, **masked
    )
    if prepared.plan.data.fingerprint != plan.data.fingerprint:
        raise FaithscopeError(f"'{data}' is not the data of '{run}': give what it was trained on.")
    worker: Any = prepared.planned.worker
    learner = worker.learner
    fills = fills or _fills(learner, masked.get("units"))
    for seed, fill in product(seeds or result.trained.seeds, fills):
        out = perturbed(run) / f"seed{seed}-{fill}"
        options: Row = {"metrics": [*METRICS], "target": "label", "fill": fill, "pictures": 0}
        options |= {"limit": samples, "out": out}
        model = fs.load_model(f"run:{run}(seed={seed})", device=learner.device)
        texts_or_images: Any = worker.source
        if model.modality == "image":
            test = worker.data.test
            texts_or_images = worker.data.frame.normalised(test.images)
            options |= {"labels": test.labels, "units": masked["units"]}
        fs.evaluate(model, texts_or_images, methods, **options)
        print(out, flush=True)


def perturbed(run: Path) -> Path:
    """Where the runs that perturb are."""
    return run.with_name(f"{run.resolve().name}_perturbed")


def _fills(learner: Any, units: str | None) -> list[str]:
    """All that suit the units: patches can leave a sequence, pixels cannot."""
    known = FILLS.of(getattr(learner, "modality", "text"))
    return [name for name in known if units != "pixels" or not known[name].drops]


# The comparison


def summarise(run: Path) -> Row:
    """Rankings by both probes, and how far they agree."""
    (retrained,) = fs.load_results(run).results.values()
    runs = fs.load_results(perturbed(run)).results
    check(run, retrained, runs)
    methods = [name for name, card in retrained.manifest.methods.items() if not card.is_random]
    seeds = list(retrained.trained.seeds)
    racu = racu_by_seed(retrained, methods, seeds)
    by_name = {name: perturbation_scores(result, methods) for name, result in runs.items()}
    fills = list(dict.fromkeys(name.partition("-")[2] for name in runs))
    first = next(iter(runs.values()))
    doubts = retrained.manifest.doubts
    is_better_higher = {k: first.manifest.metrics[k].higher_is_better for k in METRICS}
    rows, judged = [], []
    for fill, metric in product(fills, METRICS):
        scores = np.array([by_name[f"seed{seed}-{fill}"][metric] for seed in seeds])
        better = scores if is_better_higher[metric] else -scores
        rows.append({"fill": fill, "metric": metric, **agreement(better, racu), **within(better)})
        judged += [
            {"fill": fill, "metric": metric, "seed": seed, **named(methods, own)}
            for seed, own in zip(seeds, scores, strict=True)
        ]
    return {
        "name": run.resolve().name,
        "command": command(run, [retrained]),
        "model": retrained.manifest.model.name,
        "data": retrained.manifest.data.name,
        "samples": first.manifest.data.samples,
        "seeds": seeds,
        "methods": methods,
        "protocol": {"retrain": protocol(retrained), "perturb": protocol(first)},
        "trainings": retrained.manifest.cost.trainings,
        "seconds": {
            "retrain": retrained.manifest.cost.seconds,
            "perturb": sum(result.manifest.cost.seconds for result in runs.values()),
        },
        "device": {
            "retrain": retrained.manifest.machine.device,
            "perturb": first.manifest.machine.device,
        },
        "versions": retrained.manifest.versions,
        "warnings": retrained.warnings(),
        "rising": sorted({doubt.method for doubt in doubts if doubt.kind == "rising"}),
        "higher_is_better": is_better_higher,
        "racu": table([{"seed": s, **named(methods, v)} for s, v in zip(seeds, racu, strict=True)]),
        "racu_within": within(racu),
        "scores": scores_of_models(retrained),
        "curves": table(curves(retrained)),
        "perturbation": table(judged),
        "correlations": table(rows),
    }


def check(run: Path, retrained: fs.Result, runs: Mapping[str, fs.Result]) -> None:
    """Refuse perturbed runs that lack a seed, or were not made alike of the models of this run."""
    fills = {name.partition("-")[2] for name in runs}
    for fill, seed in product(sorted(fills), retrained.trained.seeds):
        name = f"seed{seed}-{fill}"
        if name not in runs:
            raise FaithscopeError(f"'{perturbed(run)}' has no '{name}': run perturb to its end.")
        model = fs.load_model(f"run:{run}(seed={seed})", device="cpu")
        if runs[name].manifest.plan.model.fingerprint != model.fingerprint:
            raise FaithscopeError(
                f"'{name}' is of another model than that of '{run}': run perturb again."
            )
    first = next(iter(runs.values()))
    for name, result in runs.items():
        same = {**protocol(result), "fill": protocol(first)["fill"]} == protocol(first)
        if not same or result.manifest.data.samples != first.manifest.data.samples:
            raise FaithscopeError(f"'{name}' has other samples or another protocol than others.")


def scores_of_models(result: fs.Result) -> Row:
    """The test score of the models on intact data and with everything masked: means over seeds."""
    about: Any = result.manifest.data.images or result.manifest.data.texts
    rows = [row for row in result.trainings.to_pylist() if row["metric"] == about.metric]
    means = {
        name: float(np.mean([row["value"] for row in rows if row["k"] == k]))
        for name, k in (("intact", 0), ("masked", 100))
    }
    return {"metric": about.metric, **means}


def curves(result: fs.Result) -> list[Row]:
    """What ROAR measured: the test score by method, level and seed."""
    about: Any = result.manifest.data.images or result.manifest.data.texts
    return [
        {name: row[name] for name in ("measure", "k", "seed", "value")}
        for row in result.trainings.to_pylist()
        if row["metric"] == about.metric and row["procedure"] == "roar"
    ]


def named(methods: Sequence[str], values: Array) -> Row:
    """Values of all methods, and of random attribution."""
    return dict(zip((*methods, "random"), map(float, values), strict=True))


def racu_by_seed(result: fs.Result, methods: Sequence[str], seeds: Sequence[int]) -> Array:
    """RACU [seeds, methods + 1]; random attribution is last, with 0 by definition.

    NaN for seeds whose sign is turned: random attribution ends above where it began.
    """
    found = {
        (row["training"], row["method"]): np.nan if "sign_turned" in row["flag"] else row["value"]
        for row in result.scores.to_pylist()
        if row["metric"] == "racu" and row["procedure"] == "roar"
    }
    return np.array([[*(found[seed, name] for name in methods), 0.0] for seed in seeds])


def perturbation_scores(result: fs.Result, methods: Sequence[str]) -> dict[str, Array]:
    """Means by metric [methods + 1]; random attribution is the matched one."""
    cards = result.manifest.methods
    means = {(r["method"], r["metric"]): r["mean"] for r in result.summary().to_pylist()}
    random = {cards[name].matched_random for name in methods}
    if len(random) != 1:
        raise FaithscopeError(
            f"The methods match several random attributions ({', '.join(map(str, random))}), and "
            "ROAR has one: judge by units that all of them rank, as patches."
        )
    names = (*methods, *random)
    return {metric: np.array([means[name, metric] for name in names]) for metric in METRICS}


def agreement(scores: Array, racu: Array) -> Row:
    """Rank correlations of the probes, seed by seed: means, intervals and of the mean scores."""
    found: Row = {}
    for name in CORRELATIONS:
        values = [correlation(name, *pair) for pair in zip(scores, racu, strict=True)]
        known = [value for value in values if np.isfinite(value)]
        interval = student_interval(known) if known else (float("nan"),) * 3
        mean, low, high = np.clip(interval, -1.0, 1.0).tolist()
        if known and np.ptp(known) == 0:  # no spread says nothing of the next seed
            low = high = float("nan")
        found |= {name: mean, f"{name}_low": low, f"{name}_high": high}
        usable = np.isfinite(racu).all(1)
        found[f"{name}_of_means"] = (
            correlation(name, scores[usable].mean(0), racu[usable].mean(0))
            if usable.any()
            else float("nan")
        )
    return {**found, "n": len(known)}


def within(scores: Array) -> Row:
    """How far any two seeds of one probe agree, on average: [seeds, methods]."""
    pairs = list(combinations(scores[np.isfinite(scores).all(1)], 2))
    return {
        f"{name}_within": float(np.nanmean([correlation(name, *pair) for pair in pairs]))
        if pairs
        else float("nan")
        for name in CORRELATIONS
    }


def correlation(name: str, first: Array, second: Array) -> float:
    """A rank correlation; NaN where all values of one are equal, or one is not finite."""
    if not np.isfinite([first, second]).all() or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(CORRELATIONS[name](first, second).statistic)


# The page


def page(summaries: Sequence[Path], out: Path) -> None:
    """A page in Markdown, with a figure for every summary."""
    studies = [(json.loads(file.read_text()), file) for file in summaries]
    parts = [
        "# Do perturbation and retraining rank methods alike?\n",
        "\n".join(in_short(*study) for study in studies) + "\n",
        "Written by `python studies/ranks.py page` from the summaries it names. The model of every "
        "seed that ROAR trained on intact data is judged by perturbation, too, with the same "
        "methods for the same labels; random attribution is ranked among them. Correlations are "
        "of ranks from the best to the worst, whichever way a metric points.\n",
        "Read RACU with care: ROAR masks all splits by maps for the true class, as the papers do. "
        "A map that points to a class can leave the class in its masks; models then learn it from "
        "what is missing, and RACU falls below random attribution's although the map is not worse. "
        "The run warns where a curve rises again, and `studies/roar_leakage.py` tests it by "
        "training models that see nothing but masks.\n",
    ]
    for study, file in studies:
        figure = out.parent / "images" / f"{study['name']}.svg"
        figure.parent.mkdir(parents=True, exist_ok=True)
        draw(study, figure)
        parts.append(section(study, file, f"images/{figure.name}"))
    out.write_text("\n".join(parts), encoding="utf-8")


def rows_of(found: Mapping[str, Any]) -> list[Row]:
    """The rows of a table of a summary."""
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]


def ranked(study: Row) -> list[str]:
    """What is ranked: the methods and random attribution."""
    return [*study["methods"], "random"]


def mean_racu(study: Row) -> Array:
    """The mean of every name over the seeds of which it is known."""
    rows, names = rows_of(study["racu"]), ranked(study)
    values = np.array([[row[name] for name in names] for row in rows], float)
    known = values[np.isfinite(values).all(1)]
    return known.mean(0) if len(known) else np.full(len(names), np.nan)


def section(study: Row, file: Path, figure: str) -> str:
    """One task."""
    names = ranked(study)
    head = "| | " + " | ".join(names) + " |\n|---|" + "---|" * len(names)
    line = " | ".join(f"{100 * value:.1f}".replace("nan", "—") for value in mean_racu(study))
    rows = rows_of(study["correlations"])
    lines = [
        f"| {row['fill']} | {METRICS[row['metric']]} | {_interval(row, 'kendall')} | "
        f"{_interval(row, 'spearman')} | {row['n']} | {_number(row['spearman_within'])} |"
        for row in rows
    ]
    within, scores = study["racu_within"], study["scores"]
    device = " and ".join(dict.fromkeys(study["device"].values()))
    picture = (
        "![Ranks of the methods by every judge, and the correlation of each metric with RACU]"
        f"({figure})"
    )
    warned = "".join(f"- {line}\n" for line in study["warnings"])
    warned = f"What the run that trained warns of:\n\n{warned}\n" if warned else ""
    about = f"{ABOUT[study['name']]}\n\n" if study["name"] in ABOUT else ""
    return f"""## {title(study)}

{about}{verdict(study)}

{without_rising(study)}{of_masks(study, file)}{picture}

Mean RACU in % over {len(study["seeds"])} seeds:

{head}
| RACU | {line} |

Correlation of the ranking by RACU with that by each metric: mean over seeds [95 % interval], and of
how many seeds it is known. The last column is how far the rankings of any two seeds by the metric
agree; those by RACU agree with {_number(within["spearman_within"])} (Spearman).

| fill | metric | Kendall's tau | Spearman's rho | seeds | between seeds |
|---|---|---|---|---|---|
{chr(10).join(lines)}

{warned}{study["trainings"]:,} trainings (mean {scores["metric"]} of the models on the test split:
{scores["intact"]:.3f} with intact data, {scores["masked"]:.3f} with everything masked) and
{study["samples"]:,} test samples perturbed, of every seed and fill. Device: {device}.
Everything is in [`studies/results/{file.name}`](../studies/results/{file.name}).
"""


def counts(study: Row, name: str) -> tuple[int, int, int]:
    """Combinations of metric and fill whose interval is above 0, below 0, and all with one."""
    rows = [row for row in rows_of(study["correlations"]) if row[f"{name}_low"] is not None]
    above = sum(row[f"{name}_low"] > 0 for row in rows)
    return above, sum(row[f"{name}_high"] < 0 for row in rows), len(rows)


def verdict(study: Row) -> str:
    """What the intervals allow to say, in one paragraph."""
    rows = rows_of(study["correlations"])
    known = [row for row in rows if row["spearman_low"] is not None]
    seeds = max(row["n"] for row in rows)
    if not known:
        return f"{seeds} seeds are too few for intervals: nothing can be concluded."
    above, below, count = counts(study, "spearman")
    tau = counts(study, "kendall")
    best = max(known, key=lambda row: row["spearman"])
    worst = min(known, key=lambda row: row["spearman"])
    return (
        f"The ranking by perturbation is significantly like RACU's in {above} of {count} "
        f"combinations of metric and fill, significantly the other way round in {below}, and "
        f"neither in {count - above - below} (Spearman over {len(study['methods']) + 1} methods "
        f"with random, {seeds} seeds, not corrected for the number of combinations; by Kendall's "
        f"tau {tau[0]}, {tau[1]} and {tau[2] - tau[0] - tau[1]}). The highest mean correlation is "
        f"{best['spearman']:.2f} ({METRICS[best['metric']]}, {best['fill']}), the lowest "
        f"{worst['spearman']:.2f} ({METRICS[worst['metric']]}, {worst['fill']}). Seeds are the "
        "replicates: the intervals hold for this model, data set and choice of methods, and say "
        "nothing of others."
    )


def in_short(study: Row, file: Path) -> str:
    """The answer for one task, in a line."""
    above, below, count = counts(study, "spearman")
    answer = "no" if not above else "yes" if above == count else "in part"
    said = (
        f"- {title(study)}: {answer}, alike in {above} of {count} combinations of metric and fill, "
        f"the other way round in {below}."
    )
    if study["rising"]:
        said += f" ROAR warns that masks of {in_words(study['rising'])} may give the class away"
        said += "." if leakage(file) else "; that was not tested."
    if found := leakage(file):
        name, best = max(found["scores"].items(), key=lambda held: np.mean(held[1]))
        said += (
            f" They can: models that see nothing but the masks of {name} reach a {found['metric']} "
            f"of {np.mean(best):.3f}, where guessing scores {found['guess']:.3f}."
        )
    return said


def title(study: Row) -> str:
    """A task by its name."""
    return TITLES.get(study["name"], f"{study['model']} on {study['data']}")


def leakage(file: Path) -> Row | None:
    """What models score that see nothing but masks, if that was tried (roar_leakage.py)."""
    tried = file.with_name(f"leakage_{file.name}")
    return json.loads(tried.read_text()) if tried.exists() else None


def without_rising(study: Row) -> str:
    """The same without methods whose masks may give the class away; looked at after the fact."""
    left = study["rising"]
    names = [name for name in ranked(study) if name not in left]
    if not left:
        return ""
    warned = (
        f"Masks of {in_words(left)} may give the class away: with more masked, models get better "
        "again (the warnings below). "
    )
    if len(names) < FEWEST:
        return f"{warned}Without them {len(names)} are left, too few to rank.\n\n"
    racu = np.array([[row[name] for name in names] for row in rows_of(study["racu"])], float)
    found = []
    for row in rows_of(study["correlations"]):
        own = [r for r in rows_of(study["perturbation"]) if same_place(r, row)]
        way = 1 if study["higher_is_better"][row["metric"]] else -1
        scores = way * np.array([[r[name] for name in names] for r in own], float)
        found.append(agreement(scores, racu)["spearman"])
    low, high = np.nanmin(found), np.nanmax(found)
    return (
        f"{warned}Without {'it' if len(left) == 1 else 'them'}, the mean correlations of the "
        f"other {len(names)} ({in_words(names)}) are {low:.2f} to {high:.2f} "
        "(Spearman). This was looked at after the fact, and of so few it proves nothing.\n\n"
    )


def same_place(row: Row, other: Row) -> bool:
    """Whether two rows are of one fill and metric."""
    return (row["fill"], row["metric"]) == (other["fill"], other["metric"])


def of_masks(study: Row, file: Path) -> str:
    """What models score that see nothing but masks, if that was tried."""
    found = leakage(file)
    if found is None:
        return ""
    means = [f"{np.mean(own):.3f} ({name})" for name, own in found["scores"].items()]
    untried = [name for name in study["rising"] if name not in found["scores"]]
    also = f"; {in_words(untried)} was not tried" if untried else ""
    link = f"[`leakage_{file.name}`](../studies/results/leakage_{file.name})"
    return (
        f"Models that see only which units {found['level']} % masking removes, and nothing of the "
        f"others, score {in_words(means)} on the test split ({found['metric']}, mean over "
        f"{len(found['seeds'])} seeds; guessing the most frequent class scores "
        f"{found['guess']:.3f}{also}; {link}).\n\n"
    )


def draw(study: Row, file: Path) -> None:
    """The rank of every method by every judge, and how far the judges agree with RACU."""
    rows = rows_of(study["correlations"])
    many = len(study["methods"]) + 1
    heights = 0.28 * many, 0.16 * len(rows) + 0.1 * len(METRICS)
    with house_style():
        figure = Drawing(figsize=(7.5, sum(heights) + 1.5))
        above, below = figure.subplots(2, height_ratios=heights)
        figure.subplots_adjust(left=0.25, right=0.77, bottom=0.09, top=0.94, hspace=0.22)
        draw_ranks(above, study)
        draw_correlations(below, study, rows)
        figure.savefig(file, metadata={"Date": None})


def draw_ranks(axes: Axes, study: Row) -> None:
    """Methods from the best to the worst, by RACU and by each metric under the default fill."""
    fill, scores = judged(study)
    names = ranked(study)
    values = {
        judge: np.array([row[name] for name in names], float) for judge, row in scores.items()
    }
    places = {judge: rankdata(-own, nan_policy="omit") for judge, own in values.items()}
    for number, name in enumerate(names):
        y, short = [-own[number] for own in places.values()], name.partition("(")[0]
        colour = MUTED if name == "random" else SERIES[number % len(SERIES)]
        axes.plot(y, "--o" if name == "random" else "-o", color=colour, markersize=4)
        axes.text(-0.15, y[0], short, color=colour, ha="right", va="center", size=8)
        axes.text(len(y) - 0.85, y[-1], short, color=colour, va="center", size=8)
    axes.set_xticks(range(len(places)), [METRICS.get(judge, judge) for judge in places])
    axes.xaxis.tick_top()
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_xlabel(f"Methods from the best to the worst (metrics with the fill {fill})")


def judged(study: Row) -> tuple[str, dict[str, Row]]:
    """The default fill, and by judge the mean score of every method, more being better."""
    rows = rows_of(study["perturbation"])
    fills = [row["fill"] for row in rows]
    fill = next((name for name in DEFAULTS.values() if name in fills), fills[0])
    found = {"RACU": dict(zip(ranked(study), mean_racu(study), strict=True))}
    for metric in METRICS:
        own = [row for row in rows if (row["fill"], row["metric"]) == (fill, metric)]
        way = 1 if study["higher_is_better"][metric] else -1
        found[metric] = {
            name: way * np.array([row[name] for row in own], float).mean() for name in ranked(study)
        }
    return fill, found


def draw_correlations(axes: Axes, study: Row, rows: Sequence[Row]) -> None:
    """Spearman's correlation with RACU by metric and fill, with its interval over seeds."""
    y, ticks = 0.0, []
    for metric in METRICS:
        start = y
        for row in (row for row in rows if row["metric"] == metric):
            if row["spearman_low"] is not None:
                axes.plot([row["spearman_low"], row["spearman_high"]], [y, y], color=INK)
            if row["spearman"] is not None:
                axes.plot(row["spearman"], y, "o", color=INK, markersize=4)
            axes.text(1.08, y, row["fill"], color=MUTED, va="center", size=7)
            y -= 1
        ticks.append(((start + y + 1) / 2, METRICS[metric]))
        y -= 1
    axes.axvline(0, color=LINE, zorder=0)
    if (limit := study["racu_within"]["spearman_within"]) is not None:
        axes.axvline(limit, color=MUTED, linestyle=":", zorder=0)
    axes.set_yticks([place for place, _ in ticks], [name for _, name in ticks])
    axes.set_xlim(-1.05, 1.05)
    axes.set_xlabel("Spearman's rho with RACU (dotted: between seeds of RACU)")


def _interval(row: Row, name: str) -> str:
    ends = [row[f"{name}_{end}"] for end in ("low", "high")]
    interval = "" if None in ends else f" [{ends[0]:.2f}, {ends[1]:.2f}]"
    return f"{_number(row[name])}{interval}"


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.2f}"


def main(arguments: Iterable[str] | None = None) -> None:
    """Perturb, summarise, or write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    asked = commands.add_parser("untrained")
    asked.add_argument("folder", type=Path, help="where to keep the model of ranks_bert.yaml")
    asked = commands.add_parser("perturb")
    asked.add_argument("run", type=Path, help="the folder of the run that trained")
    asked.add_argument("--data", required=True, help="its data, named as for that run")
    asked.add_argument("--limit", type=int, help="of its data, as for that run")
    asked.add_argument("--samples", type=int, default=IMAGES, help="of the test split")
    asked.add_argument("--fills", nargs="+", default=[], help="all of them by default")
    asked.add_argument("--seeds", nargs="+", type=int, default=[], help="all of them by default")
    asked.add_argument("--device", default="auto")
    asked = commands.add_parser("summarise")
    asked.add_argument("run", type=Path)
    asked.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    asked = commands.add_parser("page")
    asked.add_argument("summaries", nargs="+", type=Path)
    asked.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(None if arguments is None else list(arguments))
    if given.command == "untrained":
        untrained(given.folder)
    elif given.command == "perturb":
        options = {
            name: getattr(given, name) for name in ("limit", "samples", "fills", "seeds", "device")
        }
        perturb(given.run, given.data, **options)
    elif given.command == "summarise":
        given.out.mkdir(parents=True, exist_ok=True)
        file = given.out / f"{given.run.resolve().name}.json"
        file.write_text(written(summarise(given.run)))
        print(file)
    else:
        page(given.summaries, given.out)


if __name__ == "__main__":
    main()
