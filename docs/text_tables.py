"""The tables of the page on text: what was run, both ends of all curves, a section for each run.

Sections include their headings, because a section without runs is left out.
"""

from __future__ import annotations

from filling import Row, Summaries, listed, number, percent, table
from text_curves import TOP, top_share
from text_numbers import above, agrees, count, fewest, shown, turned, yes
from text_runs import (
    CHANCE,
    MUTUAL,
    PROCEDURES,
    TOKENS,
    WORDS,
    Run,
    ahead_of,
    level_span,
    level_words,
    moved,
    named,
    published,
    published_racu,
    ranked,
    runs,
    theirs_ranked,
)

ROUNDED = 0.005
"""Tables 1 and 4 print whole percentages: differences of half a point may be rounding."""


# What was run


def text_runs(have: Summaries) -> str:
    """Every run: data, model, seeds, levels and substitutes."""
    own = every_run(have)
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
        for run in own
    ]
    heads = ["data", "model", "seeds", "procedures", "masked", "trainings", "substitutes"]
    shown_ = table(heads, rows, names=len(heads))
    cut = [cut_words(run) for run in own if run.cut_at is not None]
    if not cut:
        return shown_
    return f"{shown_}\n\nCut off when the GPU time ran out, to be completed: {listed(cut)}."


def every_run(have: Summaries) -> list[Run]:
    """Runs in percent, then those in tokens."""
    return [*runs(have), *runs(have, relative=False)]


def cut_words(run: Run) -> str:
    """Where a run was cut off."""
    if run.is_relative:
        return f"{run.short} (after {run.cut_at} %)"
    return f"{run.short} one token at a time (after {run.cut_at} of {TOKENS} tokens)"


def text_chance(have: Summaries) -> str:
    """False positive rates over few seeds, and what "significant" means on the page."""
    found = have.studies.get(CHANCE)
    if found is None:
        return (
            "*Significant* means that both the BCa and the Student 95 % interval exclude the limit."
        )
    three, five = (found[str(seeds)] for seeds in (3, 5))
    return (
        "*Significant* means that both the BCa and the Student 95 % interval over seeds exclude "
        "the limit, which is zero unless another is named. With few seeds the BCa interval alone "
        "is too narrow: for normally distributed numbers around zero it excludes zero in "
        f"{percent(five['bca'])} of cases with five seeds and in {percent(three['bca'])} with "
        f"three; both intervals do so in {percent(five['both'])} and {percent(three['both'])}."
    )


def text_ends(have: Summaries) -> str:
    """Both ends of all runs compared with Tables 1 and 4."""
    rows = [
        [
            run.short,
            run.metric,
            shown(published(run.theirs["performance"])),
            shown(run.point("random", 0, run.procedures[0])),
            shown(published(run.theirs["masked"])),
            shown(run.point("random", 100, run.procedures[0])),
            number(run.paper["majority"], 0),
            number(100 * run.study["data"]["majority"]["score"], 1),
        ]
        for run in runs(have)
    ]
    heads = [
        *("test score [%]", "", "intact: paper (Table 1)", "ours"),
        *("all masked: paper (Table 4)", "ours", "largest class alone: paper (Table 4)", "ours"),
    ]
    return table(heads, rows, names=2)


def text_overview(have: Summaries) -> str:
    """The figure of all runs, if there are several."""
    if len(runs(have)) < 2:
        return ""
    return "![The curves of every run, by Recursive ROAR](images/reproduction-text-all.png)"


# A section for each run


def text_by_run(have: Summaries) -> str:
    """A section for each run: figure, data, what agrees."""
    parts = []
    drawn: set[str] = set()
    for run in runs(have):
        parts.append(f"### {run.title}")
        if run.known.dataset not in drawn:
            drawn.add(run.known.dataset)
            parts.append(picture(have, run))
        parts += [data_table(run), "\n".join(f"- {line}" for line in remarks(run))]
        if not run.is_comparable:
            parts.append(apart_table(have, run))
    return "\n\n".join(part for part in parts if part)


def apart_table(have: Summaries, run: Run) -> str:
    """The curves and RACU of a run whose levels are not comparable with Table 2."""
    top, places = TOP in run.levels, range(len(run.levels))
    rows = [
        [
            WORDS[name],
            *(number(100 * float(run.values(name)[:, i].mean()), 1) for i in places),
            shown(top_share(run, name)) if top else "—",
            shown(run.racu(name)),
        ]
        for name in run.all_measures
    ]
    heads = [
        f"{run.short}, {run.metric} [%] at",
        *(f"{k} %" for k in run.levels),
        f"share of the total loss by {TOP} % [%]",
        f"RACU over {level_span(run.levels)} % [%]",
    ]
    wide, effect = run.levels[-1] - run.levels[-2], moved(have, run.levels)
    said = (
        f"{table(heads, rows)}\n\nIn this RACU the last {wide} points are a straight line between "
        "two trainings: it is not comparable with Table 2, and there is no verdict."
    )
    if effect is None:
        return said
    points = number(100 * effect, 1)
    return (
        f"{said} Leaving out the same levels changes the RACU of our full runs by up to {points}."
    )


def picture(have: Summaries, run: Run) -> str:
    """The link to the figure of a data set."""
    same = [one for one in runs(have) if one.known.dataset == run.known.dataset]
    words = f"{run.metric} on {run.known.dataset} against the share of tokens masked"
    models = listed([one.known.ours for one in same])
    return (
        f"![{words[0].upper()}{words[1:]}, {models}](images/reproduction-{picture_name(run)}.png)"
    )


def picture_name(run: Run) -> str:
    """The file name of the figure of a data set."""
    return f"text-{run.known.dataset.lower().replace('-', '')}"


def data_table(run: Run) -> str:
    """Tables 1, 3 and 5 or 6 compared with ours: texts and model."""
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
    ]
    if is_word_model and theirs["vocabulary"]:
        words = [f"{own:,}" for own in (theirs["vocabulary"], data["vocabulary"])]
        rows.insert(2, ["vocabulary (the paper's from its parameters)", *words])
    return table([run.title, "paper", "ours"], rows)


def parameter_words(parameters: int) -> str:
    """The number of parameters of a model.

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
        *remark_parameters(run),
        *remark_levels(run),
        *([remark_racu(run), remark_order(run)] if run.is_comparable else []),
        remark_ends(run),
        *remark_words(run),
    ]
    few = "fewer than three give no interval"  # visible in the tables
    warnings = [line for line in run.study["warnings"] if few not in line]
    return [line for line in said if line] + [f"The run warns: {line}" for line in warnings]


def remark_instead(run: Run) -> list[str]:
    """Substitutes, and options that are not the paper's."""
    said = []
    if run.known.instead:
        vectors = run.study.get("vectors") if run.known.model == "bilstm" else None
        known = (
            f"; {vectors['words']:,} of {run.study['data']['vocabulary']:,} words have one"
            if vectors
            else ""
        )
        said.append(f"Substitute: {run.known.instead}{known}.")
        if vectors:
            said.append(vector_words(run))
    recipe, asked = run.study["model"]["recipe"], run.theirs["recipe"]
    if any(recipe[key] != value for key, value in asked.items()):
        own, other = (
            f"{found['epochs']} epochs in batches of {found['batch_size']}"
            for found in (recipe, asked)
        )
        said.append(f"Trained for {own}; in the paper {other}.")
    notes = run.study["data"].get("notes") or []
    said += [line for line in notes if "left out of 'all'" not in line]
    if run.options:
        said.append(f"Measures with options of their own: {', '.join(run.options)}.")
    return said


def vector_words(run: Run) -> str:
    """The effect of smaller vectors."""
    share = run.study["model"]["parameters"] / run.theirs["parameters"]
    return (
        f"The model has {percent(share)} of the paper's parameters. Gradient, a norm over the "
        "vocabulary, and input × gradient depend on the embedding."
    )


def remark_parameters(run: Run) -> list[str]:
    """Where the vocabulary differs; Table 5 prints one number for all bAbI tasks."""
    own, needed = run.study["data"]["vocabulary"], run.paper["vocabulary"]
    if run.known.model == "bilstm" and needed and own != needed:
        more = "more" if own > needed else "fewer"
        return [f"The vocabulary has {count(abs(own - needed), 'word')} {more} than the paper's."]
    theirs, ours = run.theirs["parameters"], run.study["model"]["parameters"]
    if run.known.dataset not in ("bAbI-2", "bAbI-3") or theirs == ours:
        return []
    return [
        f"Table 5 prints bAbI-1's {theirs:,} parameters for this task, too; a vocabulary of "
        f"{run.study['data']['vocabulary']} words needs {ours:,}, also in the authors' program."
    ]


def remark_levels(run: Run) -> list[str]:
    """The effect of levels other than the paper's."""
    if run.is_full:
        return []
    if run.cut_at is None:
        return [
            f"Masked at {level_span(run.levels)} %: fewer levels than the paper's eleven, so RACU "
            "is computed from fewer points, and the recursion ranks tokens less often."
        ]
    return [
        f"Masked up to {run.cut_at} %, then {run.levels[-1]} %: ranked as often as in the paper up "
        f"to there, but between {run.cut_at} and {run.levels[-1]} % RACU is interpolated linearly."
    ]


def remark_racu(run: Run) -> str:
    """RACU compared with Table 2 and with random masking."""
    pairs = {name: (published_racu(run, name), run.racu(name)) for name in run.measures}
    known = {name: pair for name, pair in pairs.items() if pair[1] is not None}
    if not known:
        return "RACU is not defined: random masking loses nothing."
    theirs_over = [name for name, (theirs, _) in known.items() if above(theirs)]
    if len(run.seeds) < fewest():
        over = [n for n, (_, own) in known.items() if own and min(own["values"]) > 0]
        how = f"Above random masking with each of {count(len(run.seeds), 'seed')}"
        same = ""
    else:
        over = [name for name, (_, own) in known.items() if above(own)]
        how = "Significantly above random masking"
        apart = [WORDS[name] for name, pair in known.items() if agrees(*pair) != yes(True)]
        same = f"RACU overlaps Table 2 for {len(known) - len(apart)} of {len(known)} measures"
        same += f"; not for {listed(apart)}. " if apart else ". "
    theirs_too = "the same" if over == theirs_over else named(theirs_over) or "none"
    return f"{same}{how}: {named(over) or 'none'}; in the paper, by its intervals, {theirs_too}."


def remark_order(run: Run) -> str:
    """The order of the measures, here and in the paper."""
    ours, theirs = ranked(run), theirs_ranked(run)
    if not ours or run.racu(ours[0]) is None:
        return ""
    behind = [name for name in ours[1:] if ours[0] not in ahead_of(run, name)]
    is_close = behind and run.is_conclusive
    close = f", with no significant difference from {named(behind)}" if is_close else ""
    first = f"The highest RACU is that of {WORDS[ours[0]]}{close}"
    if ours == theirs:
        return f"{first}. The order is the same as in the paper."
    said = "as in the paper" if ours[0] == theirs[0] else f"in the paper {WORDS[theirs[0]]}'s"
    moves = {name: ours.index(name) - theirs.index(name) for name in ours}
    most = max(map(abs, moves.values()))
    each = [
        f"{WORDS[name]} from rank {theirs.index(name) + 1} to {ours.index(name) + 1}"
        for name, move in moves.items()
        if abs(move) == most
    ]
    return f"{first}; {said}. Largest change of rank: {listed(each)}, of {len(ours)}."


def remark_ends(run: Run) -> str:
    """Both ends of the curves compared with Tables 1 and 4."""
    said = []
    for k, part, words in ((0, "performance", "intact"), (100, "masked", "all masked")):
        ours, theirs = run.point("random", k, run.procedures[0]), published(run.theirs[part])
        exact, rounded = agrees(theirs, ours), agrees(theirs, ours, ROUNDED)
        said.append(f"{words}: {overlap_words(exact, rounded)}")
    return f"Ends of the curves and Tables 1 and 4: {'; '.join(said)}."


def overlap_words(exact: str, rounded: str) -> str:
    """Whether intervals overlap, as printed or once the paper's rounding is allowed for."""
    if yes(True) not in (exact, rounded):
        return "no overlap" if rounded == yes(False) else rounded
    return "overlap" if exact == yes(True) else "overlap once the paper's rounding is allowed for"


def remark_words(run: Run) -> list[str]:
    """Mutual information, which uses no model."""
    row = run.racu(MUTUAL)
    if row is None or not run.measures:
        return []
    best = ranked(run)[0]
    gap = run.between(best, MUTUAL)
    words = run.study.get("telling_words", [])
    top = f" Its top words: {', '.join(words)}." if words else ""
    is_less = gap is not None and gap["mean"] < 0
    apart = f"{shown(turned(gap) if gap is not None and is_less else gap)} points "
    apart += f"{'less' if is_less else 'more'} than {WORDS[best]}"
    return [
        "Mutual information between word and class, which uses no model and is in the authors' "
        f"program but not in the paper, has a RACU of {shown(row)}, {apart}.{top}"
    ]
