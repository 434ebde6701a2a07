"""ROAR runs in the page, in figures and tables, in comparisons and in a terminal."""

import csv
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import faithscope as fs
from faithscope.cli import app
from faithscope.cli.console_roar import show_roar
from faithscope.cli.synthetic import SyntheticResult
from faithscope.data.text_sources import describe, load_text
from faithscope.data.vocabulary import Vocabulary
from faithscope.probes.retrain.result import RoarResult
from faithscope.report import draw_synthetic
from faithscope.report.roar import MOST_WORDS, render_roar_page
from faithscope.report.roar_figures import performance_curves, sparsity_curves
from faithscope.report.roar_rows import at_level, racu_rows, sparsity_rows
from faithscope.report.roar_tables import racu, racu_latex
from faithscope.studies.runs import RoarRuns
from faithscope.verdicts.statistics import seed_interval
from roar_runs import make_roar

EVIL = "<script>alert('word')</script>"


@pytest.fixture(scope="module")
def result() -> RoarResult:
    return make_roar()


@pytest.fixture(scope="module")
def page(result: RoarResult) -> str:
    return render_roar_page(result)


class Reader(HTMLParser):
    """The text of a page, its tags, and the cells of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[tuple[str, str]] = []
        self.text = ""
        self._look = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.links += [str(given[key]) for key in ("src", "href") if key in given]
        look = given.get("class") or ""
        self._look = look if tag == "span" and look.startswith("word") else ""

    def handle_data(self, data: str) -> None:
        self.text += data.replace("\N{NO-BREAK SPACE}", " ")
        if self._look:
            self.words.append((self._look, data))
            self._look = ""


# ------------------------------------------------------------------ the page


def test_page_holds_the_numbers(result: RoarResult, page: str) -> None:
    text = Reader(page).text
    assert result.headline() in text
    for row in result.racu().to_pylist():
        mean, above, below = (
            f"{100 * value:.1f}"
            for value in (row["mean"], row["ci_high"] - row["mean"], row["mean"] - row["ci_low"])
        )
        assert re.search(rf"{mean}\s*\+{above} −{below}", text)
    for row in result.curves().to_pylist():
        assert f"{100 * row['mean']:.1f}" in text
    assert "the largest class alone would score 14.9 %" in text
    assert "with every token masked 15.0 %" in text
    assert "55,048" in text and "415 trainings" in text
    assert not re.search(r"[\d\]] %", page[: page.rindex("<script>")])  # they stay together


def test_page_needs_nothing_else(page: str) -> None:
    reader = Reader(page)
    assert "default-src 'none'" in page
    assert all(link.startswith("#") for link in reader.links)
    assert not re.search(r"@import|url\((?!#)", page)
    assert reader.tags.count("script") == 1
    assert reader.tags.count("svg") == 2


def test_names_in_a_page_do_nothing() -> None:
    evil = make_roar(data=EVIL, model="a & <b>", words=("one", EVIL, "two"), label="<i>office")
    reader = Reader(render_roar_page({EVIL: evil, "other": evil}, title=EVIL))
    assert reader.tags.count("script") == 1
    assert not {"b", "i"} & set(reader.tags)
    assert any(word == EVIL for _, word in reader.words)
    assert EVIL in reader.text and "<i>office" in reader.text


def test_example_is_masked_step_by_step(result: RoarResult, page: str) -> None:
    example = next(
        e for e in result.examples if (e["measure"], e["procedure"]) == ("attention", "recursive")
    )
    key = 8  # words of the legend
    count = len(example["eligible"])
    words = Reader(page).words[key:]
    before: set[int] = set()
    for step, level in enumerate(example["levels"]):
        line = words[step * count : (step + 1) * count]
        assert [word for _, word in line] == example["words"][1:-1]  # without special tokens
        places = list(zip(example["eligible"], line, strict=True))
        gone = {at for at, (look, _) in places if "gone" in look or "new" in look}
        new = {at for at, (look, _) in places if "new" in look}
        assert gone == set(level["masked"])
        assert new == set(level["masked"]) - before
        before = gone
    strongest = int(np.argmax(example["levels"][0]["scores"][1:-1]))
    assert "shade-5 new" in words[strongest][0]
    assert "[CLS]" not in page


def with_texts(run: RoarResult, *words: tuple[str, ...]) -> RoarResult:
    """A run that keeps several texts."""
    kept = [
        {**e, "index": index, "words": ["[CLS]", *text, "[EOS]"]}
        for index, text in enumerate(words)
        for e in make_roar(words=text).examples
    ]
    return replace(run, examples=kept)


def test_texts_are_chosen_and_the_best_known_comes_first(result: RoarResult) -> None:
    run = with_texts(
        result, ("an", "[UNK]", "word"), tuple("a text of more than six words".split())
    )
    text = render_roar_page(run)
    options = re.findall(r'<option value="(\d)">([^<]*)</option>', text)
    assert options == [("0", "2: a text of more than six …"), ("1", "1: an [UNK] word")]
    assert text.count('<div class="sample">') == 2
    assert text.index("Text 2 of the test split") < text.index("Text 1 of the test split")
    assert 'class="text-picker"' not in render_roar_page(result)  # one text needs no choice


def test_colours_and_lines_are_explained(result: RoarResult, page: str) -> None:
    text = Reader(page).text
    assert "scaled within a row" in text and "The last row masks what is left" in text
    assert (
        "by Recursive ROAR those of the model trained at the level before, by ROAR always" in text
    )
    tokens = render_roar_page(make_roar(strategy="count", procedures=("recursive",)))
    assert "The last row" not in tokens and "by ROAR always" not in tokens
    for name in (*result.measures, "largest class alone"):
        assert re.search(rf'<li><span style="color: var\(--[^>]*>[^<]*</span> {name}</li>', page)


def test_what_only_masks_can_say(result: RoarResult) -> None:
    paired = Reader(render_roar_page(result)).text
    assert "still reads the second text, which is never masked" in paired.replace("\n", " ")
    lone = replace(result, examples=[{**e, "auxiliary": None} for e in result.examples])
    assert "A model that sees only masks can know the length of a text: " in render_roar_page(lone)
    assert "and a second text if it reads one" in render_roar_page(replace(result, examples=[]))


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        ({"words": 1234, "size": 300}, "300 numbers each, for 1,234 words of the vocabulary"),
        (None, "none: embeddings drawn at random"),
    ],
)
def test_page_says_what_embeddings_start_from(
    result: RoarResult, vectors: dict[str, int] | None, said: str
) -> None:
    def page_of(run: RoarResult) -> str:
        data = {**run.manifest["data"], "vectors": vectors}
        return render_roar_page(replace(run, manifest={**run.manifest, "data": data}))

    assert said in page_of(result)
    assert "word vectors" not in render_roar_page(result)  # of an older version, which kept none
    assert "word vectors" not in page_of(make_roar(model="hf:minilm"))


def test_manifest_says_how_many_words_have_a_vector(tmp_path: Path) -> None:
    (tmp_path / "two.vec").write_text("2 3\nJohn 1 2 3\nnobody 4 5 6\nhallway 7 8 9\n")
    told = []
    for options in ("", f"(vectors={tmp_path / 'two.vec'})"):
        data = load_text(f"bundled:babi1{options}", limit=9)
        told.append(describe(data, Vocabulary.of(data).encode(data))["vectors"])
    assert told == [None, {"words": 2, "size": 3}]


def test_equal_procedures_are_shown_once() -> None:
    run = make_roar(measures=("attention", "random"))
    same = [{**e, "levels": run.examples[0]["levels"]} for e in run.examples]
    text = Reader(render_roar_page(replace(run, examples=same))).text
    assert "attention, both procedures" in text and "attention, ROAR" not in text


def test_long_texts_are_cut_and_texts_without_scores_are_plain() -> None:
    words = tuple(f"word{i}" for i in range(MOST_WORDS + 7))
    long = make_roar(words=words, measures=("attention", "random"))
    flat = [
        {
            **e,
            "levels": [
                {**step, "scores": [math.nan] * len(step["scores"])} for step in e["levels"]
            ],
        }
        for e in long.examples
    ]
    reader = Reader(render_roar_page(replace(long, examples=flat)))
    assert "… and 7 more" in reader.text and f"word{MOST_WORDS}" not in reader.text
    assert not any("shade-5" in look for look, _ in reader.words[8:])
    assert "masked step by step" not in render_roar_page(replace(long, examples=[]))


def test_warnings_and_few_seeds_are_said() -> None:
    lone = make_roar(seeds=1)
    text = render_roar_page(lone, notes=["Look out."])
    assert 'class="warning">Look out.' in text
    for warning in lone.warnings():
        assert warning in Reader(text).text
    assert "▲ better" not in text
    two = make_roar(seeds=2)
    assert {row["verdict"] for row in racu_rows({"": two})} == {""}
    why = "No interval is shown, because fewer than three seeds are too few for one"
    assert Reader(render_roar_page(two)).text.count(why) == 2  # of RACU and of the curves
    latex = racu_latex(racu_rows({"": two}), {"": "babi-1"})
    assert why in latex and "^{" not in latex
    both = Reader(render_roar_page({"two": two, "three": make_roar(data="sst", seeds=3)})).text
    overview = both[both.index("Faithfulness (RACU)") : both.index("With nothing")]
    assert f"{why}, where there is none." in overview
    assert not performance_curves(two).figure.axes[0].collections
    assert why not in render_roar_page(make_roar(seeds=3))


def test_protocol_is_told_in_words(page: str) -> None:
    assert "<dd>yes<small>The RACU of a seed is kept within" in page and "<dd>True" not in page


def test_what_is_wider_than_the_screen_has_a_hint(page: str) -> None:
    assert page.count('class="scroll"') == page.count('class="hint"') > 4
    assert "integrated_<wbr>gradients" in page


def test_several_runs_share_a_page(result: RoarResult) -> None:
    other = make_roar(data="sst", model="minilm", measures=("gradient", "random"), seeds=3)
    tokens = make_roar(strategy="count", levels=(0, 1, 2), procedures=("recursive",))
    text = render_roar_page({"one": result, "two": other, "three": tokens}, title="study")
    reader = Reader(text)
    assert reader.tags.count("article") == 3
    for label in ("one", "two", "three"):
        assert f">{label}</a>" in text
    assert "Of these runs one and two differ in seeds: compare their RACU" in reader.text
    assert "three masks a few tokens and has no RACU" in reader.text
    few = make_roar(levels=(0, 50, 100), procedures=("recursive",))
    both = {"one": result, "few": few}
    assert "These runs differ in levels and procedures: compare" in render_roar_page(both)
    assert "differ in" not in render_roar_page({"one": result, "again": result})
    overview = text[text.index("<main") : text.index("</main>")]
    assert overview.count(">sst</th>") == 3  # by two procedures, and how it ends
    with pytest.raises(fs.FaithscopeError, match="no finished run"):
        render_roar_page({})


def test_models_that_learnt_nothing_give_no_verdict() -> None:
    made = make_roar()
    data = {**made.manifest["data"], "majority": {"class": "office", "score": 1.0}}
    unlearned = replace(made, manifest={**made.manifest, "data": data})
    assert unlearned.is_unlearned
    assert {row["verdict"] for row in racu_rows({"": unlearned})} == {""}


def test_verdicts_follow_the_intervals() -> None:
    rows = racu_rows({"": make_roar(shift=-0.12)})
    found = {row["measure"]: row["verdict"] for row in rows if row["procedure"] == "recursive"}
    assert found["attention"] == "better"
    for row in rows:  # Student's t may doubt what the bootstrap is sure of
        side = (row["ci_low"] > 0) - (row["ci_high"] < 0)
        assert row["verdict"] in ("same", {1: "better", -1: "worse", 0: "same"}[side])
    assert "worse" in {row["verdict"] for row in racu_rows({"": make_roar(shift=-0.2)})}


# ------------------------------------------------------------------ figures and tables


def test_curves_draw_means_and_bands(result: RoarResult) -> None:
    figure = performance_curves(result).figure
    assert [axes.get_title(loc="left")[:4] for axes in figure.axes] == ["Recu", "ROAR"]
    lines = figure.axes[0].get_lines()
    drawn = lines[0].get_ydata()
    assert np.allclose(drawn, result.values("attention", "recursive").mean(0))
    assert np.allclose(lines[-1].get_ydata(), 0.149)  # the largest class
    assert lines[-2].get_color() == "#5b6675"  # random, in grey
    assert len(figure.axes[0].collections) == len(result.measures)
    assert figure.legends and not performance_curves(result, legend=False).figure.legends
    one = performance_curves(make_roar(procedures=("recursive",), metric="cross_entropy")).figure
    assert len(one.axes) == 1
    fewer = performance_curves(make_roar(measures=("gradient", "random"))).figure
    assert fewer.axes[0].get_lines()[0].get_color() == lines[1].get_color()


def test_sparsity_is_the_mean_over_seeds(result: RoarResult) -> None:
    rows = sparsity_rows({"": result})
    own = [r for r in rows if (r["measure"], r["kind"], r["x"]) == ("gradient", "count", 3)]
    values = [
        row["value"]
        for row in result.sparsity.to_pylist()
        if (row["measure"], row["kind"], row["x"]) == ("gradient", "count", 3)
    ]
    assert (own[0]["mean"], own[0]["ci_low"], own[0]["ci_high"]) == seed_interval(values)
    assert sparsity_curves(replace(result, sparsity=result.sparsity.slice(0, 0))) is None
    plot = sparsity_curves(result)
    assert plot is not None and all(axes.get_title(loc="left") for axes in plot.figure.axes)


def test_files_are_written(result: RoarResult, tmp_path: Path) -> None:
    runs = RoarRuns({"a": result, "b": make_roar(data="sst", seeds=2)}, name="study")
    figures = {path.name for path in runs.write_figures(tmp_path / "figures")}
    assert figures == {
        f"{run}-bilstm-{name}.{form}"
        for run in ("babi-1", "sst")
        for name in ("curves", "sparsity")
        for form in ("pdf", "png")
    }
    tables = {path.name: path for path in runs.write_tables(tmp_path / "tables")}
    kinds = ("racu", "curves", "majority", "sparsity", "time")
    assert set(tables) == {f"{kind}.{form}" for kind in kinds for form in ("md", "tex", "csv")}
    rows = list(csv.DictReader(tables["racu.csv"].open()))
    assert len(rows) == 2 * 2 * 5
    expected = {
        (row["measure"], row["procedure"]): row["mean"] for row in result.racu().to_pylist()
    }
    for row in rows[:10]:
        assert float(row["mean"]) == expected[row["measure"], row["procedure"]]
    markdown = tables["racu.md"].read_text()
    assert "| data set | model | procedure | attention |" in markdown
    assert "| babi-1 | bilstm | Recursive ROAR |" in markdown
    curves = list(csv.DictReader(tables["curves.csv"].open()))
    assert len(curves) == 2 * 2 * 6 * 11
    assert "| 100 % |" in tables["curves.md"].read_text()
    majority = next(csv.DictReader(tables["majority.csv"].open()))
    assert float(majority["masked_mean"]) == at_level(result, 100)["mean"]


def test_racu_is_written_as_in_the_paper(result: RoarResult) -> None:
    row = {"mean": 0.0763, "ci_low": 0.0081, "ci_high": 0.155, "n": 5}
    assert racu(row) == "7.6 +7.9 −6.8"
    assert racu({**row, "mean": math.nan}) == "—"
    rows = [{**racu_rows({"a_b": result})[0], **row}]
    text = racu_latex(rows, {"a_b": "50 % & a_b"})
    assert "$7.6^{+7.9}_{-6.8}$" in text and r"50 \% \& a\_b" in text


def test_runs_of_the_same_names_stay_apart(result: RoarResult, tmp_path: Path) -> None:
    runs = RoarRuns({"before": result, "after": make_roar(shift=0.1)})
    assert list(runs.told) == ["before", "after"]
    tokens = make_roar(strategy="count", measures=("attention", "random"))
    runs = RoarRuns({**runs.results, "tokens": tokens, "other": make_roar(data="sst")})
    for file in runs.write_tables(tmp_path):
        if file.suffix == ".md":  # the same name in every row of every table
            rows = [line.split(" | ")[0].strip("| ") for line in file.read_text().splitlines()[2:]]
            expected = {"babi-1 (before)", "babi-1 (after)", "babi-1 (tokens)", "sst"}
            if file.stem == "racu":  # which a run of a few tokens has not
                expected.remove("babi-1 (tokens)")
            assert set(filter(None, rows[:-1])) == expected
    page = render_roar_page(runs.told)
    overview = page[page.index("<main") : page.index("</main>")]
    assert overview.count("babi-<wbr>1 (") + overview.count("babi-1 <wbr>(") == 7


def test_times_have_the_same_digits(result: RoarResult, tmp_path: Path) -> None:
    RoarRuns({"a": result}).write_tables(tmp_path)
    times = re.findall(r"[\d.]+ s\b", (tmp_path / "time.md").read_text())
    assert len(times) > 9 and all(re.fullmatch(r"\d+\.\d\d s", time) for time in times)


def test_token_steps_have_no_end_of_their_own() -> None:
    run = make_roar(strategy="count")
    assert math.isnan(at_level(run, 100)["mean"]) and at_level(run, 0)["mean"] == 1.0
    page = render_roar_page(run)
    assert "Faithfulness (RACU)" not in page and "everything masked" not in page
    assert ">tokens masked</th>" in page and '<th scope="col">10</th>' in page
    assert "Accuracy on the test split, in %: mean over seeds." in page
    assert "everything masked" not in render_roar_page({"one": run, "two": run})
    lowest = min(run.values(name, "recursive")[:, -1].mean() for name in run.measures)
    assert f"furthest under attention, to {100 * lowest:.1f} %" in Reader(page).text
    assert {row["metric"] for row in fs.compare(run, run).rows} == {"area"}


def test_synthetic_problem_is_drawn(tmp_path: Path) -> None:
    curves = {name: torch.linspace(1, 0.5, 17) for name in ("truth", "worst", "roar", "recursive")}
    found = SyntheticResult(
        curves, orders={}, model="logistic", noise="shared", train_size=9, test_size=9, seed=0
    )
    assert draw_synthetic(found, tmp_path / "synthetic.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(fs.FaithscopeError, match=r"\.png"):
        draw_synthetic(found, tmp_path / "synthetic.txt")


# ------------------------------------------------------------------ folders and commands


def run_cli(*words: object) -> tuple[int, str]:
    answer = CliRunner().invoke(app, [str(word) for word in words])
    return answer.exit_code, answer.output


def test_report_of_a_folder(result: RoarResult, tmp_path: Path) -> None:
    run = result.save(tmp_path / "run")
    loaded = fs.load_result(run)
    assert isinstance(loaded, RoarResult)
    assert loaded.racu().to_pylist() == result.racu().to_pylist()
    assert loaded.report(tmp_path / "one.html").read_text() == render_roar_page(loaded)
    code, said = run_cli("report", run, "--figures", tmp_path / "f", "--tables", tmp_path / "t")
    assert code == 0 and "report.html" in said
    assert (run / "report.html").read_text() == render_roar_page({"babi-1, bilstm": loaded})
    assert (tmp_path / "f" / "curves.pdf").exists() and (tmp_path / "t" / "racu.tex").exists()


def test_report_of_a_study(result: RoarResult, tmp_path: Path) -> None:
    result.save(tmp_path / "a")
    make_roar(data="sst").save(tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "plan.json").write_text("{}")
    runs = fs.load_results(tmp_path)
    assert isinstance(runs, RoarRuns) and list(runs.told) == ["babi-1, bilstm", "sst, bilstm"]
    text = runs.report(tmp_path / "page.html").read_text()
    assert "Not finished, and not in this page: c." in text
    (tmp_path / "b" / "manifest.json").write_text('{"kind": "roar"}')
    code, said = run_cli("report", tmp_path)
    assert code == 2 and said.count("error:") == 1 and "not a whole ROAR run" in said


def image_run() -> fs.Result:
    from conftest import randn, tiny_vit

    images = randn(2, 3, 16, 16, seed=1)
    return fs.evaluate(fs.wrap(tiny_vit()), images, "rollout", "saco(k=2)", random_draws=1)


def test_kinds_of_runs_are_not_mixed(result: RoarResult, tmp_path: Path) -> None:
    roar, images = result.save(tmp_path / "roar"), image_run().save(tmp_path / "images")
    with pytest.raises(fs.FaithscopeError, match="holds runs over images"):
        fs.load_results(tmp_path)
    with pytest.raises(fs.FaithscopeError, match="one of ROAR"):
        fs.compare(roar, images)
    code, said = run_cli("evaluate", "--from", roar, "--metrics", "saco")
    assert code == 2 and "is a ROAR run" in said


# ------------------------------------------------------------------ comparing


def test_comparison_pairs_seeds(result: RoarResult) -> None:
    other = make_roar(shift=0.2)
    found = fs.compare(result, other)
    assert found.seeds == (0, 1, 2, 3, 4)
    rows = {(row["method"], row["metric"]): row for row in found.rows}
    assert len(rows) == 12 + 10  # random has no RACU
    before, after = (
        {(r["measure"], r["procedure"]): r["values"] for r in run.racu().to_pylist()}
        for run in (result, other)
    )
    row = rows["gradient/recursive", "racu"]
    gained = np.subtract(after["gradient", "recursive"], before["gradient", "recursive"])
    assert (row["difference"], row["ci_low"], row["ci_high"]) == seed_interval(gained)
    assert row["verdict"] == "better" and row["n"] == 5
    area = rows["gradient/recursive", "area"]
    curves = [run.values("gradient", "recursive").mean(0) for run in (result, other)]
    areas = [(curve[1:] + curve[:-1]).sum() / 20 for curve in curves]
    assert np.allclose([area["first"], area["second"]], areas)
    assert area["verdict"] == "better"  # more is lost
    assert rows["random/roar", "area"]["random"]
    assert found.headline().startswith("The second run against the first on 5 shared seeds: racu")


def test_comparison_of_a_run_with_itself(result: RoarResult) -> None:
    same = fs.compare(result, result)
    assert same.headline() == "Nothing changed on 5 shared seeds: every difference is 0."
    assert same.differs == () and {row["verdict"] for row in same.rows} == {"same"}


def test_comparison_with_few_seeds_gives_no_verdict(result: RoarResult) -> None:
    found = fs.compare(make_roar(seeds=3, shift=0.1), result)
    assert found.only_second == 2
    assert {row["verdict"] for row in found.explained()} == {""}
    assert {row["verdict"] for row in found.rows if row["random"]} == {"same"}  # it is equal
    assert found.headline() == "3 shared seeds are too few for a verdict: it needs at least 5."


@pytest.mark.parametrize("seeds", [1, 3])
def test_equal_runs_are_the_same_however_few_seeds(seeds: int, tmp_path: Path) -> None:
    few = make_roar(seeds=seeds)
    same = fs.compare(few, few)
    assert {row["verdict"] for row in same.rows} == {"same"} and same.sentences() == []
    plural = "s" * (seeds > 1)
    assert (
        same.headline() == f"Nothing changed on {seeds} shared seed{plural}: every difference is 0."
    )
    folder = few.save(tmp_path / "run")
    for condition in ("worse", "different"):
        assert run_cli("compare", folder, folder, "--fail-if", condition)[0] == 0
    other = make_roar(seeds=seeds, shift=0.1).save(tmp_path / "other")
    code, said = run_cli("compare", folder, other, "--fail-if", "worse")
    assert code == 1 and "(a verdict needs 5 seeds)" in " ".join(said.split())


def test_comparison_chooses_measures(result: RoarResult) -> None:
    found = fs.compare(
        result, make_roar(shift=0.1), methods=["attention", "gradient/roar"], metrics="racu"
    )
    assert found.methods == ("attention/roar", "attention/recursive", "gradient/roar")
    assert {row["metric"] for row in found.rows} == {"racu"}
    with pytest.raises(fs.FaithscopeError, match="did you mean 'attention"):
        fs.compare(result, result, methods=["atention/roar"])
    with pytest.raises(fs.FaithscopeError, match="Valid: area, racu"):
        fs.compare(result, result, metrics=["saco"])


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"data": "sst"}, "data set"),
        ({"metric": "macro_f1"}, "metric"),
        ({"strategy": "count"}, "strategy"),
        ({"levels": (0, 50, 100)}, "levels"),
    ],
)
def test_comparison_refuses_what_differs(
    result: RoarResult, other: dict[str, object], named: str
) -> None:
    with pytest.raises(fs.FaithscopeError, match=f"differ in their {named} "):
        fs.compare(result, make_roar(**other))


def test_comparison_refuses_strangers(result: RoarResult) -> None:
    manifest = result.manifest
    protocol = {**manifest["protocol"], "seeds": [5, 6, 7, 8, 9]}
    late = replace(result, manifest={**manifest, "protocol": protocol})
    with pytest.raises(fs.FaithscopeError, match="no seed in common"):
        fs.compare(result, late)
    with pytest.raises(fs.FaithscopeError, match="leave --allow out"):
        fs.compare(result, result, allow=["data"])


def test_compare_command_fails_a_job(result: RoarResult, tmp_path: Path) -> None:
    before = result.save(tmp_path / "before")
    after = make_roar(shift=-0.1, model="bilstm-2").save(tmp_path / "after")
    code, said = run_cli("compare", before, after, "--csv", tmp_path / "table.csv")
    assert code == 0 and "model: bilstm → bilstm-2" in said
    assert len(list(csv.DictReader((tmp_path / "table.csv").open()))) == 22
    assert said.count("\nrandom ") == 1 and "random/" not in said
    for condition, failing in (
        ("worse", True),
        ("racu<-0.05", True),
        ("racu<-0.9", False),
        ("attention/racu<-0.01", True),
        ("attention/recursive/racu>0.01", False),
        ("better", False),
    ):
        code, said = run_cli("compare", before, after, "--fail-if", condition)
        assert code == failing, condition
        assert ("failed:" in said) == failing
    code, said = run_cli("compare", before, after, "--fail-if", "saco<0")
    assert code == 2 and "Unknown metric 'saco'" in said
    code, said = run_cli("compare", before, after, "--json")
    assert json.loads(said)["seeds"]["shared"] == 5


def test_terminal_shows_a_run(result: RoarResult, capsys: pytest.CaptureFixture[str]) -> None:
    show_roar(result)
    said = capsys.readouterr().out
    first = next(row for row in racu_rows({"": result}) if row["measure"] == "attention")
    assert racu(first) in said and "Recursive ROAR" in said
    assert "Unmasked the models reach 100.0 %" in said
    assert said.strip().endswith(result.headline())
    show_roar(make_roar(seeds=1))
    assert "1 seed" in capsys.readouterr().out


def test_a_run_that_was_trained_is_shown(tmp_path: Path) -> None:
    from bags import BagLearner, bag_texts
    from faithscope.probes.retrain.roar import prepare_roar

    options = {"measures": ["gradient"], "seeds": 1, "levels": [0, 50, 100]}
    prepare_roar(bag_texts(), BagLearner(), **options, out=tmp_path / "run").run()
    code, said = run_cli("report", tmp_path / "run", "--figures", tmp_path, "--tables", tmp_path)
    assert code == 0 and "report.html" in said
    reader = Reader((tmp_path / "run" / "report.html").read_text())
    assert len(reader.words) > 8 and not {"[CLS]", "[EOS]"} & {word for _, word in reader.words}
