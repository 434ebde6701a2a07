"""Fill reproduction.md, and the lines on it in README.md, with numbers from studies/results.

python docs/reproduction.py             # writes the numbers between the markers of both pages
python docs/reproduction.py --figures   # and draws the pictures
python docs/reproduction.py --check     # only checks, as the tests do

A page says `<!-- begin: NAME -->`, then what the function NAME below returns, then `<!-- end -->`.
Every number comes from the summaries, which studies/summarise.py makes from run folders, except the
paper's own, which stand in PAPER with where they are from.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "studies" / "results"
IMAGES = ROOT / "docs" / "images"
PAGES = (ROOT / "docs" / "reproduction.md", ROOT / "README.md")

Row = Mapping[str, Any]
Study = dict[str, Any]

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

PAPER: Mapping[str, Any] = {
    "table 1": dict(zip(VARIANTS, (0.1835, 0.2453, 0.3783, 0.4558), strict=True)),
    "table 2": {
        5: (0.1585, 0.1659, 0.0246, 0.4628, 0.5680, 0.0544, 0.3200, 0.3372, 0.6041, 0.3178),
        10: (0.1647, 0.1142, 0.0120, 0.3066, 0.3902, 0.0155, 0.1835, 0.2453, 0.4558, 0.3629),
        20: (0.1785, 0.1000, 0.0054, 0.2282, 0.2906, -0.0201, 0.1411, 0.1956, 0.3651, 0.3617),
    },  # by METHODS
    "correlation of K = 5 and 10": 0.6101,
}


# What the summaries say


class Summaries:
    """The files of studies/results by name, with their tables as rows."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.studies: dict[str, Study] = {
            file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))
        }

    def run(self, name: str, which: str | None = None) -> dict[str, Any]:
        """One run of a study: the only one, or by what tells it from the others."""
        runs: dict[str, dict[str, Any]] = self.studies[name]["runs"]
        return runs[which or next(iter(runs))]

    def cell(self, name: str, method: str, metric: str = "saco", which: str | None = None) -> Row:
        """A row of a run's summary."""
        return find(self.run(name, which)["summary"], method=method, metric=metric)

    def pair(self, name: str, metric: str, method: str, other: str) -> dict[str, float]:
        """The paired difference, the second less the first, with its interval and p."""
        rows = self.run(name)["comparisons"]
        row = dict(find(rows, metric=metric, method={method, other}, other={method, other}))
        if row["method"] == method:
            row["difference"] = -row["difference"]
            row["ci_low"], row["ci_high"] = -row["ci_high"], -row["ci_low"]
        return row

    def change(self, name: str, which: str, method: str, metric: str) -> Row:
        """What a choice does to a method: the paired difference of two runs of a study."""
        return find(self.studies[name]["changes"][which], method=method, metric=metric)

    def ups(self, name: str, metric: str) -> bool:
        """Whether more is better."""
        return bool(self.run(name)["metrics"][metric]["higher_is_better"])


def rows_of(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A table as it was before it was written."""
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def find(table: Mapping[str, Any], **wanted: Any) -> dict[str, Any]:
    """The one row with these values; a set means any of them."""

    def fits(row: Row) -> bool:
        return all(
            row[key] in value if isinstance(value, set) else row[key] == value
            for key, value in wanted.items()
        )

    (row,) = filter(fits, rows_of(table))
    return row


def number(value: float | None, digits: int = 3, sign: str = "") -> str:
    """A number as the page writes it.

    >>> number(-0.0004), number(0.25, sign="+")
    ('0.000', '+0.250')
    """
    if value is None:
        return "—"
    text = f"{value:{sign}.{digits}f}"
    if not float(text):
        text = text.lstrip("+-")
    return text.replace("-", "−")


def interval(row: Row, middle: str = "mean", sign: str = "") -> str:
    """A number with its 95 % interval."""
    low, high = (number(row[end], sign=sign) for end in ("ci_low", "ci_high"))
    return f"{number(row[middle], sign=sign)} [{low}, {high}]"


def marked(row: Row) -> str:
    """A cell of a table of scores."""
    if not row["n"]:
        return "—"
    return interval(row) + {"better": " *", "worse": " †"}.get(row["verdict"], "")


def percent(share: float, digits: int = 0) -> str:
    """A share in per cent."""
    return f"{100 * share:.{digits}f} %"


def below(values: Iterable[float]) -> str:
    """The largest of some p-values.

    >>> below([0.0123, 0.002])
    'p ≤ 0.013'
    """
    return f"p ≤ {math.ceil(1000 * max(values) - 1e-9) / 1000:.3f}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, names: int = 1) -> str:
    """A Markdown table; the first `names` columns are words."""
    lines = [heads, ["---"] * names + ["---:"] * (len(heads) - names), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def commands(have: Summaries, *names: str) -> str:
    """The commands that made the runs."""
    lines = [line for name in names for line in have.studies[name]["command"]]
    told = [line for line in lines if not line.startswith("#")]
    folders = " ".join(f"runs/{name}" for name in names)
    told.append(f"python studies/summarise.py {folders} --out studies/results")
    return "\n".join(["```sh", *told, "```"])


def listed(words: Sequence[str]) -> str:
    """Words as a sentence has them."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def span(values: Iterable[float], digits: int = 3) -> str:
    """From the smallest to the largest."""
    known = sorted(values)
    return f"{number(known[0], digits)} to {number(known[-1], digits)}"


def outdone(have: Summaries, name: str, metric: str, random: str) -> tuple[int, int, float]:
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
    """How many methods are better, worse or the same as random maps of their granularity."""
    return sum(have.cell(name, m, metric)["verdict"] == verdict for m in METHODS)


def ranked(have: Summaries, name: str, metric: str) -> list[str]:
    """Methods from best to worst."""
    way = -1 if have.ups(name, metric) else 1
    return sorted(METHODS, key=lambda m: way * have.cell(name, m, metric)["mean"])


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
    covers = sum(row["ci_low"] <= 0 <= row["ci_high"] for row in cells)
    low, high = (pick(cells, key=lambda row: row["mean"]) for pick in (min, max))
    return (
        f"**SaCo puts random attribution at zero: agrees.** On {len(MODELS)} models and with two "
        f"kinds of random maps its mean lies between {interval(low)} and {interval(high)}; "
        f"{covers} of {len(cells)} intervals cover 0."
    )


def found_random(have: Summaries) -> str:
    """Random attribution per pixel, in both geometries."""
    small, large, turned = (
        outdone(have, name, metric, "random")
        for name, metric in (
            ("c10_base", "aopc"),
            ("c10_deit", "aopc"),
            ("c10_deit", "comprehensiveness"),
        )
    )
    rows = [have.cell(name, "random", "aopc") for name in ("c10_base", "c10_deit")]
    comp = have.cell("c10_deit", "random", "comprehensiveness")
    return (
        "**Other metrics flatter random attribution, but which ones depends on the model: agrees "
        f"in part.** At 32/4 random maps per pixel have an AOPC of {interval(rows[0])} on the base "
        f"model of CIFAR-10 and outdo {small[0]} of 10 methods ({below([small[2]])}); in the "
        f"paper's geometry, 224/16, they have {interval(rows[1])} and outdo {large[0]} of 10 (the "
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
    return (
        "**Against random maps of the same granularity SaCo no longer stands out: disagrees.** It "
        f"puts {counts['saco']} of {10 * len(MODELS)} methods × models above matched random "
        f"attribution, {rest}. Transformer Attribution, one of those the paper sees below random, "
        f"is on the base model of CIFAR-10 {interval(row, 'difference', '+')} above it on AOPC "
        f"({below([row['p']])})."
    )


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
        "**Gradient helps, aggregation alone not always: agrees in part.** On the last block the "
        f"gradient adds {interval(low, 'difference', '+')} to {interval(high, 'difference', '+')} "
        f"SaCo on {sum(row['p'] <= 0.05 for row in gradient)} of {len(gradient)} models; "
        "aggregation "
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
    paper = dict(zip(METHODS, PAPER["table 2"][10], strict=True))
    places = sorted(paper, key=lambda method: -paper[method])
    conservative, partial = (
        places.index(method) + 1 for method in ("conservative_lrp", "partial_lrp")
    )
    row, other = (have.cell("c10_deit", m) for m in ("conservative_lrp", "partial_lrp"))
    return (
        "**The order of methods is another one: disagrees.** Conservative LRP, place "
        f"{conservative} "
        f"of 10 in the paper, has the highest mean SaCo on {count} of {len(MODELS)} models, on "
        f"{sure} "
        f"of them above every other method by a paired test; in the paper's geometry it has "
        f"{interval(row)}. Partial LRP, place {partial} in the paper, has {interval(other)} there."
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
        "**Integrated gradients win by one removal order and not by the other: agrees in part.** "
        f"On {first} of {len(MODELS)} models a paired test finds them above every other method on "
        f"AOPC, LOdds and AUC; on {last} they are last of 10 on comprehensiveness. In the paper's "
        f"geometry their comprehensiveness, {interval(row)}, is "
        f"{interval(difference, 'difference', '+')} worse than that of random maps per pixel "
        f"({below([difference['p']])})."
    )


def leads(have: Summaries, name: str, metric: str, method: str) -> bool:
    """Whether a method has the best mean, and a paired test tells it from every other."""
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
    return (
        "**SaCo correlates weakly with the others: agrees; these among themselves do not all "
        "agree: "
        "disagrees.** Over images SaCo's rank correlation with another metric is between "
        f"{interval(low, 'correlation')} and {interval(high, 'correlation')}; that of AOPC with "
        f"comprehensiveness is {interval(most, 'correlation')} at most."
    )


def found_k(have: Summaries) -> str:
    """The choice of K."""
    said = []
    for one, other in (("5", "10"), ("10", "20"), ("5", "20")):
        row = k_correlation(have, "k_base", one, other)
        said.append(f"{interval(row, 'correlation')} between K = {one} and {other}")
    falls = [signed(moved(have, name, "k", "20", "saco")) for name in KS]
    return (
        "**K matters as the paper says: agrees.** Over images the SaCo of the base model of "
        f"CIFAR-10 correlates by {listed(said)}. From K = 5 to 20 the mean of all maps, random "
        "ones too, changes by "
        f"{falls[0]} there and by {falls[1]} on that of CIFAR-100."
    )


def signed(row: Row) -> str:
    """The mean change that a choice makes, with its interval."""
    low, high = (number(row[end], sign="+") for end in ("signed_low", "signed_high"))
    return f"{number(row['signed'], sign='+')} [{low}, {high}]"


def found_fill(have: Summaries) -> str:
    """The choice of the fill."""
    row = have.change("fills_base", "fill=black", "integrated_gradients", "saco")
    order = moved(have, "fills_base", "fill", "black", "saco")
    words = f"{number(order['agreement'])} [{number(order['agreement_low'])}, "
    words += f"{number(order['agreement_high'])}]"
    return (
        "**The fill can turn a verdict round: not in the paper.** Black instead of the mean "
        f"changes the SaCo of integrated gradients by {interval(row, 'difference', '+')}, from "
        f"{number(row['first'])} to {number(row['second'])}, and the order of methods on an image "
        f"under the two fills correlates by {words}."
    )


def found_upsampling(have: Summaries) -> str:
    """The choice of upsampling."""
    saco, aopc = (
        have.change("granularity_base", "upsample=nearest", "transformer_mm", metric)
        for metric in ("saco", "aopc")
    )
    return (
        "**Upsampling alone moves SaCo, the others little: not in the paper.** Nearest instead of "
        "bilinear changes the SaCo of Transformer-MM by "
        f"{interval(saco, 'difference', '+')}, its AOPC by {interval(aopc, 'difference', '+')}."
    )


def found_shift(have: Summaries) -> str:
    """Invariance."""
    row = have.pair("scale_invariance", "saco", "map", "map + 1")
    scaled = have.pair("scale_invariance", "saco", "map", "map, min-max")
    mean = find(have.run("scale_invariance", "group=mean")["comparisons"], metric="saco", **SHIFT)
    return (
        "**SaCo is not quite invariant to a shift: disagrees.** With K = 10, which does not divide "
        "the 1,024 pixels of an image, adding 1 to a map changes its mean SaCo by "
        f"{interval(row, 'difference', '+')} ({below([row['p']])}), bringing it to 0 … 1 by "
        f"{interval(scaled, 'difference')}; with the mean instead of the sum as salience of a "
        f"group, adding 1 changes it by {interval(mean, 'difference')}."
    )


SHIFT = {"method": "map", "other": "map + 1"}


def found_proposals(have: Summaries) -> str:
    """Dynamic K and penalty."""
    row = have.cell("dynamic_base", "random_patch", "saco(penalty=2)")
    auto = have.run("dynamic_base")["k_used"]
    five = sum(auto[m].get("5", 0) for m in METHODS) / sum(sum(auto[m].values()) for m in METHODS)
    change = signed(moved(have, "dynamic_base", "k", "auto", "saco"))
    return (
        "**Dynamic K and penalty weights: neither is a clear gain.** Our rule for K takes 5 for "
        f"{percent(five)} of the maps and changes the mean of all maps by {change}; with penalty "
        "2 random "
        f"attribution per patch is no longer at zero but at {interval(row)}."
    )


def teaser(have: Summaries) -> str:
    """The lines in the README."""
    zero = have.cell("c10_deit", "random")
    small, large = (outdone(have, name, "aopc", "random") for name in ("c10_base", "c10_deit"))
    shift = have.pair("scale_invariance", "saco", "map", "map + 1")
    better = {
        metric: sum(matched(have, name, metric, "better") for name in MODELS)
        for metric in ("saco", "aopc")
    }
    return (
        f"The SaCo paper's experiments on six small ViTs: SaCo puts random attribution at zero "
        f"({interval(zero)} at 224/16), as the paper says. AOPC puts random maps per pixel above "
        f"{small[0]} of 10 methods with patches of 4 pixels, above {large[0]} with patches of 16; "
        "against random maps of the same granularity it puts "
        f"{better['aopc']} of {10 * len(MODELS)} methods × models above random, SaCo "
        f"{better['saco']}. SaCo is not quite shift-invariant: adding 1 to a map changes it by "
        f"{interval(shift, 'difference', '+')}. Tables, figures, disagreements, commands: "
        "[docs/reproduction.md](docs/reproduction.md)."
    )


# The experiments


def models(have: Summaries) -> str:
    """Which models, how good, on how many images."""
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
    kinds = {"correlations_over_images": "over images", "correlations": "over methods"}
    for kind, words in kinds.items():
        for name, said in MODELS.items():
            found_rows = rows_of(have.run(name)[kind])
            own = [row for row in found_rows if row["metric"] == "saco"]
            rest = [row["correlation"] for row in found_rows if row["metric"] != "saco"]
            among = f"{number(sum(rest) / len(rest), 2)} ({span(rest, 2)})"
            rows.append([f"{words}: {said}", *(interval(row, "correlation") for row in own), among])
    return table(heads, rows)


def correlation_text(have: Summaries) -> str:
    """What agrees."""
    over = [
        find(have.run(name)["correlations_over_images"], metric="saco", other=other)["correlation"]
        for name in MODELS
        for other in OTHERS
    ]
    ranks = [
        find(have.run(name)["correlations"], metric="saco", other=other)["correlation"]
        for name in MODELS
        for other in OTHERS
    ]
    three = [
        find(have.run(name)["correlations"], metric=one, other=other)["correlation"]
        for name in MODELS
        for one, other in (("aopc", "log_odds"), ("aopc", "auc"), ("log_odds", "auc"))
    ]
    comp = [
        find(have.run(name)["correlations"], metric=one, other="comprehensiveness")["correlation"]
        for name in MODELS
        for one in OTHERS[:3]
    ]
    return (
        f"**Agrees**: SaCo goes its own way. Over images its correlations are {span(over, 2)}, "
        "mean "
        f"{number(sum(over) / len(over), 2)}, where the paper has 0.18 to 0.22. **Does not "
        "agree**: "
        "that the existing metrics measure one thing. Over methods AOPC, LOdds and AUC do "
        f"({span(three, 2)}), but comprehensiveness goes with none of them ({span(comp, 2)}), less "
        f"than SaCo does ({span(ranks, 2)}). Over images AOPC and comprehensiveness are opposed: "
        "both "
        "are large for an image whose prediction is easily lost, which is good for one and bad for "
        "the other. If the paper did not turn metrics to one direction, which its text does "
        "not say, this opposition would count there as agreement."
    )


def case(have: Summaries) -> str:
    """Fig. 3 as a table."""
    methods = ("transformer_attribution", "raw_attention", "random", "random_patch")
    names = {**METHODS, **RANDOM}
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
    saco = {m: have.cell("case_study", m)["mean"] for m in (*METHODS, *RANDOM) if m in CASE}
    aopc = {m: have.cell("case_study", m, "aopc")["mean"] for m in CASE}
    return (
        "**Agrees**: SaCo tells Transformer Attribution "
        f"({number(saco['transformer_attribution'])}) from raw attention "
        f"({number(saco['raw_attention'])}), and AOPC prefers random attribution "
        f"({number(aopc['random'])}) to both ({number(aopc['transformer_attribution'])} and "
        f"{number(aopc['raw_attention'])}). **Does not agree**: that cumulative removal drops the "
        "confidence by more than 0.9 after a fifth of the pixels for all three; here only the "
        "random map comes near that, and later. And one random map is not near zero: its ten draws "
        "spread widely (see the figure), so a case study with one draw proves little. It is one "
        "image, without an interval."
    )


CASE = ("transformer_attribution", "raw_attention", "random")


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
    """How many methods are told from random attribution, of both kinds."""
    rows = []
    for name, words in MODELS.items():
        cells = []
        for metric in METRICS:
            worse, better, _ = outdone(have, name, metric, "random")
            up, down = (matched(have, name, metric, verdict) for verdict in ("better", "worse"))
            cells.append(f"{better} / {worse}; {up} / {down}")
        rows.append([words, *cells])
    return table(["better / worse than random", *METRICS.values()], rows)


def comparison_text(have: Summaries) -> str:
    """What agrees."""
    cells = [have.cell(name, random) for name in MODELS for random in RANDOM]
    covers = sum(row["ci_low"] <= 0 <= row["ci_high"] for row in cells)
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
    comp = [
        f"{ranked(have, n, 'comprehensiveness').index('integrated_gradients') + 1}" for n in MODELS
    ]
    cases = [(n, metric) for n in MODELS for metric in METRICS]
    sunk, partial = (
        sum(have.cell(n, m, k)["verdict"] == "worse" for n, k in cases for m in methods)
        for methods in (("transformer_attribution", "attcat"), ("partial_lrp",))
    )
    base = sum(have.cell("c10_base", "partial_lrp", k)["verdict"] == "worse" for k in METRICS)
    return (
        f"**Agrees**: {covers} of {len(cells)} intervals of random attribution's SaCo cover 0, and "
        f"{positive} of {10 * len(MODELS)} scores of methods are positive and better than matched "
        "random attribution. Integrated gradients are first on AOPC, LOdds and AUC, and on "
        f"comprehensiveness place {', '.join(comp)} of 10 in the order of the models. **Does not "
        "agree**: SaCo also finds methods that are *worse* than random: "
        f"{'; '.join(negative)}. Of the three that the paper names, Transformer Attribution and "
        f"ATTCAT are below matched random attribution in {sunk} of {2 * len(cases)} cases, partial "
        f"LRP in {partial} of {len(cases)}, {base} of them on the base model of CIFAR-10. The "
        "order of "
        "methods differs from the paper's: conservative LRP and integrated gradients lead here. "
        "Possible reasons, none of them tested: our models are small, shallow and trained on "
        "small images, so gradients through them are less noisy than through ViT-B and ViT-L; "
        "and the paper does not say which form of conservative LRP it used on a ViT with GELU "
        "([ours](methods.md))."
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

    def above(name: str, one: str, other: str) -> bool:
        row = have.pair(name, "saco", one, other)
        return row["p"] <= 0.05 and row["difference"] > 0

    more = sum(above(name, ALL, LAST_GRADIENT) for name in ABLATIONS)
    best = sum(
        all(above(name, variant, ALL_GRADIENT) for variant in (LAST, ALL, LAST_GRADIENT))
        for name in ABLATIONS
    )
    synergy = sum(
        have.pair(name, "saco", LAST_GRADIENT, ALL_GRADIENT)["difference"]
        > have.pair(name, "saco", LAST, LAST_GRADIENT)["difference"]
        for name in ABLATIONS
    )
    steps = {MODELS[m]: have.pair(n, "saco", LAST, ALL) for n, m in ABLATIONS.items()}
    unsure = [name for name, row in steps.items() if row["p"] > 0.05]
    worse = [name for name, row in steps.items() if row["p"] <= 0.05 and row["difference"] < 0]
    return (
        f"**Agrees**: on {best} of {len(ABLATIONS)} models both together are better than all "
        "others, "
        f"and on {more} the gradient alone is better than aggregation alone (paired tests). **Does "
        "not agree**: that aggregation helps with and without the gradient. Without it the "
        f"difference is not significant on {listed(unsure) or 'none'}, and it hurts on "
        f"{listed(worse) or 'none'}. With the gradient, aggregation adds more than the gradient "
        "did "
        f"on {synergy} of {len(ABLATIONS)} models, in the paper less. The last blocks of "
        "our models may hold less of what matters than those of ViT-B and ViT-L; we did not test "
        "it."
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
    five, twenty = (k_correlation(have, "k_base", "5", k) for k in ("10", "20"))
    random = [
        have.cell(name, r, k_label(k)) for name in KS for r in RANDOM for k in ("5", "10", "20")
    ]
    covers = sum(row["ci_low"] <= 0 <= row["ci_high"] for row in random)
    ends = {
        method: [interval(have.cell("k_c100_base", method, k_label(k))) for k in ("5", "20")]
        for method in ("attcat", "integrated_gradients")
    }
    changes = [signed(moved(have, name, "k", "20", "saco")) for name in KS]
    return (
        f"**Agrees**: K = 5 and 10 correlate by {interval(five, 'correlation')}, where the paper "
        "has 0.6101; 10 and 20 are closer, 5 and 20 further apart "
        f"({interval(twenty, 'correlation')}). From K = 5 to 20 the mean of all maps, random "
        "ones too, changes by "
        f"{changes[0]} on CIFAR-10 and {changes[1]} on CIFAR-100; it is lower for "
        f"{falls['k_base']} and {falls['k_c100_base']} of 10 methods. Integrated gradients change "
        f"little, on CIFAR-100 from {' to '.join(ends['integrated_gradients'])}. Random "
        f"attribution stays at zero ({covers} of {len(random)} intervals cover it). **Does not "
        "agree**: that ATTCAT changes little; on CIFAR-100 it goes from "
        f"{' to '.join(ends['attcat'])}. "
        "Run on these two models only."
    )


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
    """A map and what is only scaled or shifted."""
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
        if not have.cell("weights_base", method, "saco(weight=ratio)")["n"]
    ]
    agree = find(have.run("weights_base")["correlations"], metric="saco", other=RATIO)
    shift = have.pair("scale_invariance", "saco", "map", "map + 1")
    ratio = have.pair("scale_invariance", RATIO, "map", "map + 1")
    scaled = have.pair("scale_invariance", "saco", "map", "map, min-max")
    random = have.cell("weights_base", "random_patch", RATIO)
    return (
        "**Agrees**: ratios are no way out. They are undefined for every image with "
        f"{listed(undefined)}, "
        "whose maps have signs; a shift of the map changes them "
        f"({interval(ratio, 'difference', '+')}); "
        f"and random attribution per patch is at {interval(random)} with them. Where both are "
        "defined, they order methods much alike (rank correlation "
        f"{interval(agree, 'correlation')}). "
        "**Does not agree**: the supplement's proof that SaCo(aS + b) = SaCo(S). It holds for "
        "scale (3 × the map: the same bits but for rounding), but for a shift only if all groups "
        "have the same size, because it adds b to the salience of a *group*, where b must be "
        "multiplied by its size. Here 1,024 pixels make groups of 102 and 103, and adding 1 "
        "changes "
        f"SaCo by {interval(shift, 'difference', '+')} ({below([shift['p']])}). "
        "Bringing maps to 0 … 1, which people do, changes it by "
        f"{interval(scaled, 'difference')}: no practical matter. At 224 pixels the remainder is "
        '6 of 50,176, and it takes a larger b. `group="mean"` is exactly '
        "invariant, and otherwise the same here."
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
    for metric, shown in METRICS.items():
        cells = [agreement(moved(have, "fills_base", "fill", fill, metric)) for fill in FILLS[1:]]
        rows.append([f"*order of methods as with mean, {shown}*", "1", *cells])
    return table(["SaCo", *FILLS], rows)


def agreement(row: Row) -> str:
    """Rank correlation over methods with its interval."""
    low, high = number(row["agreement_low"]), number(row["agreement_high"])
    return f"{number(row['agreement'])} [{low}, {high}]"


def fills_text(have: Summaries) -> str:
    """What it means."""
    flips = {fill: moved(have, "fills_base", "fill", fill, "saco")["flipped"] for fill in FILLS[1:]}
    most = max(flips, key=lambda fill: flips[fill])
    random = [have.cell("fills_base", r, "saco", f"fill={f}") for r in RANDOM for f in FILLS]
    covers = sum(row["ci_low"] <= 0 <= row["ci_high"] for row in random)
    cells = {f: have.cell("fills_base", "integrated_gradients", "saco", f"fill={f}") for f in FILLS}
    said = listed([f"{interval(row)} with {fill}" for fill, row in cells.items()])
    first = {
        fill: max(METHODS, key=lambda m: have.cell("fills_base", m, "saco", f"fill={fill}")["mean"])
        for fill in FILLS
    }
    heads = listed([f"{METHODS[method]} with {fill}" for fill, method in first.items()])
    return (
        "The paper has one fill and makes no claim. Random attribution stays near zero with all "
        f"({span(row['mean'] for row in random)}), if not quite: {covers} of {len(random)} "
        "intervals "
        f"cover 0, with inpaint {interval(random[4])} per pixel and {interval(random[9])} per "
        "patch "
        "do not. The verdict on methods depends on the fill: "
        f"integrated gradients have {said}. The highest mean has {heads}. Of all pairs of "
        f"methods {percent(flips[most])} change their order from mean to {most}. A likely reason: "
        "integrated gradients and the mean fill share their idea of “nothing there”, a grey; black "
        "is far from it. Run on one model only."
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
    rows.append(["*order of methods as in the first column*", "1", *agree, ""])
    return table(["", *PROPOSALS.values(), "chosen K = 5 / 10 / 20"], rows)


def dynamic_text(have: Summaries) -> str:
    """What it means."""
    verdicts = {
        metric: [have.cell("dynamic_base", m, metric)["verdict"] for m in METHODS]
        for metric in PROPOSALS
    }
    told = listed(
        [
            f"{10 - verdicts[metric].count('same')} of 10 with {words}"
            for metric, words in PROPOSALS.items()
        ]
    )
    random = {metric: have.cell("dynamic_base", "random_patch", metric) for metric in PROPOSALS}
    auto = random["saco(k=auto)"]
    ends = interval(random["saco(penalty=1)"]), interval(random["saco(penalty=2)"])
    return (
        "The reproduction proposes both without numbers. A K per map (by [our "
        "rule](protocol.md)) is "
        "mostly K = 5, because most maps are spread out, and so moves scores as K = 5 does. A "
        "penalty "
        "hardly changes the order of methods, but pushes random attribution per patch off zero "
        f"({ends[0]} and {ends[1]}; with a K per map it stays, {interval(auto)}), which is what "
        "SaCo is for. Told from random attribution are "
        f"{told}. "
        "Run on one model only."
    )


def granularity(have: Summaries) -> str:
    """Pixel-wise and matched random attribution, and how many methods are above each."""
    rows = []
    for name, words in MODELS.items():
        for metric in OTHERS:
            pixel, patch = (have.cell(name, random, metric) for random in RANDOM)
            counts = [outdone(have, name, metric, random)[:2] for random in RANDOM]
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
    """What nearest instead of bilinear does to each method."""
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
    return table(["nearest less bilinear", *METRICS.values()], rows)


def granularity_text(have: Summaries) -> str:
    """Does the conclusion survive?"""
    per_model = {
        name: sum(outdone(have, name, metric, "random")[0] for metric in OTHERS[:3])
        for name in MODELS
    }
    small = [count for name, count in per_model.items() if name != "c10_deit"]
    worse = {
        name: sum(matched(have, name, metric, "worse") for metric in OTHERS) for name in MODELS
    }
    saco_worse = {name: matched(have, name, "saco", "worse") for name in MODELS}
    turned = outdone(have, "c10_deit", "comprehensiveness", "random")[0]
    pixels, patches = (
        have.cell("units_base", "random", "aopc", f"units={unit}") for unit in ("pixels", "patches")
    )
    unequal = [have.cell("units_base", random, "saco", "units=patches") for random in RANDOM]
    agree = {
        metric: moved(have, "granularity_base", "upsample", "nearest", metric) for metric in METRICS
    }
    return (
        "**The papers' conclusion survives in part.** Random attribution per pixel does outdo "
        f"methods on AOPC, LOdds and AUC at 32/4, in {min(small)} to {max(small)} of 30 cases a "
        "model, and in "
        f"{per_model['c10_deit']} of 30 at 224/16, where it is the other way round: all methods "
        "are "
        f"better. There it outdoes {turned} of 10 on comprehensiveness instead, on which it is "
        "worse "
        "than every method at 32/4. So the metric alone does not do it. A likely reason: scattered "
        "pixels spoil every patch of 4 × 4, but leave a 16 × 16 patch of an enlarged image "
        "readable; "
        "but one model at 224/16, which also differs in size, training and teacher, cannot prove "
        "that. With random maps of the same granularity the other four metrics put a method "
        f"below random in {sum(worse.values())} of {40 * len(MODELS)} cases, SaCo in "
        f"{sum(saco_worse.values())} of {10 * len(MODELS)}; on the base model of CIFAR-10, where "
        "most "
        f"of them are ({worse['c10_base']} and {saco_worse['c10_base']}), they are largely the "
        "same "
        "methods. What remains is that only SaCo has a zero that means random attribution; the "
        "others need a random map beside them.\n\n"
        "**Upsampling alone** (2,000 images, base model of CIFAR-10) changes the cumulative "
        "metrics "
        "little and SaCo much: nearest instead of bilinear keeps the order of methods on an image "
        f"with a rank correlation of {agreement(agree['aopc'])} for AOPC, "
        f"{agreement(agree['saco'])} "
        "for SaCo. The bilinear map has a smooth order inside a patch which interpolation made, "
        "not the "
        "model; the nearest one has ties, which the tie rule orders. "
        "**Whole patches as units** take the advantage from random maps per pixel: their AOPC "
        "falls "
        f"from {interval(pixels)} to {interval(patches)}. But 64 patches make groups of 6 and 7, "
        f"and SaCo's zero shifts with them, to {interval(unequal[0])} per pixel and "
        f"{interval(unequal[1])} per patch: give a K that divides the number of units."
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
    "dynamic": dynamic,
    "dynamic text": dynamic_text,
    "dynamic commands": command_block("dynamic_base"),
    "granularity": granularity,
    "upsampling": upsampling,
    "granularity text": granularity_text,
    "granularity commands": command_block("granularity_base", "units_base"),
}
BLOCK = re.compile(r"(<!-- begin: ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, have: Summaries) -> str:
    """A page with its blocks made anew."""
    return BLOCK.sub(lambda part: f"{part[1]}{BLOCKS[part[2]](have)}\n{part[3]}", text)


# The pictures


class Shown:
    """As much of a result as plots read, from a summary."""

    def __init__(self, run: Mapping[str, Any]) -> None:
        self.manifest = run
        self.methods, self.metrics = list(run["methods"]), list(run["metrics"])

    def arrow(self, metric: str) -> str:
        """Which way is better."""
        return "↑" if self.manifest["metrics"][metric]["higher_is_better"] else "↓"

    def summary(self) -> Any:
        """The summary's rows."""
        return self._table("summary")

    def correlations(self) -> Any:
        """The correlations' rows."""
        return self._table("correlations")

    def verdicts(self) -> list[str]:
        """Whether anything was tested."""
        return list(self.manifest["verdicts"])

    def _table(self, name: str) -> Any:
        import pyarrow as pa

        return pa.Table.from_pylist(rows_of(self.manifest[name]))


def draw(have: Summaries) -> None:
    """Draw all pictures but the case study's, which needs the model (see the page)."""
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


def save(plot: Any, name: str) -> None:
    """Write a picture with few colours, which makes it small."""
    from PIL import Image

    file = plot.save(IMAGES / f"reproduction-{name}.png")
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


def main() -> int:
    """Write or check both pages."""
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
    print("\n".join(stale) or "reproduction: the page says what the summaries say")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
