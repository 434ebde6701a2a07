"""ROAR studies: read from YAML, refused in one sentence, run cell by cell; the same in Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import faithscope as fs
from bags import BagLearner, bag_texts
from commands import csv, fails, rows, run
from faithscope.probes.retrain import bilstm
from faithscope.probes.retrain.learner import Recipe

ROOT = Path(__file__).parent.parent


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study of two data sets, a few trainings each."""
    small = bilstm.Setting(Recipe(1, 16), 4, 6, False)
    monkeypatch.setitem(bilstm.SETTINGS, "own", small)
    monkeypatch.chdir(tmp_path)
    for name, count in (("a.csv", 40), ("b.csv", 60)):
        csv(tmp_path / name, rows(count))
    file = tmp_path / "mine.yaml"
    file.write_text(
        "kind: roar\ndatasets: [a.csv, b.csv]\nmeasures: gradient\nseeds: 1\nlevels: [50]\n"
    )
    return file


def test_the_studies_of_the_repository():
    files = {file.stem: fs.load_study(file) for file in (ROOT / "studies").glob("roar_*.yaml")}
    assert {"roar_babi1", "roar_babi2", "roar_sst", "roar_imdb", "roar_demo"} <= set(files)
    asked = {}
    for name, found in files.items():
        assert found.name == name
        asked[name], *_ = found.cells.values()
        assert isinstance(asked[name], fs.Retrain)
    assert asked["roar_babi1"].methods == ("all",)
    assert asked["roar_babi1"].epochs is None  # the paper's
    assert asked["roar_babi1_count"].strategy == "count"
    assert asked["roar_imdb"].levels == (0, 10, 30, 50, 70, 90, 100)


def test_every_data_set_with_every_model_is_a_run(study: Path):
    changes = {"datasets": ["a.csv", "b.csv(text=review)"], "models": ["bilstm", "hf:my/model"]}
    assert list(fs.load_study(study, changes).cells) == [
        f"{model}_{data}"
        for model in ("bilstm", "hf-my-model")
        for data in ("a.csv", "b.csv-text=review")
    ]


def test_a_study_is_resumed_and_reported(study: Path, tmp_path: Path):
    assert "2 runs, 8 trainings, about" in run("run", study, "--dry-run").stdout
    assert not (tmp_path / "runs").exists()
    told = run("run", study)
    assert "bilstm_a.csv: 4 trainings, about" in told.stderr
    assert "kept in runs/mine" in told.stdout
    again = run("run", study, "--json")
    assert again.stderr.count("finished: nothing to do") == 3  # each, and both
    cells = json.loads(again.stdout)["cells"]
    assert list(cells) == ["bilstm_a.csv", "bilstm_b.csv"]
    assert cells["bilstm_b.csv"]["manifest"]["data"]["texts"]["sizes"]["test"] == 9
    assert (tmp_path / "runs" / "mine" / "bilstm_a.csv" / "manifest.json").exists()
    run("report", "runs/mine")
    page = (tmp_path / "runs" / "mine" / "report.html").read_text(encoding="utf-8")
    assert "a.csv" in page
    assert "b.csv" in page
    told = run("run", study, "--set", "datasets=a.csv", "--limit", 20, "--out", "other", "--json")
    (cell,) = json.loads(told.stdout)["cells"].values()
    assert cell["manifest"]["data"]["texts"]["sizes"]["train"] == 20


def test_in_python(study: Path, tmp_path: Path):
    done = fs.run_study(fs.load_study(study, {"datasets": "a.csv"}), tmp_path / "out")
    (result,) = done.results.values()
    alone = fs.roar("a.csv", measures="gradient", seeds=1, levels=[50], device="cpu")
    assert alone.trainings.drop(["seconds"]) == result.trainings.drop(["seconds"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("measure: gradient", ["key of a study 'measure'"]),
        ("fills: mean", ["key of a study 'fills'"]),
        ("datasets: []", ["needs 'data'", "bundled:babi1"]),
        ("measures: []", ["No measures given"]),
        ("measures: [gradent]", ["did you mean 'gradient'"]),
        ("models: lstm", ["did you mean 'bilstm'"]),
        ("models: [bilstm, bilstm]", ["'model' names something twice"]),
        ("procedures: recursiv", ["did you mean 'recursive'"]),
        ("strategy: percent", ["strategy 'percent'"]),
        ("levels: [10, 110]", ["10, 110"]),
        ("levels: [50, 10]", ["do not rise"]),
        ("levels: ten", ["levels must be whole numbers"]),
        ("seeds: 0", ["seeds must be a number of seeds", "got 0"]),
        ("seeds: [1, 1]", ["each once"]),
        ("seeds: true", ["seeds must be a number of seeds", "got True"]),
        ("epochs: 0", ["epochs must be a whole number"]),
        ("epochs: 1.5", ["epochs must be a whole number"]),
        ("learning_rate: fast", ["learning_rate must be a number above 0"]),
        ("limit: 0", ["limit must be a whole number of at least 1"]),
        ("metrics: racu(clip=maybe)", ["'clip' of racu is true or false"]),
        ("metrics: saco", ["Unknown metric 'saco'", "area, end, racu"]),
        ("keep_weights: maybe", ["keep_weights must be true or false"]),
        ("datasets: 7", ["data must be the name of a data set or a path, got 7"]),
        ("name: a/b", ["plain word"]),
        ("kind: roars", ["kind of study 'roars'", "did you mean 'roar'"]),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(study: Path, text: str, words: list[str]):
    key = text.partition(":")[0]
    kept = [line for line in study.read_text().splitlines() if not line.startswith(f"{key}:")]
    study.write_text("\n".join([*kept, text]))
    told = fails("run", study)
    for word in words:
        assert word in told


def test_a_cell_whose_data_is_missing(study: Path):
    assert "There is no file or folder" in fails("run", study, "--set", "datasets=nowhere.csv")


class TestRoar:
    def test_a_learner_of_ones_own(self):
        found = fs.roar(bag_texts(), BagLearner(), measures="gradient", seeds=1, levels=[50])
        assert found.methods == ["gradient", "random"]

    def test_what_goes_only_with_names(self):
        for options, words in (({"epochs": 3}, "epochs cannot be given"), ({"limit": 3}, "limit")):
            with pytest.raises(fs.FaithscopeError, match=words):
                fs.roar(bag_texts(), BagLearner(), **options)

    def test_every_name_of_the_package_is_there(self):
        for name in fs.__all__:
            assert getattr(fs, name) is not None
        assert fs.measure("integrated_gradients", steps=5).options == {"steps": 5}
        assert fs.load_text("bundled:babi1").kind == "babi"
        assert len(fs.synthetic_problem(200, 50).curves["truth"]) == 17
