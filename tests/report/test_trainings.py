"""Runs of retraining on the page, in figures and tables, in comparisons and in a terminal."""

import csv
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import faithscope as fs
from bags import BagLearner, bag_texts
from commands import fails
from commands import run as command
from conftest import randn, tiny_vit
from faithscope.cli.console import show_result
from faithscope.data.text_sources import describe, load_text
from faithscope.data.vocabulary import Vocabulary
from faithscope.report import lines
from faithscope.report.lines import draw_synthetic
from faithscope.report.page import render_page
from faithscope.report.plots import write_figures
from faithscope.report.tables import write_tables
from faithscope.report.texts import MOST_WORDS
from faithscope.report.trainings import racu_table, sparsity_rows
from faithscope.runs.cards import Vectors
from faithscope.verdicts.statistics import seed_interval
from pages import Page
from roar_runs import make_roar, with_rows

EVIL = "<script>alert('word')</script>"


@pytest.fixture(scope="module")
def result() -> fs.Result:
    return make_roar()


@pytest.fixture(scope="module")
def page(result: fs.Result) -> str:
    return render_page(result)


# ------------------------------------------------------------------ the page


def test_page_holds_the_numbers(result: fs.Result, page: str) -> None:
    text = Page(page).text
    assert result.headline() in text
    for row in result.racu().to_pylist():
        mean, above, below = (
            f"{100 * value:.1f}"
            for value in (row["mean"], row["ci_high"] - row["mean"], row["mean"] - row["ci_low"])
        )
        assert re.search(rf"{mean}\s*\+{above} −{below}", text)
    for row in result.curves().to_pylist():
        assert f"{100 * row['mean']:.1f}" in text
    for row in result.summary().to_pylist():
        if row["n"]:
            assert f"{row['mean']:.3f}" in text
            assert f"[{row['ci_low']:.3f}, {row['ci_high']:.3f}]".replace("-", "−") in text
    assert "the most common class alone would score 14.9 %" in text
    assert "with every token masked 15.0 %" in text
    assert "55,048" in text and "415 trainings" in text
    assert not re.search(r"[\d\]] %", page[: page.rindex("<script>")])  # they stay together


def test_page_needs_nothing_else(page: str) -> None:
    reader = Page(page)
    assert "default-src 'none'" in page
    assert all(link.startswith("#") for link in reader.attributes("src", "href"))
    assert not re.search(r"@import|url\((?!#)", page)
    assert reader.tags.count("script") == 1
    assert reader.tags.count("svg") == 2


def test_names_in_a_page_do_nothing() -> None:
    evil = make_roar(data=EVIL, model="a & <b>", words=("one", EVIL, "two"), label="<i>office")
    reader = Page(render_page({EVIL: evil, "other": evil}, title=EVIL))
    assert reader.tags.count("script") == 1
    assert not {"b", "i"} & set(reader.tags)
    assert any(word == EVIL for _, word in reader.words)
    assert EVIL in reader.text and "<i>office" in reader.text


def test_example_is_masked_step_by_step(result: fs.Result, page: str) -> None:
    example = examples(result, "attention", "recursive")
    key = 11  # words of the legend
    count = len(example[0]["eligible"])
    words = Page(page).words[key:]
    before: set[int] = set()
    for step, row in enumerate(example):
        line = words[step * count : (step + 1) * count]
        assert [word for _, word in line] == row["words"][1:-1]  # without special tokens
        places = list(zip(row["eligible"], line, strict=True))
        gone = {at for at, (look, _) in places if "gone" in look or "new" in look}
        new = {at for at, (look, _) in places if "new" in look}
        assert gone == set(row["masked"])
        assert new == set(row["masked"]) - before
        before = gone
    strongest = int(np.argmax(example[0]["scores"][1:-1]))
    assert "plain-8 new" in words[strongest][0]
    assert "[CLS]" not in page


def examples(run: fs.Result, measure: str, procedure: str) -> list[dict[str, Any]]:
    """One text under one measure, level by level."""
    return [
        row
        for row in run.examples.to_pylist()
        if (row["measure"], row["procedure"]) == (measure, procedure)
    ]


def racu_rows(run: fs.Result) -> list[dict[str, Any]]:
    """The numbers of the table of RACU."""
    return list(racu_table({"": run}).records)


def changed_examples(run: fs.Result, **values: Any) -> fs.Result:
    return with_rows(run, "examples", [{**row, **values} for row in run.examples.to_pylist()])


def with_texts(run: fs.Result, *words: tuple[str, ...]) -> fs.Result:
    """A run that keeps several texts."""
    kept = [
        {**row, "index": index, "words": ["[CLS]", *text, "[EOS]"]}
        for index, text in enumerate(words)
        for row in make_roar(words=text).examples.to_pylist()
    ]
    return with_rows(run, "examples", kept)


def test_texts_are_chosen_and_the_best_known_comes_first(result: fs.Result) -> None:
    run = with_texts(
        result, ("an", "[UNK]", "word"), tuple("a text of more than six words".split())
    )
    text = render_page(run)
    options = re.findall(r'<option value="(\d)">([^<]*)</option>', text)
    assert options == [("0", "2: a text of more than six …"), ("1", "1: an [UNK] word")]
    assert text.count('<div class="sample">') == 2
    assert text.index("Text 2 of the test split") < text.index("Text 1 of the test split")
    assert 'class="text-picker"' not in render_page(result)  # one text needs no choice


def test_colours_and_lines_are_explained(result: fs.Result, page: str) -> None:
    text = Page(page).text
    assert "scaled within a row" in text and "The last row masks what is left" in text
    assert (
        "by Recursive ROAR those of the model trained at the level before, by ROAR always" in text
    )
    tokens = render_page(make_roar(strategy="count", procedures=("recursive",)))
    assert "The last row" not in tokens and "by ROAR always" not in tokens
    for name in (*result.methods, "most common class alone"):
        assert re.search(
            rf'<li><span class="sign" style="color: var\(--[^>]*>[^<]*</span> {name}</li>', page
        )


def test_what_only_masks_can_say(result: fs.Result) -> None:
    paired = Page(render_page(result)).text
    assert "still reads the second text, which is never masked" in paired.replace("\n", " ")
    lone = render_page(changed_examples(result, auxiliary=None))
    assert "A model that sees only masks can know the length of a text: " in lone
    none = render_page(with_rows(result, "examples", []))
    assert "and a second text if it reads one" in none


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        (Vectors(words=1234, size=300), "300 numbers each, for 1,234 words of the vocabulary"),
        (None, "embeddings drawn at random"),
    ],
)
def test_page_says_what_embeddings_start_from(vectors: Vectors | None, said: str) -> None:
    assert said in render_page(make_roar(vectors=vectors))


def test_manifest_says_how_many_words_have_a_vector(tmp_path: Path) -> None:
    (tmp_path / "two.vec").write_text("2 3\nJohn 1 2 3\nnobody 4 5 6\nhallway 7 8 9\n")
    told = []
    for options in ("", f"(vectors={tmp_path / 'two.vec'})"):
        data = load_text(f"bundled:babi1{options}", limit=9)
        told.append(describe(data, Vocabulary.of(data).encode(data))["vectors"])
    assert told == [None, {"words": 2, "size": 3}]


def test_equal_procedures_are_shown_once() -> None:
    run = make_roar(measures=("attention", "random"))
    first = examples(run, "attention", "roar")
    same = [
        {**row, "measure": measure, "procedure": procedure}
        for measure in run.methods
        for procedure in run.procedures
        for row in first
    ]
    text = Page(render_page(with_rows(run, "examples", same))).text
    assert "attention, both procedures" in text and "attention, ROAR" not in text


def test_long_texts_are_cut_and_texts_without_scores_are_plain() -> None:
    words = tuple(f"word{i}" for i in range(MOST_WORDS + 7))
    long = make_roar(words=words, measures=("attention", "random"))
    reader = Page(render_page(changed_examples(long, scores=[math.nan] * (len(words) + 2))))
    assert "… and 7 more" in reader.text and f"word{MOST_WORDS}" not in reader.text
    assert not any("plain-8" in look for look, _ in reader.words[11:])
    assert "masked step by step" not in render_page(with_rows(long, "examples", []))


def test_warnings_and_few_seeds_are_said() -> None:
    lone = make_roar(seeds=1)
    text = render_page(lone, notes=["Look out."])
    assert 'class="warning">Look out.' in text
    assert lone.warnings()
    for warning in lone.warnings():
        assert warning in Page(text).text
    assert "▲ better</small>" not in text
    two = make_roar(seeds=2)
    assert {row["verdict"] for row in racu_rows(two)} == {""}
    why = "No interval is shown, because fewer than three seeds are too few for one"
    assert Page(render_page(two)).text.count(why) == 2  # of RACU and of the curves
    latex = racu_table({"": two}).latex()
    assert why in latex and "^{" not in latex
    both = Page(render_page({"two": two, "three": make_roar(data="sst", seeds=3)})).text
    overview = both[both.index("Faithfulness (RACU)") : both.index("With nothing")]
    assert f"{why}, where there is none." in overview
    assert not lines.performance(two).figure.axes[0].collections
    assert why not in render_page(make_roar(seeds=3))


def test_protocol_is_told_in_words(page: str) -> None:
    assert "<dd>yes<small>Sparsity counts special tokens, too" in page and "<dd>True" not in page
    kept = "The RACU of a seed is kept within −100 % and 100 %."
    assert kept in Page(page).text
    assert kept not in Page(render_page(make_roar(metrics=("racu(clip=false)",)))).text


def test_every_metric_is_explained(result: fs.Result, page: str) -> None:
    text = Page(page).text
    for card in result.manifest.metrics.values():
        assert card.equation in text and card.paper in text
    for sentence in (*result.verdicts(), *result.metric_verdicts()):
        assert sentence in text


def test_what_is_wider_than_the_screen_has_a_hint(page: str) -> None:
    assert page.count('class="scroll"') == page.count('class="hint"') > 4
    assert "integrated_<wbr>gradients" in page


def test_several_runs_share_a_page(result: fs.Result) -> None:
    other = make_roar(data="sst", model="minilm", measures=("gradient", "random"), seeds=3)
    tokens = make_roar(strategy="count", levels=(0, 1, 2), procedures=("recursive",))
    text = render_page({"one": result, "two": other, "three": tokens}, title="study")
    reader = Page(text)
    assert reader.tags.count("article") == 3
    for label in ("one", "two", "three"):
        assert f">{label}</a>" in text
    assert "3 runs: model bilstm, minilm; data babi-1, sst; seeds" in reader.text
    assert "Of these runs one and two differ in seeds: compare their RACU" in reader.text
    assert "three masks a few tokens and has no RACU" in reader.text
    few = make_roar(levels=(0, 50, 100), procedures=("recursive",))
    both = {"one": result, "few": few}
    assert "These runs differ in levels and procedures: compare" in render_page(both)
    free = make_roar(metrics=("racu(clip=false)", "end"))
    assert "differ in clipping: compare" in render_page({"one": result, "free": free})
    assert "differ in" not in render_page({"one": result, "again": result})
    overview = text[text.index("<main") : text.index("</main>")]
    assert overview.count(">sst</th>") == 3  # by two procedures, and how it ends
    with pytest.raises(fs.FaithscopeError, match="no finished run"):
        render_page({})


def test_both_kinds_of_run_share_a_page(result: fs.Result) -> None:
    reader = Page(render_page({"texts": result, "images": image_run()}))
    assert reader.tags.count("article") == 2
    assert "Faithfulness (RACU)" in reader.text and "Image by image" in reader.text


def test_models_that_learnt_nothing_give_no_verdict() -> None:
    unlearned = make_roar(majority=1.0)
    assert unlearned.trained.is_unlearned
    assert {row["verdict"] for row in racu_rows(unlearned)} == {""}
    text = Page(render_page(unlearned)).text
    assert text.count("bilstm did not learn") == 1  # the headline says so already


def test_verdicts_follow_the_intervals() -> None:
    rows = racu_rows(make_roar(shift=-0.12))
    found = {row["measure"]: row["verdict"] for row in rows if row["procedure"] == "recursive"}
    assert found["attention"] == "better"
    for row in rows:  # Student's t may doubt what the bootstrap is sure of
        side = (row["ci_low"] > 0) - (row["ci_high"] < 0)
        assert row["verdict"] in ("same", {1: "better", -1: "worse", 0: "same"}[side])
    assert "worse" in {row["verdict"] for row in racu_rows(make_roar(shift=-0.2))}


# ------------------------------------------------------------------ figures and tables


def test_curves_draw_means_and_bands(result: fs.Result) -> None:
    figure = lines.performance(result).figure
    assert [axes.get_title(loc="left")[:4] for axes in figure.axes] == ["Recu", "ROAR"]
    curves = figure.axes[0].get_lines()
    drawn = curves[0].get_ydata()
    assert np.allclose(drawn, result.trained.values("attention", "recursive").mean(0))
    assert np.allclose(curves[-1].get_ydata(), 0.149)  # the most common class
    assert curves[-2].get_color() == "#5b6675"  # random, in grey
    assert len(figure.axes[0].collections) == len(result.methods)
    names = [name for _, _, name in lines.performance(result).legend]
    assert names == [*result.methods, "most common class alone"]
    one = lines.performance(make_roar(procedures=("recursive",), metric="cross_entropy")).figure
    assert len(one.axes) == 1
    fewer = lines.performance(make_roar(measures=("gradient", "random"))).figure
    assert fewer.axes[0].get_lines()[0].get_color() == curves[1].get_color()


def test_sparsity_is_the_mean_over_seeds(result: fs.Result) -> None:
    rows = sparsity_rows(result)
    own = [r for r in rows if (r["measure"], r["kind"], r["x"]) == ("gradient", "count", 3)]
    values = [
        row["value"]
        for row in result.sparsity.to_pylist()
        if (row["measure"], row["kind"], row["x"]) == ("gradient", "count", 3)
    ]
    assert (own[0]["mean"], own[0]["ci_low"], own[0]["ci_high"]) == seed_interval(values)
    assert lines.sparsity(with_rows(result, "sparsity", [])) is None
    plot = lines.sparsity(result)
    assert plot is not None and all(axes.get_title(loc="left") for axes in plot.figure.axes)


def test_files_are_written(result: fs.Result, tmp_path: Path) -> None:
    runs = {"a": result, "b": make_roar(data="sst", seeds=2)}
    figures = {path.name for path in write_figures(runs, tmp_path / "figures")}
    assert figures == {
        f"{run}-{name}.{form}"
        for run in runs
        for name in ("curves", "sparsity")
        for form in ("pdf", "png")
    }
    tables = {path.name: path for path in write_tables(runs, tmp_path / "tables")}
    kinds = ("racu", "curves", "majority", "sparsity", "time", "a-scores", "b-scores")
    expected = {f"{kind}.{form}" for kind in kinds for form in ("md", "tex", "csv")}
    assert set(tables) == expected | {"a-comparisons.csv", "b-comparisons.csv"}
    rows = list(csv.DictReader(tables["racu.csv"].open()))
    assert len(rows) == 2 * 2 * 5
    means = {(row["measure"], row["procedure"]): row["mean"] for row in result.racu().to_pylist()}
    for row in rows[:10]:
        assert float(row["mean"]) == means[row["measure"], row["procedure"]]
    markdown = tables["racu.md"].read_text()
    assert "| data set | model | procedure | attention |" in markdown
    assert "| babi-1 | bilstm | Recursive ROAR |" in markdown
    curves = list(csv.DictReader(tables["curves.csv"].open()))
    assert len(curves) == 2 * 2 * 6 * 11
    assert "| 100 % |" in tables["curves.md"].read_text()
    majority = next(csv.DictReader(tables["majority.csv"].open()))
    assert float(majority["masked_mean"]) == result.trained.at_level(100)["mean"]
    scores = list(csv.DictReader(tables["a-scores.csv"].open()))
    assert len(scores) == 2 * 6 * 3
    assert "| attention/recursive |" in tables["a-scores.md"].read_text()


def test_racu_is_written_as_in_the_paper(result: fs.Result) -> None:
    table = racu_table({"": result})
    first = next(iter(racu_rows(result)))
    mean, above, below = (
        f"{100 * value:.1f}"
        for value in (
            first["mean"],
            first["ci_high"] - first["mean"],
            first["mean"] - first["ci_low"],
        )
    )
    assert str(table.rows[0][table.names]) == f"{mean} +{above} −{below} *"
    assert f"${mean}^{{+{above}}}_{{-{below}}}$" in table.latex()
    named = racu_table({"a": make_roar(data="50 % & a_b")}).latex()
    assert r"50 \% \& a\_b" in named
    undefined = with_rows(result, "trainings", level_rows(result))
    assert {str(cell) for row in racu_table({"": undefined}).rows for cell in row[3:]} == {"—"}


def level_rows(run: fs.Result) -> list[dict[str, Any]]:
    """Trainings of which none loses anything."""
    return [{**row, "value": 0.5} for row in run.trainings.to_pylist()]


def test_runs_of_the_same_names_stay_apart(result: fs.Result, tmp_path: Path) -> None:
    tokens = make_roar(strategy="count", measures=("attention", "random"))
    runs = {"before": result, "after": make_roar(shift=0.1), "tokens": tokens}
    runs["other"] = make_roar(data="sst")
    for file in write_tables(runs, tmp_path):
        if file.suffix == ".md" and not file.stem.endswith("scores"):
            # the same name in every row of every table
            rows = [line.split(" | ")[0].strip("| ") for line in file.read_text().splitlines()[2:]]
            expected = {"babi-1 (before)", "babi-1 (after)", "babi-1 (tokens)", "sst"}
            if file.stem == "racu":  # which a run of a few tokens has not
                expected.remove("babi-1 (tokens)")
            assert set(filter(None, rows[:-1])) == expected
    page = render_page(runs)
    overview = page[page.index("<main") : page.index("</main>")]
    assert overview.count("babi-1 <wbr>(") == 7


def test_times_have_the_same_digits(result: fs.Result, tmp_path: Path) -> None:
    write_tables({"a": result}, tmp_path)
    times = re.findall(r"[\d.]+ s\b", (tmp_path / "time.md").read_text())
    assert len(times) > 9 and all(re.fullmatch(r"\d+\.\d\d s", time) for time in times)


def test_token_steps_have_no_end_of_their_own() -> None:
    run = make_roar(strategy="count")
    assert math.isnan(run.trained.at_level(100)["mean"]) and run.trained.at_level(0)["mean"] == 1.0
    page = render_page(run)
    assert "Faithfulness (RACU)" not in page and "everything masked" not in page
    assert ">tokens masked</th>" in page and '<th scope="col">10</th>' in page
    assert "Accuracy on the test split, in\N{NO-BREAK SPACE}%" not in page
    assert "Accuracy on the test split, in %: mean over seeds." in page
    assert "everything masked" not in render_page({"one": run, "two": run})
    lowest = min(run.trained.values(name, "recursive")[:, -1].mean() for name in run.methods)
    assert f"Lowest end: attention ({lowest:.3f} [" in Page(page).text
    assert {row["metric"] for row in fs.compare(run, run).rows} == {"area", "end"}


def test_synthetic_problem_is_drawn(tmp_path: Path) -> None:
    curves = {name: torch.linspace(1, 0.5, 17) for name in ("truth", "worst", "roar", "recursive")}
    assert draw_synthetic(curves, tmp_path / "synthetic.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(fs.FaithscopeError, match=r"\.png"):
        draw_synthetic(curves, tmp_path / "synthetic.txt")


# ------------------------------------------------------------------ folders and commands


def test_report_of_a_folder(result: fs.Result, tmp_path: Path) -> None:
    run = result.save(tmp_path / "run")
    loaded = fs.load_result(run)
    assert loaded.racu().to_pylist() == result.racu().to_pylist()
    assert loaded.report(tmp_path / "one.html").read_text() == render_page(loaded)
    said = command("report", run, "--figures", tmp_path / "f", "--tables", tmp_path / "t")
    assert "report.html" in said.stdout
    assert (run / "report.html").read_text() == render_page(loaded)
    assert (tmp_path / "f" / "curves.pdf").exists() and (tmp_path / "t" / "racu.tex").exists()


def test_report_of_a_study(result: fs.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "a")
    make_roar(data="sst").save(tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "plan.json").write_text("{}")
    runs = fs.load_results(tmp_path)
    assert list(runs.labelled) == ["data=babi-1", "data=sst"]
    text = runs.report(tmp_path / "page.html").read_text()
    assert "2 runs: data babi-1, sst" in text and "c." in text[text.index("Not finished") :]
    (tmp_path / "b" / "manifest.json").write_text("{}")
    assert "not a whole faithscope run" in fails("report", tmp_path)


def image_run() -> fs.Result:
    images = randn(2, 3, 16, 16, seed=1)
    return fs.evaluate(fs.wrap(tiny_vit()), images, "rollout", "saco(k=2)", random_draws=1)


def test_kinds_of_runs_are_not_compared(result: fs.Result, tmp_path: Path) -> None:
    roar, images = result.save(tmp_path / "roar"), image_run().save(tmp_path / "images")
    with pytest.raises(fs.FaithscopeError, match="of the same kind"):
        fs.compare(roar, images)
    assert "Unknown metric 'saco'" in fails("evaluate", "--from", roar, "--metrics", "saco")


# ------------------------------------------------------------------ comparing


def test_comparison_pairs_seeds(result: fs.Result) -> None:
    other = make_roar(shift=0.2)
    found = fs.compare(result, other)
    assert found.replicates == (0, 1, 2, 3, 4)
    rows = {(row["method"], row["procedure"], row["metric"]): row for row in found.rows}
    assert len(rows) == 12 + 12 + 10  # random has no RACU
    before, after = (
        {(r["measure"], r["procedure"]): r["values"] for r in run.racu().to_pylist()}
        for run in (result, other)
    )
    row = rows["gradient", "recursive", "racu"]
    gained = np.subtract(after["gradient", "recursive"], before["gradient", "recursive"])
    assert (row["difference"], row["ci_low"], row["ci_high"]) == seed_interval(gained)
    assert row["verdict"] == "better" and row["n"] == 5
    area = rows["gradient", "recursive", "area"]
    curves = [run.trained.values("gradient", "recursive").mean(0) for run in (result, other)]
    areas = [(curve[1:] + curve[:-1]).sum() / 20 for curve in curves]
    assert np.allclose([area["first"], area["second"]], areas)
    assert area["verdict"] == "better"  # more is lost
    assert rows["random", "roar", "area"]["random"]


def test_comparison_with_few_seeds_gives_no_verdict(result: fs.Result) -> None:
    found = fs.compare(make_roar(seeds=2, shift=0.1), result)
    assert found.only_second == 3
    assert {row["verdict"] for row in found.explained()} == {""}
    assert {row["verdict"] for row in found.rows if row["random"]} == {"same"}  # it is equal
    assert found.headline() == "2 shared seeds are too few for a verdict: it needs at least 3."


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_equal_runs_are_the_same_however_few_seeds(seeds: int, tmp_path: Path) -> None:
    few = make_roar(seeds=seeds)
    same = fs.compare(few, few)
    assert same.differs == () and {row["verdict"] for row in same.rows} == {"same"}
    plural = "s" * (seeds > 1)
    assert (
        same.headline() == f"Nothing changed on {seeds} shared seed{plural}: every difference is 0."
    )
    folder = few.save(tmp_path / "run")
    for condition in ("worse", "different"):
        command("compare", folder, folder, "--fail-if", condition)
    other = make_roar(seeds=min(seeds, 2), shift=0.1).save(tmp_path / "other")
    said = command("compare", folder, other, "--fail-if", "worse", code=1)
    assert "3 seeds" in " ".join(said.output.split())


def test_comparison_chooses_measures(result: fs.Result) -> None:
    found = fs.compare(
        result, make_roar(shift=0.1), methods=["attention", "gradient/roar"], metrics="racu"
    )
    assert found.methods == ("attention/roar", "attention/recursive", "gradient/roar")
    assert {row["metric"] for row in found.rows} == {"racu"}
    with pytest.raises(fs.FaithscopeError, match="did you mean 'attention"):
        fs.compare(result, result, methods=["atention/roar"])
    with pytest.raises(fs.FaithscopeError, match="Valid: area, end, racu"):
        fs.compare(result, result, metrics=["saco"])


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"data": "sst"}, "data"),
        ({"strategy": "count"}, "strategy"),
        ({"levels": (0, 20, 100)}, "levels"),
        ({"metric": "macro_f1"}, "test metric"),
    ],
)
def test_comparison_refuses_what_differs(other: dict[str, Any], named: str) -> None:
    few = {"levels": (0, 10, 20)}
    with pytest.raises(fs.FaithscopeError, match=f"differ in their {named} "):
        fs.compare(make_roar(**few), make_roar(**{**few, **other}))


def test_comparison_refuses_strangers(result: fs.Result) -> None:
    plan = result.manifest.plan
    request = plan.request.model_copy(update={"seeds": (5, 6, 7, 8, 9)})
    manifest = result.manifest.model_copy(
        update={"plan": plan.model_copy(update={"request": request})}
    )
    with pytest.raises(fs.FaithscopeError, match="no seed in common"):
        fs.compare(result, replace(result, manifest=manifest))


def test_compare_command_fails_a_job(result: fs.Result, tmp_path: Path) -> None:
    before = result.save(tmp_path / "before")
    after = make_roar(shift=-0.1, model="bilstm-2").save(tmp_path / "after")
    said = command("compare", before, after, "--csv", tmp_path / "table.csv").output
    assert "model: bilstm → bilstm-2" in said
    assert len(list(csv.DictReader((tmp_path / "table.csv").open()))) == 34
    assert said.count("\nrandom/roar ") == said.count("\nrandom/recursive ") == 1
    for condition, failing in (
        ("worse", True),
        ("racu<-0.05", True),
        ("racu<-0.9", False),
        ("attention/racu<-0.01", True),
        ("attention/recursive/racu>0.01", False),
        ("better", False),
    ):
        said = command("compare", before, after, "--fail-if", condition, code=int(failing))
        assert ("failed:" in said.output) == failing
    assert "Unknown metric 'saco'" in fails("compare", before, after, "--fail-if", "saco<0")
    said = command("compare", before, after, "--json")
    assert json.loads(said.stdout)["seeds"]["shared"] == 5


def test_terminal_shows_a_run(result: fs.Result, capsys: pytest.CaptureFixture[str]) -> None:
    show_result(result)
    said = capsys.readouterr().out
    assert said.startswith("bilstm on babi-1: 5 seeds\n")
    for row in result.summary().to_pylist():
        if row["n"]:
            assert f"{row['mean']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]" in said
    assert "\nattention/recursive " in said
    assert "Unmasked the models reach 100.0 %" in said
    for line in (result.headline(), *result.warnings(), *result.verdicts()):
        assert line in said
    show_result(make_roar(seeds=1))
    assert "1 seed" in capsys.readouterr().out


def test_a_run_that_was_trained_is_shown(tmp_path: Path) -> None:
    options = {"measures": ["gradient"], "seeds": 1, "levels": [0, 50, 100]}
    fs.roar(bag_texts(), BagLearner(), **options, out=tmp_path / "run")
    said = command("report", tmp_path / "run", "--figures", tmp_path, "--tables", tmp_path)
    assert "report.html" in said.stdout
    reader = Page((tmp_path / "run" / "report.html").read_text())
    assert len(reader.words) > 8 and not {"[CLS]", "[EOS]"} & {word for _, word in reader.words}
