"""The tables of the page on text, each with what it shows: runs, Table 2, ends, procedures, cost.

What a section needs stands with its heading, because a section without runs is left out.
"""

from __future__ import annotations

from filling import Row, Summaries, listed, number, table
from text_runs import (
    PROCEDURES,
    WORDS,
    Run,
    above,
    agrees,
    ahead_of,
    count,
    fewest,
    named,
    published,
    ranked,
    runs,
    shown,
    yes,
)

ROUNDED = 0.005
"""Tables 1 and 4 print whole percents: what lies within half a point may be the same."""
MODELS = {"bilstm": "BiLSTM-attention", "roberta": "RoBERTa"}


# What was run


def text_runs(have: Summaries) -> str:
    """Every run: data, model, seeds, levels, and what stands in for what."""
    rows = [
        [
            run.known.dataset,
            run.known.ours,
            str(len(run.seeds)),
            listed([PROCEDURES[name] for name in run.procedures]),
            level_words(run),
            f"{run.study['cost']['trainings']:,}",
            run.known.instead or "—",
        ]
        for relative in (True, False)
        for run in runs(have, relative=relative)
    ]
    heads = ["data", "model", "seeds", "procedures", "masked", "trainings", "what stands in"]
    return table(heads, rows, names=len(heads))


def level_words(run: Run) -> str:
    """The levels of a run in words."""
    steps = {b - a for a, b in zip(run.levels, run.levels[1:], strict=False)}
    unit = "%" if run.is_relative else "tokens"
    if len(steps) == 1:
        return f"{run.levels[0]} to {run.levels[-1]} {unit}, steps of {steps.pop()}"
    return f"{', '.join(map(str, run.levels))} {unit}"


# Table 2


def text_racu(have: Summaries) -> str:
    """RACU beside Table 2, all runs."""
    rows = []
    for run in runs(have):
        for name in [*run.measures, *(["mutual_information"] * run.has("mutual_information"))]:
            theirs, ours = published(run.theirs["racu"].get(name)), run.racu(name)
            rows.append(
                [
                    run.known.dataset,
                    model_words(run),
                    WORDS[name],
                    shown(theirs) if theirs else "—",
                    shown(ours),
                    str(ours["n"]) if ours else "0",
                    agrees(theirs, ours),
                ]
            )
    agreeing, compared = overlaps(have)
    said = f"Of {compared} intervals that can be compared {agreeing} overlap the paper's."
    if any(run.known.instead for run in runs(have)):
        said += " Where a model or its word vectors stand in, the same number is not expected."
    if any(len(run.seeds) < fewest() for run in runs(have)):
        said += " Fewer than three seeds stand one by one in round brackets."
    heads = ["data", "model", "RACU [%]", "paper", "ours", "seeds", "overlap"]
    return f"{said}\n\n{table(heads, rows, names=3)}"


def overlaps(have: Summaries) -> tuple[int, int]:
    """How many of our intervals of RACU overlap the paper's, and how many could."""
    found = [
        agrees(published(run.theirs["racu"][name]), run.racu(name))
        for run in runs(have)
        for name in run.measures
    ]
    known = [verdict for verdict in found if verdict in (yes(True), yes(False))]
    return known.count(yes(True)), len(known)


def text_overview(have: Summaries) -> str:
    """The picture of all runs, where there are several."""
    if len(runs(have)) < 2:
        return ""
    return "![The curves of every run, by Recursive ROAR](images/reproduction-text-all.png)"


def model_words(run: Run) -> str:
    """Our model, and the paper's if that is another."""
    theirs = MODELS[run.known.model]
    return run.known.ours if run.known.ours == theirs else f"{run.known.ours} for {theirs}"


# A section for each run


def text_by_run(have: Summaries) -> str:
    """A section for each run: picture, ends, what agrees."""
    parts = []
    drawn: set[str] = set()
    for run in runs(have):
        parts.append(f"### {run.title}")
        if run.known.dataset not in drawn:
            drawn.add(run.known.dataset)
            parts.append(picture(have, run))
        parts += [ends_table(run), "\n".join(f"- {line}" for line in remarks(run))]
    return "\n\n".join(parts)


def picture(have: Summaries, run: Run) -> str:
    """The link to the picture of a data set."""
    same = [one for one in runs(have) if one.known.dataset == run.known.dataset]
    words = f"{run.metric} on {run.known.dataset} against the share of tokens masked"
    models = listed([one.known.ours for one in same])
    return (
        f"![{words[0].upper()}{words[1:]}, {models}](images/reproduction-{picture_name(run)}.png)"
    )


def picture_name(run: Run) -> str:
    """The name of the picture of a data set."""
    return f"text-{run.known.dataset.lower().replace('-', '')}"


def ends_table(run: Run) -> str:
    """Tables 1, 3, 4 and 5 beside ours."""
    data, theirs = run.study["data"], run.paper
    sizes = [sizes_words(own) for own in (theirs["sizes"], data["sizes"])]
    is_word_model = run.known.model == "bilstm"
    length = str(theirs["length"]) if is_word_model else "—"
    rows = [
        ["train / validation / test texts (Table 3)", *sizes],
        ["mean length, special tokens included (Table 1)", length, number(data["mean_length"], 1)],
        [
            f"parameters (Table {5 if is_word_model else 6})",
            *map(parameter_words, (run.theirs["parameters"], run.study["model"]["parameters"])),
        ],
        *(
            [
                f"test {run.metric}, {words} [%] (Table {number_})",
                shown(published(run.theirs[part])),
                shown(run.point("random", k, run.procedures[0])),
            ]
            for k, words, part, number_ in (
                (0, "intact", "performance", 1),
                (100, "all masked", "masked", 4),
            )
        ),
        [
            "largest class alone [%] (Table 4)",
            number(theirs["majority"], 0),
            number(100 * data["majority"]["score"], 1),
        ],
    ]
    return table([run.title, "paper", "ours"], rows)


def parameter_words(parameters: int) -> str:
    """How many numbers a model learns.

    >>> parameter_words(55048), parameter_words(125_000_000)
    ('55,048', '125 million')
    """
    millions, rest = divmod(parameters, 1_000_000)
    return f"{parameters:,}" if rest else f"{millions} million"


def sizes_words(sizes: Row) -> str:
    """Texts of each split."""
    return " / ".join(f"{sizes[split]:,}" for split in ("train", "validation", "test"))


def remarks(run: Run) -> list[str]:
    """What agrees and what does not."""
    said = [
        *remark_instead(run),
        remark_racu(run),
        remark_order(run),
        remark_end(run, 0, "performance", "On the intact texts"),
        remark_end(run, 100, "masked", "With everything masked"),
        *remark_words(run),
    ]
    few = "fewer than three seeds"
    warnings = [line for line in run.study["warnings"] if few not in line]
    return [line for line in said if line] + [f"The run warns: {line}" for line in warnings]


def remark_instead(run: Run) -> list[str]:
    """What stands in for what, and options that are not the paper's."""
    said = []
    if run.known.instead:
        vectors = run.study.get("vectors")
        known = (
            f"; {vectors['words']:,} of {run.study['data']['vocabulary']:,} words have one"
            if vectors
            else ""
        )
        said.append(f"What stands in: {run.known.instead}{known}.")
    recipe, asked = run.study["model"]["recipe"], run.theirs["recipe"]
    if any(recipe[key] != value for key, value in asked.items()):
        own, other = (
            f"{found['epochs']} epochs in batches of {found['batch_size']}"
            for found in (recipe, asked)
        )
        said.append(f"Trained for {own}; in the paper {other}.")
    said += run.study["data"].get("notes") or []
    if run.options:
        said.append(f"Measures with options of their own: {', '.join(run.options)}.")
    if run.levels != list(range(0, 101, 10)):
        said.append(
            f"Masked at {', '.join(map(str, run.levels))} %: fewer levels than the paper's eleven, "
            "so RACU is an area under fewer points, and recursion ranks again less often."
        )
    return said


def remark_racu(run: Run) -> str:
    """RACU beside Table 2 and beside random."""
    pairs = {name: (published(run.theirs["racu"][name]), run.racu(name)) for name in run.measures}
    known = {name: pair for name, pair in pairs.items() if pair[1] is not None}
    if not known:
        return "RACU is not defined: random masking loses nothing."
    if len(run.seeds) < fewest():
        positive = [n for n, (_, own) in known.items() if own and min(own["values"]) > 0]
        inside = [f"{WORDS[n]} {agrees(*pair)}" for n, pair in known.items()]
        return (
            f"RACU, {count(len(run.seeds), 'seed')} only: above random masking's with every seed "
            f"for {named(positive) if positive else 'no measure'}; of the paper's intervals: "
            f"{listed(inside)}."
        )
    same = [name for name, pair in known.items() if agrees(*pair) == yes(True)]
    apart = [
        f"{WORDS[n]} {shown(own)} for {shown(theirs)}"
        for n, (theirs, own) in known.items()
        if n not in same
    ]
    over, theirs_over = (
        [name for name, pair in known.items() if above(pair[place])] for place in (1, 0)
    )
    return (
        f"RACU overlaps Table 2 for {len(same)} of {len(known)} measures"
        + (f"; not {listed(apart)}" if apart else "")
        + f". Surely above random masking: {named(over) if over else 'none'}; in the paper "
        + ("the same." if over == theirs_over else f"{named(theirs_over) or 'none'}.")
    )


def remark_order(run: Run) -> str:
    """Which measure is first, here and in the paper."""
    known = [name for name in run.measures if run.racu(name) is not None]
    if not known:
        return ""
    theirs = max(known, key=lambda name: float(run.theirs["racu"][name][0]))
    ours = ranked(run)[0]
    behind = [n for n in known if n != ours and ours not in ahead_of(run, n)]
    sure = f", not surely before {named(behind)}" if behind and run.is_told else ""
    return (
        f"The highest RACU here: {WORDS[ours]}, {shown(run.racu(ours))}{sure}; in the paper: "
        f"{WORDS[theirs]}, {number(run.theirs['racu'][theirs][0], 1)}."
    )


def remark_end(run: Run, k: int, part: str, words: str) -> str:
    """An end of the curves beside the paper's."""
    ours, theirs = run.point("random", k, run.procedures[0]), published(run.theirs[part])
    if theirs is None:
        return f"{words}: {shown(ours)} %."
    told = overlap_words(agrees(theirs, ours), agrees(theirs, ours, ROUNDED))
    return f"{words} {shown(ours)} % {run.metric}, paper {shown(theirs)}: {told}."


def overlap_words(exact: str, rounded: str) -> str:
    """Whether intervals overlap, as printed or once the paper's rounding is granted."""
    if yes(True) not in (exact, rounded):
        return "no overlap" if rounded == yes(False) else rounded
    return "overlap" if exact == yes(True) else "overlap once the paper's rounding is granted"


def remark_words(run: Run) -> list[str]:
    """Mutual information, which knows no model."""
    row = run.racu("mutual_information")
    if row is None or not run.measures:
        return []
    best = ranked(run)[0]
    gap = run.between(best, "mutual_information")
    words = run.study.get("telling_words", [])
    told = f" Its first words: {', '.join(words)}." if words else ""
    return [
        "Mutual information of word and class, which asks no model and is in the program, not in "
        f"the paper, has a RACU of {shown(row)}, {shown(gap, '+')} points beside {WORDS[best]}."
        f"{told} RACU rewards what removes the class's signal, whether or not a model was asked."
    ]
