"""Fill both reproduction pages, and the lines on them in README.md, from studies/results.

python docs/reproduction.py             # writes the numbers between the markers of the pages
python docs/reproduction.py --figures   # and draws the figures
python docs/reproduction.py --check     # only checks, as the tests do

A block of a page is `<!-- begin: NAME -->`, the text that the function NAME returns, and
`<!-- end -->`. Functions on images are here, those on text in reproduction_text.py. Every number
comes from the summaries that studies/summarise.py and summarise_roar.py make from run folders,
except the papers' own, which are in PAPER and, for text, in studies/paper.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from filling import (
    BLOCK,
    IMAGES,
    RESULTS,
    ROOT,
    Row,
    Shown,
    Summaries,
    fill_blocks,
    find,
    interval,
    listed,
    number,
    percent,
    rows_of,
    save,
    span,
    table,
)
from reproduction_text import TEXT_BLOCKS, draw_text

__all__ = ["BLOCK", "IMAGES", "RESULTS", "Summaries", "find", "listed", "number", "rows_of"]

PAGES = (
    ROOT / "docs" / "reproduction.md",
    ROOT / "README.md",
    ROOT / "docs" / "reproduction_text.md",
)

MODELS = {
    "c10_base": "CIFAR-10 base",
    "c10_large": "CIFAR-10 large",
    "c10_deit": "CIFAR-10 DeiT 224/16",
    "c100_base": "CIFAR-100 base",
    "c100_large": "CIFAR-100 large",
    "c100_distilled": "CIFAR-100 distilled",
}
ABLATIONS = {
    "ablation_base": "c10_base",
    "ablation_large": "c10_large",
    "ablation_deit": "c10_deit",
    "ablation_c100_base": "c100_base",
    "ablation_c100_large": "c100_large",
    "ablation_c100_distilled": "c100_distilled",
}
METHODS = {
    "integrated_gradients": "I.G.",
    "grad_cam": "Grad-CAM",
    "lrp": "LRP",
    "partial_lrp": "P. LRP",
    "transformer_attribution": "Trans. Attr.",
    "conservative_lrp": "Con. LRP",
    "raw_attention": "Raw Att.",
    "rollout": "Rollout",
    "transformer_mm": "Trans. MM",
    "attcat": "ATTCAT",
}
RANDOM = {"random": "random, per pixel", "random_patch": "random, per patch"}
METRICS = {
    "saco": "SaCo",
    "aopc": "AOPC",
    "log_odds": "LOdds",
    "auc": "AUC",
    "comprehensiveness": "Comp.",
}
OTHERS = list(METRICS)[1:]
VARIANTS = {
    "attention(layers=last)": ("last", "no"),
    "attention": ("all", "no"),
    "attention(layers=last, gradient=true)": ("last", "yes"),
    "attention(gradient=true)": ("all", "yes"),
}
LAST, ALL, LAST_GRADIENT, ALL_GRADIENT = VARIANTS
BELOW_RANDOM = ("partial_lrp", "attcat", "transformer_attribution")
"""The methods that the paper finds below random attribution."""
FLIPS = 9_999
"""The number of flips of a permutation test in faithscope.verdicts.statistics."""
PIXELS = {"32/4": 32**2, "224/16": 224**2}

PAPER: Mapping[str, Any] = {
    "table 1": dict(zip(VARIANTS, (0.1835, 0.2453, 0.3783, 0.4558), strict=True)),
    "table 2": {
        5: (0.1585, 0.1659, 0.0246, 0.4628, 0.5680, 0.0544, 0.3200, 0.3372, 0.6041, 0.3178),
        10: (0.1647, 0.1142, 0.0120, 0.3066, 0.3902, 0.0155, 0.1835, 0.2453, 0.4558, 0.3629),
        20: (0.1785, 0.1000, 0.0054, 0.2282, 0.2906, -0.0201, 0.1411, 0.1956, 0.3651, 0.3617),
    },  # by METHODS
    "correlation of K = 5 and 10": 0.6101,
}


# Reading the summaries


def marked(row: Row) -> str:
    """A cell of a table of scores."""
    if not row["n"]:
        return "—"
    return interval(row) + {"better": " *", "worse": " †"}.get(row["verdict"], "")


def below(values: Iterable[float]) -> str:
    """The largest of some p-values.

    >>> below([0.0123, 0.002])
    'p ≤ 0.013'
    """
    return f"p ≤ {math.ceil(1000 * max(values) - 1e-9) / 1000:.3f}"


def commands(have: Summaries, *names: str) -> str:
    """The commands that made the runs."""
    shown: list[str] = []
    for name in names:
        lines = have.studies[name]["command"]
        shown += [line for line in lines if not line.startswith("#")] or lines
    folders = " ".join(f"runs/{name}" for name in names)
    shown.append(f"python studies/summarise.py {folders} --out studies/results")
    return "\n".join(["```sh", *shown, "```"])


def beaten(have: Summaries, name: str, metric: str, random: str) -> tuple[int, int, float]:
    """Methods that score worse and better than a random attribution by a paired test; largest p."""
    worse, better, p_values = 0, 0, [0.0]
    for method in METHODS:
        row = have.pair(name, metric, random, method)
        if row["p"] <= 0.05:
            is_better = (row["difference"] > 0) == have.ups(name, metric)
            better, worse = better + is_better, worse + (not is_better)
            p_values.append(row["p"])
    return worse, better, max(p_values)


def matched(have: Summaries, name: str, metric: str, verdict: str) -> int:
    """How many methods have this verdict against random maps of their granularity."""
    return sum(have.cell(name, m, metric)["verdict"] == verdict for m in METHODS)


def ranked(have: Summaries, name: str, metric: str) -> list[str]:
    """Methods from best to worst."""
    way = -1 if have.ups(name, metric) else 1
    return sorted(METHODS, key=lambda m: way * have.cell(name, m, metric)["mean"])


def paper_order() -> list[str]:
    """Methods from best to worst in the paper, Table 2, K = 10."""
    scores = dict(zip(METHODS, PAPER["table 2"][10], strict=True))
    return sorted(scores, key=lambda method: -scores[method])


def is_below(have: Summaries, name: str, metric: str, random: str, method: str) -> bool:
    """Whether a paired test finds a method worse than a random attribution."""
    row = have.pair(name, metric, random, method)
    return row["p"] <= 0.05 and (row["difference"] > 0) != have.ups(name, metric)


def covers_zero(row: Row) -> bool:
    """Whether an interval has 0 in it."""
    return bool(row["ci_low"] <= 0 <= row["ci_high"])


def maps_of(have: Summaries, name: str) -> int:
    """How many maps are ranked, random ones included."""
    return len(have.run(name)["methods"])


def over(have: Summaries, name: str) -> str:
    """The model and the number of images of a study that used one model."""
    return f"{MODELS['c10_base']}, {have.run(name)['data']['images']:,} images"


# The sentences at the top


def found(have: Summaries) -> str:
    """What we found."""
    said = (
        found_zero,
        found_random,
        found_matched,
        found_ablation,
        found_order,
        found_gradients,
        found_correlation,
        found_k,
        found_fill,
        found_upsampling,
        found_shift,
        found_proposals,
    )
    return "\n".join(f"- {sentence(have)}" for sentence in said)


def found_zero(have: Summaries) -> str:
    """Random attribution under SaCo."""
    cells = [have.cell(name, random) for name in MODELS for random in RANDOM]
    low, high = (pick(cells, key=lambda row: row["mean"]) for pick in (min, max))
    choices = {
        "inpaint": have.cell("fills_base", "random_patch", "saco", "fill=inpaint"),
        "ratio weights": have.cell("weights_base", "random_patch", RATIO),
        "penalty 2": have.cell("dynamic_base", "random_patch", "saco(penalty=2)"),
        "patches as units": have.cell("units_base", "random_patch", "saco", "units=patches"),
    }
    missed = {words: row for words, row in choices.items() if not covers_zero(row)}
    return (
        "**SaCo puts random attribution at zero: agrees, with the paper's fill, weights and pixel "
        f"groups.** On {len(MODELS)} models and with two kinds of random maps its mean lies "
        f"between {interval(low)} and {interval(high)}; {sum(map(covers_zero, cells))} of "
        f"{len(cells)} intervals cover 0. With other choices it does not hold exactly. Random maps "
        f"per patch on {over(have, 'fills_base')}: "
        f"{listed([f'{interval(row)} with {words}' for words, row in missed.items()])}."
    )


def found_random(have: Summaries) -> str:
    """Random attribution per pixel, in both geometries."""
    small, large, turned = (
        beaten(have, name, metric, "random")
        for name, metric in (
            ("c10_base", "aopc"),
            ("c10_deit", "aopc"),
            ("c10_deit", "comprehensiveness"),
        )
    )
    rows = [have.cell(name, "random", "aopc") for name in ("c10_base", "c10_deit")]
    comp = have.cell("c10_deit", "random", "comprehensiveness")
    return (
        "**Other metrics favour random attribution, but which ones depends on the model: agrees "
        f"in part.** At 32/4 random maps per pixel have an AOPC of {interval(rows[0])} on the base "
        f"model of CIFAR-10 and beat {small[0]} of 10 methods ({below([small[2]])}); in the "
        f"paper's geometry, 224/16, they have {interval(rows[1])} and beat {large[0]} of 10 (the "
        f"others are better, {below([large[2]])}), but {turned[0]} of 10 on comprehensiveness, "
        f"{interval(comp)}."
    )


def found_matched(have: Summaries) -> str:
    """Random attribution of the same granularity."""
    counts = {
        metric: sum(matched(have, name, metric, "better") for name in MODELS) for metric in METRICS
    }
    rest = listed([f"{METRICS[metric]} {counts[metric]}" for metric in OTHERS])
    row = have.pair("c10_base", "aopc", "random_patch", "transformer_attribution")
    small, large = below_per_pixel(have)
    return (
        "**Against random maps of the same granularity SaCo no longer stands out: qualifies the "
        "paper, which did not use them.** SaCo puts "
        f"{counts['saco']} of {10 * len(MODELS)} methods × models above matched random "
        f"attribution, {rest}; equal totals are not equal verdicts, see (i). In the paper's own "
        "test, against random maps per pixel on AOPC, LOdds and AUC, partial LRP, ATTCAT and "
        f"Transformer Attribution are below random in {small[0]} of {small[1]} cases at 32/4, as "
        f"in the paper, and in {large[0]} of {large[1]} at 224/16. Against random maps per patch "
        "Transformer Attribution is "
        f"{interval(row, 'difference', '+')} above on AOPC (CIFAR-10 base, {below([row['p']])}). "
        "Only SaCo has a fixed zero."
    )


def below_per_pixel(have: Summaries) -> tuple[tuple[int, int], tuple[int, int]]:
    """The paper's test of its three methods: cases below random and all, at 32/4 and 224/16."""
    said = {
        name: [
            is_below(have, name, metric, "random", method)
            for metric in OTHERS[:3]
            for method in BELOW_RANDOM
        ]
        for name in MODELS
    }
    large = said.pop("c10_deit")
    small = [case for cases in said.values() for case in cases]
    return (sum(small), len(small)), (sum(large), len(large))


def found_ablation(have: Summaries) -> str:
    """Gradient and aggregation."""
    gradient = [have.pair(name, "saco", LAST, LAST_GRADIENT) for name in ABLATIONS]
    aggregation = [have.pair(name, "saco", LAST, ALL) for name in ABLATIONS]
    helps = [row for row in aggregation if row["p"] <= 0.05 and row["difference"] > 0]
    hurts = [row for row in aggregation if row["p"] <= 0.05 and row["difference"] < 0]
    low, high = (pick(gradient, key=lambda row: row["difference"]) for pick in (min, max))
    worst = min(aggregation, key=lambda row: row["difference"])
    both = [have.pair(name, "saco", LAST_GRADIENT, ALL_GRADIENT) for name in ABLATIONS]
    least = min(both, key=lambda row: row["difference"])
    return (
        "**The gradient helps, aggregation alone does not always: agrees in part.** On the last "
        f"block the gradient adds {interval(low, 'difference', '+')} to "
        f"{interval(high, 'difference', '+')} SaCo on {sum(row['p'] <= 0.05 for row in gradient)} "
        f"of {len(gradient)} models; aggregation "
        f"without gradient helps on {len(helps)} and hurts on {len(hurts)} "
        f"({interval(worst, 'difference', '+')}); with gradient it adds at least "
        f"{interval(least, 'difference', '+')}."
    )


def found_order(have: Summaries) -> str:
    """Which methods lead."""
    leading = [ranked(have, name, "saco")[0] for name in MODELS]
    count = leading.count("conservative_lrp")
    sure = sum(
        best == "conservative_lrp" and leads(have, name, "saco", best)
        for name, best in zip(MODELS, leading, strict=True)
    )
    places = paper_order()
    conservative, partial = (
        places.index(method) + 1 for method in ("conservative_lrp", "partial_lrp")
    )
    row, other = (have.cell("c10_deit", m) for m in ("conservative_lrp", "partial_lrp"))
    return (
        "**The order of methods differs from the paper's, which is for ImageNet (Table 2, K = "
        "10).** Data, models and programs all differ. Conservative LRP, rank "
        f"{conservative} of 10 there, has the highest mean SaCo on {count} of {len(MODELS)} "
        f"models, on {sure} of them better than every other method by a paired test; at 224/16 it "
        f"has {interval(row)}. Partial LRP, rank {partial} there, has {interval(other)} at "
        f"224/16. In common: {first_five(have)}."
    )


def first_five(have: Summaries) -> str:
    """Which of the paper's first five are among ours, and on how many models."""
    trio = ("transformer_mm", "transformer_attribution", "attcat")
    assert set(trio) <= set(paper_order()[:5])
    count = sum(set(trio) <= set(ranked(have, name, "saco")[:5]) for name in MODELS)
    return (
        f"{listed([METHODS[m] for m in trio])} are among the top five in the paper and on "
        f"{count} of our {len(MODELS)} models"
    )


def found_gradients(have: Summaries) -> str:
    """The two removal orders."""
    first = sum(
        all(leads(have, name, metric, "integrated_gradients") for metric in OTHERS[:3])
        for name in MODELS
    )
    last = sum(ranked(have, n, "comprehensiveness")[-1] == "integrated_gradients" for n in MODELS)
    row = have.cell("c10_deit", "integrated_gradients", "comprehensiveness")
    difference = have.pair("c10_deit", "comprehensiveness", "random", "integrated_gradients")
    return (
        "**Integrated gradients are best by one removal order, not by the other: agrees in part.** "
        f"On {first} of {len(MODELS)} models a paired test finds them better than every other "
        f"method on AOPC, LOdds and AUC; on {last} they are last of 10 on comprehensiveness. At "
        f"224/16 their comprehensiveness, {interval(row)}, is "
        f"{interval(difference, 'difference', '+')} worse than that of random maps per pixel "
        f"({below([difference['p']])})."
    )


def leads(have: Summaries, name: str, metric: str, method: str) -> bool:
    """Whether a method has the best mean and differs significantly from every other."""
    others = [other for other in METHODS if other != method]
    return ranked(have, name, metric)[0] == method and all(
        have.pair(name, metric, other, method)["p"] <= 0.05 for other in others
    )


def found_correlation(have: Summaries) -> str:
    """Metrics against each other."""
    values = [
        find(have.run(name)["correlations_over_images"], metric="saco", other=other)
        for name in MODELS
        for other in OTHERS
    ]
    low, high = (pick(values, key=lambda row: row["correlation"]) for pick in (min, max))
    mixed = [
        find(have.run(n)["correlations_over_images"], metric="aopc", other="comprehensiveness")
        for n in MODELS
    ]
    most = max(mixed, key=lambda row: row["correlation"])
    images, methods = (above_others(have, kind) for kind in KINDS)
    return (
        "**SaCo correlates weakly with the others: agrees; that these correlate more among "
        "themselves: not reproduced.** Over images SaCo's rank correlation with another metric is "
        f"between {interval(low, 'correlation')} and {interval(high, 'correlation')}. Its mean "
        "exceeds the mean of the others among themselves on "
        f"{images} of {len(MODELS)} models over images, on {methods} over methods. AOPC and "
        f"comprehensiveness correlate by {interval(most, 'correlation')} at most over images."
    )


KINDS = {"correlations_over_images": "over images", "correlations": "over methods"}


def above_others(have: Summaries, kind: str) -> int:
    """On how many models SaCo's mean correlation is above that of the others among themselves."""
    count = 0
    for name in MODELS:
        own: list[float] = []
        rest: list[float] = []
        for row in rows_of(have.run(name)[kind]):
            (own if row["metric"] == "saco" else rest).append(row["correlation"])
        count += sum(own) / len(own) > sum(rest) / len(rest)
    return count


def found_k(have: Summaries) -> str:
    """The choice of K."""
    said = []
    for one, other in (("5", "10"), ("10", "20"), ("5", "20")):
        first, second = (
            interval(k_correlation(have, name, one, other), "correlation") for name in KS
        )
        said.append(f"{first} and {second} between K = {one} and {other}")
    falls = [signed(moved(have, name, "k", "20", "saco")) for name in KS]
    return (
        "**K matters as the paper says, but not for the same methods: agrees in part.** Over "
        f"images SaCo correlates by {'; '.join(said)} (CIFAR-10 and CIFAR-100 base). From K = 5 to "
        f"20 the mean of all {maps_of(have, 'k_base')} maps, random ones included, changes by "
        f"{falls[0]} and {falls[1]}. ATTCAT, stable in the paper, changes from "
        f"{ends(have, 'k_base', 'attcat')} and from {ends(have, 'k_c100_base', 'attcat')}; "
        "I.G., stable in the paper, changes on CIFAR-10 from "
        f"{ends(have, 'k_base', 'integrated_gradients')}."
    )


def ends(have: Summaries, name: str, method: str) -> str:
    """A method's SaCo at K = 5 and at K = 20."""
    return " to ".join(interval(have.cell(name, method, k_label(k))) for k in ("5", "20"))


def signed(row: Row) -> str:
    """The mean change that a choice makes, with its interval."""
    low, high = (number(row[end], sign="+") for end in ("signed_low", "signed_high"))
    return f"{number(row['signed'], sign='+')} [{low}, {high}]"


def found_fill(have: Summaries) -> str:
    """The choice of the fill."""
    row = have.change("fills_base", "fill=black", "integrated_gradients", "saco")
    mean, black = (
        interval(have.cell("fills_base", "integrated_gradients", "saco", f"fill={fill}"))
        for fill in ("mean", "black")
    )
    order = moved(have, "fills_base", "fill", "black", "saco")
    return (
        "**The fill can reverse a verdict: not in the paper.** Black instead of the mean "
        f"changes the SaCo of integrated gradients by {interval(row, 'difference', '+')}, from "
        f"{mean} to {black}, and the order of the {maps_of(have, 'fills_base')} maps, random ones "
        f"included, on an image under the two fills correlates by {agreement(order)} "
        f"({over(have, 'fills_base')})."
    )


def found_upsampling(have: Summaries) -> str:
    """The choice of upsampling."""
    said = []
    for metric in ("saco", "aopc"):
        rows = {
            shown: have.change("granularity_base", "upsample=nearest", method, metric)
            for method, shown in METHODS.items()
            if have.run("granularity_base")["methods"][method]["granularity"] == "patch"
        }
        low, high = (pick(rows, key=lambda m: rows[m]["difference"]) for pick in (min, max))
        said.append(
            f"{METRICS[metric]} by {interval(rows[low], 'difference', '+')} ({low}) to "
            f"{interval(rows[high], 'difference', '+')} ({high})"
        )
    return (
        "**Upsampling alone changes SaCo, but hardly the others: not in the paper.** Nearest "
        f"instead of bilinear changes {said[0]}, {said[1]}, over the {len(rows)} methods with "
        f"patch maps ({over(have, 'granularity_base')})."
    )


def found_shift(have: Summaries) -> str:
    """Invariance."""
    row = have.pair("scale_invariance", "saco", "map", "map + 1")
    scaled = have.pair("scale_invariance", "saco", "map", "map, min-max")
    mean = find(have.run("scale_invariance", "group=mean")["comparisons"], metric="saco", **SHIFT)
    return (
        "**SaCo is invariant to a shift: agrees for equal groups.** The proof holds for equally "
        f"sized groups, as the paper defines them; {uneven(have)}, and then adding 1 to a map "
        "changes its mean SaCo by "
        f"{interval(row, 'difference', '+')} ({below([row['p']])}), rescaling it to [0, 1] by "
        f"{interval(scaled, 'difference')}; with the mean instead of the sum as salience of a "
        f"group, adding 1 changes it by {interval(mean, 'difference')} ({shifted_maps(have)})."
    )


def uneven(have: Summaries) -> str:
    """Whether K divides the pixels of an image."""
    k = have.run("scale_invariance")["protocol"]["k"]
    assert all(count % k for count in PIXELS.values())
    return f"{listed([f'{count:,}' for count in PIXELS.values()])} pixels are not divisible by {k}"


def shifted_maps(have: Summaries) -> str:
    """Which maps were scaled and shifted."""
    images = have.run("scale_invariance")["data"]["images"]
    return f"Transformer-MM, {images} images, {MODELS['c10_base']} only"


SHIFT = {"method": "map", "other": "map + 1"}


def found_proposals(have: Summaries) -> str:
    """Dynamic K and penalty."""
    pixel, patch = (have.cell("dynamic_base", random, "saco(penalty=2)") for random in RANDOM)
    auto = have.run("dynamic_base")["k_used"]
    five = sum(auto[m].get("5", 0) for m in METHODS) / sum(sum(auto[m].values()) for m in METHODS)
    change = signed(moved(have, "dynamic_base", "k", "auto", "saco"))
    return (
        "**Dynamic K and penalty weights: neither is a clear gain.** Our rule chooses K = 5 for "
        f"{percent(five)} of the {len(METHODS)} methods' maps and changes the mean of all "
        f"{maps_of(have, 'dynamic_base')} maps, random ones included, by {change}. With penalty 2 "
        f"random attribution per patch is no longer at zero but at {interval(patch)}; per pixel it "
        f"stays there, {interval(pixel)} ({over(have, 'dynamic_base')})."
    )


def teaser(have: Summaries) -> str:
    """The lines in the README."""
    zero = have.cell("c10_deit", "random")
    small, large = (beaten(have, name, "aopc", "random") for name in ("c10_base", "c10_deit"))
    shift = have.pair("scale_invariance", "saco", "map", "map + 1")
    better = {
        metric: sum(matched(have, name, metric, "better") for name in MODELS)
        for metric in ("saco", "aopc")
    }
    return (
        "The SaCo paper's experiments on six small ViTs "
        "([tables, figures, disagreements, commands](docs/reproduction.md)):\n\n"
        f"- SaCo puts random attribution at zero ({interval(zero)} at 224/16), as the paper says.\n"
        f"- AOPC puts random maps per pixel above {small[0]} of 10 methods on the CIFAR-10 base "
        f"model (patches of 4 pixels), above {large[0]} on the distilled one (patches of 16); "
        "against random maps of the same granularity "
        f"it puts {better['aopc']} of {10 * len(MODELS)} methods × models above random, SaCo "
        f"{better['saco']}.\n"
        f"- SaCo is shift-invariant for groups of equal size only: {uneven(have)}, and adding 1 to "
        f"a map changes it by {interval(shift, 'difference', '+')} ({shifted_maps(have)})."
    )


# The experiments


def models(have: Summaries) -> str:
    """The models, their accuracy and the number of images."""
    rows = []
    for name, said in MODELS.items():
        run = have.run(name)
        card = run["model"]["card"]
        rows.append(
            [
                said,
                f"`{card['architecture']}`",
                str(card["epochs"]),
                percent(card["test_accuracy"], 2),
                f"{run['data']['images']:,}",
                run["protocol"]["precision"],
                f"{run['cost']['response_passes']:,}",
                run["device"],
            ]
        )
    heads = ["model", "architecture", "epochs", "test accuracy", "images in (c)", "precision"]
    return table([*heads, "passes", "device"], rows, names=2)


def correlation(have: Summaries) -> str:
    """Fig. 2's bars as a table, in both readings."""
    heads = ["", *(f"SaCo, {METRICS[other]}" for other in OTHERS), "others among themselves"]
    rows = [["paper, all data and models", "0.18 to 0.22", "", "", "", "“noticeably higher”"]]
    for kind, words in KINDS.items():
        for name, said in MODELS.items():
            found_rows = rows_of(have.run(name)[kind])
            own = [row for row in found_rows if row["metric"] == "saco"]
            rest = [row["correlation"] for row in found_rows if row["metric"] != "saco"]
            among = f"{number(sum(rest) / len(rest), 2)} ({span(rest, 2)})"
            rows.append([f"{words}: {said}", *(interval(row, "correlation") for row in own), among])
    return table(heads, rows)


def correlation_text(have: Summaries) -> str:
    """What agrees."""

    def values(kind: str, *pairs: tuple[str, str]) -> list[float]:
        return [
            find(have.run(name)[kind], metric=one, other=other)["correlation"]
            for name in MODELS
            for one, other in pairs
        ]

    images, methods = KINDS
    own = [("saco", other) for other in OTHERS]
    over_images, ranks = values(images, *own), values(methods, *own)
    three = values(methods, ("aopc", "log_odds"), ("aopc", "auc"), ("log_odds", "auc"))
    comp = values(methods, *((one, "comprehensiveness") for one in OTHERS[:3]))
    labels = [
        find(have.run(name)[images], metric="aopc", other="auc")
        for name in MODELS
        if name.startswith("c100")
    ]
    assert all(row["ci_high"] < 0 for row in labels)
    low, high = (pick(labels, key=lambda row: row["correlation"]) for pick in (min, max))
    return (
        f"*Over methods* ranks {maps_of(have, 'c10_base')} maps per image: the {len(METHODS)} "
        f"methods and both random ones. *Over images* uses the {len(METHODS)} methods. "
        "**Agrees**: SaCo correlates weakly with the others. Over images its correlations are "
        f"{span(over_images, 2)}, mean {number(sum(over_images) / len(over_images), 2)}, where the "
        "paper has 0.18 to 0.22. **Not reproduced**: that the others correlate “noticeably higher” "
        "among themselves. SaCo's mean correlation with them exceeds their own mean on "
        f"{above_others(have, images)} of {len(MODELS)} models over images and on "
        f"{above_others(have, methods)} of {len(MODELS)} over methods. Over methods AOPC, LOdds "
        f"and AUC do correlate ({span(three, 2)}), but comprehensiveness with none of them "
        f"({span(comp, 2)}), less than SaCo does ({span(ranks, 2)}). Over images AOPC and "
        "comprehensiveness are anticorrelated: both are large for an image whose prediction is "
        "easily lost, which is good for one and bad for the other. AOPC and AUC are anticorrelated "
        f"over images on CIFAR-100, {interval(low, 'correlation')} to "
        f"{interval(high, 'correlation')}: AUC counts correct labels, so a misclassified image "
        "gets a low, “good” AUC."
    )


def case(have: Summaries) -> str:
    """Fig. 3 as a table."""
    methods = ("transformer_attribution", "raw_attention", "random", "random_patch")
    draws = have.run("case_study")["protocol"]["random_draws"]
    names = {**METHODS, **{name: f"{said}, mean of {draws} draws" for name, said in RANDOM.items()}}
    rows = [
        [
            names[method],
            *(number(have.cell("case_study", method, m)["mean"]) for m in ("saco", "aopc")),
        ]
        for method in methods
    ]
    return table(["explanation of one image", "SaCo ↑", "AOPC ↑"], rows)


def case_text(have: Summaries) -> str:
    """What agrees."""
    methods = ("transformer_attribution", "raw_attention", *RANDOM)
    saco, aopc = (
        {m: have.cell("case_study", m, metric)["mean"] for m in methods}
        for metric in ("saco", "aopc")
    )
    attribution, raw = (number(aopc[m]) for m in methods[:2])
    assert aopc["random_patch"] < min(aopc[m] for m in methods[:2]) < aopc["random"]
    draws = have.run("case_study")["protocol"]["random_draws"]
    return (
        "**Agrees**: SaCo separates Transformer Attribution "
        f"({number(saco['transformer_attribution'])}) from raw attention "
        f"({number(saco['raw_attention'])}). **Not reproduced**: that AOPC is high for all three. "
        f"On this image it is low for both methods, {attribution} and {raw}; random maps per pixel "
        f"score higher, {number(aopc['random'])}, random maps per patch lower than both, "
        f"{number(aopc['random_patch'])}. Drops above 0.9 are impossible here: the confidence in "
        "the intact image is itself below 0.9 (see the figure). Random attribution is the mean of "
        f"{draws} draws, in SaCo {number(saco['random'])} per pixel and "
        f"{number(saco['random_patch'])} per patch; single draws range widely on both sides of "
        "zero (see the figure), so a case study with one draw proves little. It is one image, "
        "without an interval."
    )


def comparison(have: Summaries) -> str:
    """Fig. 4 as tables, one for each data set and model."""
    said = []
    names = {**METHODS, **RANDOM}
    for name, words in MODELS.items():
        run = have.run(name)
        heads = [f"{METRICS[m]} {'↑' if have.ups(name, m) else '↓'}" for m in METRICS]
        rows = [
            [shown, *(marked(have.cell(name, method, metric)) for metric in METRICS)]
            for method, shown in names.items()
        ]
        images, accuracy = run["data"]["images"], percent(run["data"]["accuracy"], 2)
        said.append(f"**{words}**, {images:,} images, accuracy on them {accuracy}")
        said.append(table(["", *heads], rows))
    return "\n\n".join(said)


def against_random(have: Summaries) -> str:
    """How many methods differ significantly from random attribution of either kind."""
    rows = []
    for name, words in MODELS.items():
        cells = []
        for metric in METRICS:
            worse, better, _ = beaten(have, name, metric, "random")
            up, down = (matched(have, name, metric, verdict) for verdict in ("better", "worse"))
            cells.append(f"{better} / {worse}; {up} / {down}")
        rows.append([words, *cells])
    return table(["better / worse than random", *METRICS.values()], rows)


def comparison_text(have: Summaries) -> str:
    """What agrees."""
    cells = [have.cell(name, random) for name in MODELS for random in RANDOM]
    positive = sum(
        have.cell(n, m)["mean"] > 0 and have.cell(n, m)["verdict"] == "better"
        for n in MODELS
        for m in METHODS
    )
    negative = [
        f"{METHODS[m]} ({MODELS[n]}, {interval(have.cell(n, m))})"
        for n in MODELS
        for m in METHODS
        if have.cell(n, m)["verdict"] == "worse"
    ]
    comp = [ranked(have, n, "comprehensiveness").index("integrated_gradients") + 1 for n in MODELS]
    cases = [(n, metric) for n in MODELS for metric in METRICS]
    sunk, partial = (
        sum(have.cell(n, m, k)["verdict"] == "worse" for n, k in cases for m in methods)
        for methods in (("transformer_attribution", "attcat"), ("partial_lrp",))
    )
    base = sum(have.cell("c10_base", "partial_lrp", k)["verdict"] == "worse" for k in METRICS)
    small, large = below_per_pixel(have)
    paper = number(dict(zip(METHODS, PAPER["table 2"][20], strict=True))["conservative_lrp"], 4)
    return (
        f"{families(have)}\n\n"
        f"**Agrees**: {sum(map(covers_zero, cells))} of {len(cells)} intervals of random "
        f"attribution's SaCo cover 0, and {positive} of {10 * len(MODELS)} scores of methods are "
        "positive and better than matched random attribution. SaCo also finds methods that are "
        "*worse* than random. This does not contradict the paper, which says “most” and has "
        f"{paper} for conservative LRP at K = 20 in its Table 2. Here these are "
        f"{'; '.join(negative)}. Against random maps per pixel on AOPC, LOdds and AUC, the paper's "
        f"test, the three methods that it names are below random in {small[0]} of {small[1]} cases "
        "at 32/4. Integrated gradients are first on AOPC, LOdds and AUC. **Agrees in part**: on "
        f"comprehensiveness they are the worst on {comp.count(10)} of {len(MODELS)} models (ranks "
        f"{', '.join(map(str, comp))} of 10 in the order of the models). **Disagrees**: at 224/16 "
        f"the three are below random per pixel in {large[0]} of {large[1]} cases. **Qualifies**: "
        "against matched maps, which the paper did not use, Transformer Attribution and ATTCAT are "
        f"below random attribution in {sunk} of {2 * len(cases)} cases on all "
        f"{len(METRICS)} metrics, partial LRP in {partial} of {len(cases)}, {base} of them on the "
        "base model of CIFAR-10. The order of methods differs from the paper's, which is for "
        "ImageNet (Table 2, K = 10): conservative LRP, integrated gradients or Transformer-MM lead "
        f"here. {first_five(have)}. Data, models and programs all differ. Possible reasons, none "
        "of them tested: our models are small, shallow and trained on small images, so gradients "
        "through them are less noisy than through ViT-B and ViT-L; and the paper does not say "
        "which form of conservative LRP it used on a ViT with GELU ([ours](methods.md))."
    )


def families(have: Summaries) -> str:
    """The families of tests, and how small their p-values can be."""
    maps, metrics = maps_of(have, "c10_base"), len(METRICS)
    pairs = maps * (maps - 1) // 2
    against = len(METHODS) * metrics
    least = [math.ceil(1000 * count / (FLIPS + 1)) / 1000 for count in (pairs * metrics, against)]
    return (
        f"There are two families of tests per model, each Holm-adjusted: {pairs} pairs of the "
        f"{maps} maps × {metrics} metrics = {pairs * metrics} tests (*per pixel* and *than every "
        f"other method*), and {against} tests against matched random attribution ({len(METHODS)} "
        f"methods × {metrics} metrics; the marks). With {FLIPS:,} flips the smallest p is 1 in "
        f"{FLIPS + 1:,}, so after adjustment the smallest p of the first family can be no lower "
        f"than {least[0]:.3f} and that of the second no lower than {least[1]:.3f}: “p ≤ "
        f"{least[0]:.3f}” above is as significant as this test can be."
    )


def ablation(have: Summaries) -> str:
    """Table 1, with a column for each model."""
    heads = ["blocks", "gradient", "paper, ImageNet", *(MODELS[m] for m in ABLATIONS.values())]
    rows = [
        [
            *words,
            number(PAPER["table 1"][variant], 4),
            *(marked(have.cell(name, variant)) for name in ABLATIONS),
        ]
        for variant, words in VARIANTS.items()
    ]
    steps = {
        "gradient, last block": (LAST, LAST_GRADIENT),
        "gradient, all blocks": (ALL, ALL_GRADIENT),
        "all blocks, no gradient": (LAST, ALL),
        "all blocks, gradient": (LAST_GRADIENT, ALL_GRADIENT),
    }
    for words, (one, other) in steps.items():
        paper = PAPER["table 1"][other] - PAPER["table 1"][one]
        pairs = [have.pair(name, "saco", one, other) for name in ABLATIONS]
        cells = [interval(row, "difference", "+") + "?" * (row["p"] > 0.05) for row in pairs]
        rows.append([f"*gain: {words}*", "", number(paper, 4, "+"), *cells])
    return table(heads, rows, names=2)


def ablation_text(have: Summaries) -> str:
    """What agrees."""

    def gain(name: str, one: str, other: str) -> float:
        return have.pair(name, "saco", one, other)["difference"]

    def above(name: str, one: str, other: str) -> bool:
        return have.pair(name, "saco", one, other)["p"] <= 0.05 and gain(name, one, other) > 0

    more = sum(above(name, ALL, LAST_GRADIENT) for name in ABLATIONS)
    best = sum(
        all(above(name, variant, ALL_GRADIENT) for variant in (LAST, ALL, LAST_GRADIENT))
        for name in ABLATIONS
    )
    aggregated = [(LAST, ALL), (LAST_GRADIENT, ALL_GRADIENT)]
    dominant = sum(
        gain(name, ALL, ALL_GRADIENT) > max(gain(name, *step) for step in aggregated)
        for name in ABLATIONS
    )
    synergy = sum(
        gain(name, LAST_GRADIENT, ALL_GRADIENT) > gain(name, LAST, LAST_GRADIENT)
        for name in ABLATIONS
    )
    steps = {MODELS[m]: have.pair(n, "saco", LAST, ALL) for n, m in ABLATIONS.items()}
    unsure = [name for name, row in steps.items() if row["p"] > 0.05]
    worse = [name for name, row in steps.items() if row["p"] <= 0.05 and row["difference"] < 0]
    equal = sum(value in PAPER["table 2"][10] for value in PAPER["table 1"].values())
    return (
        f"**Agrees**: on {best} of {len(ABLATIONS)} models both together are better than all "
        f"others, on {more} the gradient alone is better than aggregation alone (paired tests), "
        f"and on {dominant} the gradient's gain on all blocks is larger than either gain of "
        "aggregation: the gradient is “more dominant”, as the paper says. **Disagrees**: that "
        "aggregation helps with and without the gradient. Without it the "
        f"difference is not significant on {listed(unsure) or 'none'}, and it hurts on "
        f"{listed(worse) or 'none'}. With the gradient, aggregation adds more than the gradient "
        f"did on the last block on {synergy} of {len(ABLATIONS)} models; in the paper it adds "
        "less. The last blocks of our models may hold less relevant information than those of "
        "ViT-B and ViT-L; we did not test this. “ImageNet” over the paper's column is our "
        f"inference: {equal} of the {len(VARIANTS)} values of its Table 1 equal values of its "
        "Table 2 at K = 10."
    )


def k_label(k: str) -> str:
    """How the runs name SaCo with some K."""
    return f"saco(k={k})"


def k_correlation(have: Summaries, name: str, one: str, other: str) -> dict[str, Any]:
    """Correlation over images between SaCo at two K's."""
    table_ = have.run(name)["correlations_over_images"]
    return find(table_, metric=k_label(one), other=k_label(other))


KS = {"k_base": "CIFAR-10 base", "k_c100_base": "CIFAR-100 base"}


def k_table(have: Summaries) -> str:
    """Table 2."""
    rows = []
    for k, values in PAPER["table 2"].items():
        rows.append(["paper, ImageNet", str(k), *(number(value, 4) for value in values)])
    for name, words in KS.items():
        for k in PAPER["table 2"]:
            cells = [marked(have.cell(name, method, k_label(k))) for method in METHODS]
            rows.append([words, str(k), *cells])
    return table(["", "K", *METHODS.values()], rows)


def k_correlations(have: Summaries) -> str:
    """Fig. 5."""
    pairs = (("5", "10"), ("10", "20"), ("5", "20"))
    rows = [["paper, ImageNet", number(PAPER["correlation of K = 5 and 10"], 4), "higher", "lower"]]
    for name, words in KS.items():
        cells = [interval(k_correlation(have, name, *pair), "correlation") for pair in pairs]
        rows.append([f"{words}, over images", *cells])
        ours = have.run(name)["correlations"]
        both = [find(ours, metric=k_label(one), other=k_label(other)) for one, other in pairs]
        rows.append([f"{words}, over methods", *(interval(row, "correlation") for row in both)])
    return table(["", *(f"K = {one} and {other}" for one, other in pairs)], rows)


def k_text(have: Summaries) -> str:
    """What agrees."""
    falls = {
        name: sum(
            have.cell(name, m, k_label("20"))["mean"] < have.cell(name, m, k_label("5"))["mean"]
            for m in METHODS
        )
        for name in KS
    }
    five, twenty = (
        listed([interval(k_correlation(have, name, "5", k), "correlation") for name in KS])
        for k in ("10", "20")
    )
    random = [
        have.cell(name, r, k_label(k)) for name in KS for r in RANDOM for k in ("5", "10", "20")
    ]
    means = {name: moved(have, name, "k", "20", "saco") for name in KS}
    paper = [number(PAPER["table 2"][k][0], 4) for k in (5, 20)]
    return (
        f"Orders *over methods* and the mean of all maps use {maps_of(have, 'k_base')} maps, "
        f"random ones included. **Agrees**: K = 5 and 10 have a correlation of {five} (CIFAR-10 "
        f"and CIFAR-100), where the paper has {PAPER['correlation of K = 5 and 10']}; 10 and 20 "
        f"are closer, 5 and 20 further apart ({twenty}). From K = 5 to 20 the mean of all maps "
        f"changes by {listed([signed(row) for row in means.values()])}; it is lower for "
        f"{falls['k_base']} and {falls['k_c100_base']} of 10 methods. Random attribution stays at "
        f"zero ({sum(map(covers_zero, random))} of {len(random)} intervals cover it). "
        "**Disagrees**: that ATTCAT changes little. It falls on both models, from "
        f"{ends(have, 'k_base', 'attcat')} and from {ends(have, 'k_c100_base', 'attcat')}. "
        f"Integrated gradients rise in the paper, from {' to '.join(paper)}. Here they fall: on "
        f"CIFAR-10 from {ends(have, 'k_base', 'integrated_gradients')}, "
        f"{than_the_mean(have, 'k_base')}; on CIFAR-100 from "
        f"{ends(have, 'k_c100_base', 'integrated_gradients')}, "
        f"{than_the_mean(have, 'k_c100_base')}, which could be called consistent. Run on these "
        "two models only."
    )


def than_the_mean(have: Summaries, name: str) -> str:
    """How far integrated gradients fall from K = 5 to 20, compared with all maps."""
    five, twenty = (
        have.cell(name, "integrated_gradients", k_label(k))["mean"] for k in ("5", "20")
    )
    rest = moved(have, name, "k", "20", "saco")["signed"]
    word = "more" if twenty - five < rest else "less"
    return f"by {number(five - twenty)}, {word} than the mean of all maps ({number(-rest)})"


def weights(have: Summaries) -> str:
    """Difference and ratio on the same maps."""
    names = {**METHODS, "grad_cam(minmax=true)": "Grad-CAM in 0 to 1", **RANDOM}
    rows = []
    for method, shown in names.items():
        ratio = have.cell("weights_base", method, "saco(weight=ratio)")
        cells = [marked(have.cell("weights_base", method)), marked(ratio)]
        rows.append([shown, *cells, f"{ratio['n']:,}"])
    return table(["", "by difference", "by ratio", "images where the ratio is defined"], rows)


def invariance(have: Summaries) -> str:
    """A map, and scaled or shifted versions of it."""
    rows = []
    for group in ("sum", "mean"):
        for method in ("map", "3 map", "map + 1", "map, min-max"):
            cells = [
                interval(have.cell("scale_invariance", method, metric, f"group={group}"))
                for metric in ("saco", "saco(weight=ratio)")
            ]
            rows.append([f"{group}: {method}", *cells])
    return table(["salience of a group: map", "by difference", "by ratio"], rows)


def weights_text(have: Summaries) -> str:
    """What agrees."""
    undefined = [
        shown
        for method, shown in METHODS.items()
        if not have.cell("weights_base", method, RATIO)["n"]
    ]
    agree = find(have.run("weights_base")["correlations"], metric="saco", other=RATIO)
    cam = have.pair("weights_base", RATIO, "grad_cam", "grad_cam(minmax=true)")
    brought = have.pair("scale_invariance", RATIO, "map", "map, min-max")
    shift = have.pair("scale_invariance", "saco", "map", "map + 1")
    ratio = have.pair("scale_invariance", RATIO, "map", "map + 1")
    scaled = have.pair("scale_invariance", "saco", "map", "map, min-max")
    random = have.cell("weights_base", "random_patch", RATIO)
    k, pixels = have.run("scale_invariance")["protocol"]["k"], PIXELS["32/4"]
    assert cam["p"] <= 0.05 < brought["p"]
    return (
        "**Agrees in part**: that rescaling a map to [0, 1] skews ratios. It changes the SaCo by "
        f"ratio of Grad-CAM by {interval(cam, 'difference', '+')} (n = {int(cam['n']):,}, "
        f"{below([cam['p']])}), a small change, and that of Transformer-MM by "
        f"{interval(brought, 'difference', '+')} (n = {int(brought['n']):,}), which is not "
        "significant. Adding 1 to the map changes it more "
        f"({interval(ratio, 'difference', '+')}, Transformer-MM). Ratios are undefined for every "
        f"image with {listed(undefined)}, whose maps have signs, and put random attribution per "
        f"patch at {interval(random)}. Where both are defined, difference and ratio rank maps "
        f"similarly (rank correlation {interval(agree, 'correlation')}).\n\n"
        "**Agrees for equal groups**: SaCo(aS + b) = SaCo(S), by the supplement's proof. It holds "
        "for scale (3 × the map: identical up to rounding). For a shift it holds for equally "
        "sized groups, as the paper defines them, because the proof adds b to the salience of a "
        f"*group*, where b is multiplied by the group's size; {uneven(have)}. {pixels:,} pixels "
        f"make groups of {pixels // k} and {pixels // k + 1}, and then adding 1 changes SaCo by "
        f"{interval(shift, 'difference', '+')} ({below([shift['p']])}), rescaling the map to [0, "
        "1] "
        f'by {interval(scaled, "difference", digits=4)}. With `group="mean"` adding 1 changes '
        f"nothing. All of this is for {shifted_maps(have)}; 224/16 was not tested."
    )


RATIO = "saco(weight=ratio)"


def moved(have: Summaries, name: str, axis: str, second: str, metric: str) -> dict[str, Any]:
    """A row of a study's sensitivity."""
    return find(have.studies[name]["sensitivity"], axis=axis, second=second, metric=metric)


FILLS = ("mean", "black", "noise", "blur", "inpaint")


def fills(have: Summaries) -> str:
    """SaCo of every method under every fill."""
    names = {**METHODS, **RANDOM}
    rows = [
        [
            shown,
            *(marked(have.cell("fills_base", method, "saco", f"fill={fill}")) for fill in FILLS),
        ]
        for method, shown in names.items()
    ]
    count = maps_of(have, "fills_base")
    for metric, shown in METRICS.items():
        cells = [agreement(moved(have, "fills_base", "fill", fill, metric)) for fill in FILLS[1:]]
        rows.append([f"*order of {count} maps as with mean, {shown}*", "1", *cells])
    return table(["SaCo", *FILLS], rows)


def agreement(row: Row) -> str:
    """Rank correlation over methods with its interval."""
    low, high = number(row["agreement_low"]), number(row["agreement_high"])
    return f"{number(row['agreement'])} [{low}, {high}]"


def fills_text(have: Summaries) -> str:
    """What it means."""
    flips = {fill: moved(have, "fills_base", "fill", fill, "saco")["flipped"] for fill in FILLS[1:]}
    most = max(flips, key=lambda fill: flips[fill])
    random = {
        (kind, fill): have.cell("fills_base", kind, "saco", f"fill={fill}")
        for kind in RANDOM
        for fill in FILLS
    }
    missed = [
        f"{fill} {RANDOM[kind].removeprefix('random, ')} {interval(row, digits=5)}"
        for (kind, fill), row in random.items()
        if not covers_zero(row)
    ]
    cells = {f: have.cell("fills_base", "integrated_gradients", "saco", f"fill={f}") for f in FILLS}
    said = listed([f"{interval(row)} with {fill}" for fill, row in cells.items()])
    first = {
        fill: max(METHODS, key=lambda m: have.cell("fills_base", m, "saco", f"fill={fill}")["mean"])
        for fill in FILLS
    }
    heads = listed([f"{METHODS[method]} with {fill}" for fill, method in first.items()])
    return (
        "The paper has one fill and makes no claim. Random attribution stays near zero with all "
        f"({span(row['mean'] for row in random.values())}), but not exactly: "
        f"{len(random) - len(missed)} of {len(random)} intervals cover 0, and {len(missed)} do "
        f"not: {listed(missed)}. The verdict on methods depends on the fill: "
        f"integrated gradients have {said}. The highest mean is that of {heads}. Of all pairs of "
        f"the {maps_of(have, 'fills_base')} maps, random ones included, {percent(flips[most])} "
        f"change their order from mean to {most}. A likely reason, not tested: integrated "
        "gradients and the mean fill use similar greys for “nothing there”; black is far from "
        "them. Run on one model only."
    )


def drop(have: Summaries) -> str:
    """How far dropping patches ranks methods as every fill does."""
    rows = [
        [shown, *(agreement(moved(have, "drop", "fill", fill, metric)) for fill in FILLS)]
        for metric, shown in METRICS.items()
    ]
    return table([f"order of {maps_of(have, 'drop')} maps as with drop", *FILLS], rows)


def drop_text(have: Summaries) -> str:
    """What it means."""
    orders = {
        metric: {fill: moved(have, "drop", "fill", fill, metric)["agreement"] for fill in FILLS}
        for metric in METRICS
    }
    every = [value for own in orders.values() for value in own.values()]
    nearest = listed(
        [f"{max(own, key=own.__getitem__)} by {METRICS[name]}" for name, own in orders.items()]
    )
    flips = [moved(have, "drop", "fill", fill, "saco")["flipped"] for fill in FILLS]
    apart = sum(
        max(row["agreement_low"] for row in own) > min(row["agreement_high"] for row in own)
        for own in ([moved(have, "drop", "fill", fill, name) for fill in FILLS] for name in METRICS)
    )
    images = have.run("drop")["data"]["images"]
    return (
        f"The bundled ViT and {images:,} bundled images, by patch. On an image the order of the "
        f"{maps_of(have, 'drop')} maps, random ones included, correlates with that under drop by "
        f"{span(every)} over metrics and fills; by SaCo {percent(min(flips))} to "
        f"{percent(max(flips))} of all pairs change their order. The highest agreement is that of "
        f"{nearest.removesuffix('.')}; but {images:,} images of one small model are few, and the "
        f"intervals of two fills lie apart for {apart} of {len(METRICS)} metrics, so no fill is "
        "shown to stand for drop. Agreement is by image, where random maps alone keep it below 1."
    )


PROPOSALS = {
    "saco": "K = 10, no penalty",
    "saco(k=auto)": "K per map",
    "saco(penalty=1)": "penalty 1",
    "saco(penalty=2)": "penalty 2",
}


def dynamic(have: Summaries) -> str:
    """SaCo as published, with a K per map, and with penalties."""
    names = {**METHODS, **RANDOM}
    chosen = have.run("dynamic_base")["k_used"]
    rows = []
    for method, shown in names.items():
        cells = [marked(have.cell("dynamic_base", method, metric)) for metric in PROPOSALS]
        counts = chosen[method]
        share = [percent(counts.get(k, 0) / sum(counts.values())) for k in ("5", "10", "20")]
        rows.append([shown, *cells, " / ".join(share)])
    agree = [
        interval(
            find(have.run("dynamic_base")["correlations"], metric="saco", other=other),
            "correlation",
        )
        for other in list(PROPOSALS)[1:]
    ]
    count = maps_of(have, "dynamic_base")
    rows.append([f"*order of {count} maps as in the first column*", "1", *agree, ""])
    return table(["", *PROPOSALS.values(), "chosen K = 5 / 10 / 20"], rows)


def dynamic_text(have: Summaries) -> str:
    """What it means."""
    verdicts = {
        metric: [have.cell("dynamic_base", m, metric)["verdict"] for m in METHODS]
        for metric in PROPOSALS
    }
    separated = listed(
        [
            f"{10 - verdicts[metric].count('same')} of 10 with {words}"
            for metric, words in PROPOSALS.items()
        ]
    )
    patch = {m: interval(have.cell("dynamic_base", "random_patch", m)) for m in PROPOSALS}
    pixel = {m: interval(have.cell("dynamic_base", "random", m)) for m in PROPOSALS}
    one, two = list(PROPOSALS)[2:]
    return (
        "The reproduction proposes both without numbers. A K per map (by [our "
        "rule](protocol.md)) is mostly K = 5, because most maps are spread out, and so changes "
        "scores as K = 5 does. A penalty hardly changes the order of the "
        f"{maps_of(have, 'dynamic_base')} maps, random ones included, but pushes random "
        f"attribution per patch off zero ({patch[one]} and {patch[two]}), which is what SaCo is "
        f"for; per pixel it stays ({pixel[one]} and {pixel[two]}), and with a K per map per patch, "
        f"too ({patch['saco(k=auto)']}). Significantly different from random "
        f"attribution are {separated}. Run on one model only."
    )


def granularity(have: Summaries) -> str:
    """Pixel-wise and matched random attribution, and how many methods are above each."""
    rows = []
    for name, words in MODELS.items():
        for metric in OTHERS:
            pixel, patch = (have.cell(name, random, metric) for random in RANDOM)
            counts = [beaten(have, name, metric, random)[:2] for random in RANDOM]
            rows.append(
                [
                    words,
                    METRICS[metric],
                    interval(pixel),
                    interval(patch),
                    *(f"{worse} / {better}" for worse, better in counts),
                    str(matched(have, name, metric, "worse")),
                ]
            )
    heads = ["model", "metric", "random per pixel", "random per patch"]
    heads += ["worse / better than per pixel", "… than per patch", "worse than matched"]
    return table(heads, rows, names=2)


def upsampling(have: Summaries) -> str:
    """The effect of nearest instead of bilinear upsampling on each method."""
    names = {**METHODS, **RANDOM}
    rows = []
    for method, shown in names.items():
        changes = [
            have.change("granularity_base", "upsample=nearest", method, metric)
            for metric in METRICS
        ]
        if any(abs(row["difference"]) > 1e-6 for row in changes):
            cells = [
                interval(row, "difference", "+") + "?" * (row["verdict"] == "same")
                for row in changes
            ]
            rows.append([shown, *cells])
    return table(["nearest minus bilinear", *METRICS.values()], rows)


def granularity_text(have: Summaries) -> str:
    """Whether the papers' conclusion holds."""
    per_model = {
        name: sum(beaten(have, name, metric, "random")[0] for metric in OTHERS[:3])
        for name in MODELS
    }
    small = [count for name, count in per_model.items() if name != "c10_deit"]
    turned = beaten(have, "c10_deit", "comprehensiveness", "random")[0]
    pixels, patches = (
        have.cell("units_base", "random", "aopc", f"units={unit}") for unit in ("pixels", "patches")
    )
    unequal = [have.cell("units_base", random, "saco", "units=patches") for random in RANDOM]
    agree = {
        metric: moved(have, "granularity_base", "upsample", "nearest", metric) for metric in METRICS
    }
    return (
        "**The papers' conclusion holds in part.** Random attribution per pixel does beat "
        f"methods on AOPC, LOdds and AUC at 32/4, in {min(small)} to {max(small)} of 30 cases a "
        "model, and in "
        f"{per_model['c10_deit']} of 30 at 224/16, where the opposite is true: all methods are "
        f"better. There it beats {turned} of 10 on comprehensiveness instead, on which it is "
        "worse than every method at 32/4. So the metric alone does not explain it. A likely "
        "reason: scattered pixels destroy every patch of 4 × 4, but leave a 16 × 16 patch of an "
        "enlarged image readable; but one model at 224/16, which also differs in size, training "
        f"and teacher, cannot prove that.\n\n{matched_text(have)}\n\n"
        f"**Upsampling alone** ({over(have, 'granularity_base')}) changes the cumulative metrics "
        "little and SaCo much: nearest instead of bilinear keeps the order of the "
        f"{maps_of(have, 'granularity_base')} maps, random ones included, on an image with a rank "
        f"correlation of {agreement(agree['aopc'])} for AOPC, {agreement(agree['saco'])} for SaCo. "
        "The bilinear map has a smooth order inside a patch that comes from interpolation, not the "
        "model; the nearest one has ties, which the tie rule orders. "
        "**Whole patches as units** take the advantage from random maps per pixel: their AOPC "
        f"falls from {interval(pixels)} to {interval(patches)}. SaCo's zero shifts with them, to "
        f"{interval(unequal[0])} per pixel and {interval(unequal[1])} per patch, perhaps because "
        "64 patches make groups of 6 and 7; that was not tested with a K that divides 64."
    )


def matched_text(have: Summaries) -> str:
    """Verdicts against random maps of the same granularity, and whether SaCo shares them."""
    said = {
        (name, method, metric): have.cell(name, method, metric)["verdict"]
        for name in MODELS
        for method in METHODS
        for metric in METRICS
    }
    worse = [case for case, verdict in said.items() if verdict == "worse" and case[2] != "saco"]
    saco = [case for case, verdict in said.items() if verdict == "worse" and case[2] == "saco"]
    base, saco_base = (sum(case[0] == "c10_base" for case in cases) for cases in (worse, saco))
    lrp = sum(method == "lrp" for _, method, _ in worse)
    opposed = {
        metric: sum(
            {said[name, method, "saco"], said[name, method, metric]} == {"better", "worse"}
            for name in MODELS
            for method in METHODS
        )
        for metric in OTHERS
    }
    pairs = [have.pair(name, "aopc", "random_patch", "lrp") for name in MODELS]
    above = sum(row["p"] <= 0.05 and row["difference"] > 0 for row in pairs)
    own, patch = (have.cell("c10_base", m, "aopc") for m in ("lrp", "random_patch"))
    return (
        "**With random maps of the same granularity** the other four metrics put a method below "
        f"random in {len(worse)} of {40 * len(MODELS)} cases, SaCo in {len(saco)} of "
        f"{10 * len(MODELS)}. {base} of the {len(worse)} and {saco_base} of the {len(saco)} are on "
        "the base model of CIFAR-10. There, and only there, they are largely the same methods. "
        f"{lrp} of the {len(worse)} are LRP. That LRP counts as per pixel is our choice: against "
        f"random maps per patch its AOPC is better on {above} of {len(MODELS)} models (CIFAR-10 "
        f"base: {interval(own)} against {interval(patch)}). Equal totals do not mean equal "
        "verdicts: SaCo and another metric give opposite verdicts, one better and one worse than "
        f"matched random, in {listed([f'{count} ({METRICS[k]})' for k, count in opposed.items()])} "
        f"of {10 * len(MODELS)} cases. What remains is that only SaCo has a zero that means random "
        "attribution; the others need a random map for comparison."
    )


def command_block(*names: str) -> Callable[[Summaries], str]:
    """A block with the commands of some runs."""
    return lambda have: commands(have, *names)


BLOCKS: Mapping[str, Callable[[Summaries], str]] = {
    "found": found,
    "teaser": teaser,
    "models": models,
    "correlation": correlation,
    "correlation text": correlation_text,
    "case": case,
    "case text": case_text,
    "case commands": command_block("case_study"),
    "comparison": comparison,
    "against random": against_random,
    "comparison text": comparison_text,
    "comparison commands": command_block(*MODELS),
    "ablation": ablation,
    "ablation text": ablation_text,
    "ablation commands": command_block(*ABLATIONS),
    "k": k_table,
    "k correlations": k_correlations,
    "k text": k_text,
    "k commands": command_block(*KS),
    "weights": weights,
    "invariance": invariance,
    "weights text": weights_text,
    "weights commands": command_block("weights_base", "scale_invariance"),
    "fills": fills,
    "fills text": fills_text,
    "fills commands": command_block("fills_base"),
    "drop": drop,
    "drop text": drop_text,
    "drop commands": command_block("drop"),
    "dynamic": dynamic,
    "dynamic text": dynamic_text,
    "dynamic commands": command_block("dynamic_base"),
    "granularity": granularity,
    "upsampling": upsampling,
    "granularity text": granularity_text,
    "granularity commands": command_block("granularity_base", "units_base"),
    **TEXT_BLOCKS,
}


def filled(text: str, have: Summaries) -> str:
    """A page with its blocks made again."""
    return fill_blocks(text, lambda name: BLOCKS[name](have))


# The figures


def draw(have: Summaries) -> None:
    """Draw all figures except that of the case study, which needs the model (see the page)."""
    from faithscope.report import plots

    result: Any
    for name, plot in (
        ("c10_base", "correlations"),
        ("c10_base", "intervals"),
        ("c10_deit", "intervals"),
        ("c10_deit", "radar"),
    ):
        result = Shown(have.run(name))
        save(getattr(plots, plot)(result), f"{plot}-{name.removeprefix('c10_')}")
    rows = [
        row for row in rows_of(have.studies["fills_base"]["sensitivity"]) if row["axis"] == "fill"
    ]
    save(plots.sensitivity(rows), "fills")
    draw_text(have)


def main() -> int:
    """Write or check the pages."""
    have = Summaries()
    if "--figures" in sys.argv:
        draw(have)
    stale = []
    for page in PAGES:
        text = page.read_text()
        new = filled(text, have)
        if "--check" not in sys.argv:
            page.write_text(new)
        elif new != text:
            stale.append(f"{page.name} is out of date: run `python docs/reproduction.py`")
    print("\n".join(stale) or "reproduction: the pages match the summaries")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
