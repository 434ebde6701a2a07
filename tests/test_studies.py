"""Studies: read from YAML, refused in one sentence, run cell by cell, gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

import faithscope as fs
from bags import BagLearner, bag_texts
from commands import csv, fails, rows, run
from faithscope.probes.retrain import bilstm
from faithscope.probes.retrain.learner import Recipe
from faithscope.studies import forecast_study, former_labels, make_study, prepare_cells
from families import refused
from fuzzing import in_time

ROOT = Path(__file__).parent.parent
TINY = "timm:vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=2)"


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> dict[str, object]:
    """A study of a tiny model, whose weights lie in a file so that they stay the same."""
    weights = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    module = fs.load_model(TINY, pretrained=False, device="cpu").module
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, weights)
    return {
        "name": "small",
        "models": [{"name": TINY, "checkpoint": str(weights)}],
        "data": "bundled:cifar10",
        "methods": ["gradient", "rollout"],
        "metrics": ["saco"],
        "random_draws": 1,
        "limit": 4,
    }


def written(folder: Path, text: str) -> Path:
    file = folder / "study.yaml"
    file.write_text(text)
    return file


def test_every_study_of_the_repository_can_be_read():
    files = sorted((ROOT / "studies").glob("*.yaml"))
    assert files
    for file in files:
        assert fs.load_study(file).name == file.stem


def test_axes_take_one_value_or_several_and_every_combination_is_a_cell(tmp_path):
    study = fs.load_study(
        written(
            tmp_path,
            "models: [bundled:cifar10_vit, {name: 'timm:vit_tiny_patch16_224', pretrained: no}]\n"
            "data: bundled:cifar10\nfills: [mean, blur]\nseeds: [0, 1, 2]\nk: [5, 10]\n",
        )
    )
    assert len(study.cells) == 2 * 2 * 3
    assert {cell.model.partition(":")[0] for cell in study.cells.values()} == {"bundled", "timm"}
    assert {cell.pretrained for cell in study.cells.values()} == {True, False}
    assert not any(set(":/\\ ()") & set(label) for label in study.cells)
    assert {cell.k for cell in study.cells.values()} == {(5, 10)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modl: x\ndata: y\n", ["key of a study 'modl'", "did you mean 'model'"]),
        ("model: x\nmodels: y\ndata: z\n", ["gives 'model' twice", "'models'"]),
        ("models: bundled:cifar10_vit\n", ["needs 'data'", "bundled:cifar10"]),
        ("data: bundled:cifar10\nmodels: []\n", ["needs 'model'"]),
        ("models: m:x\ndata: d\nfills: []\n", ["'fill' is empty"]),
        ("models: m:x\ndata: d\nseeds: [1, 1]\n", ["'seed' names something twice"]),
        ("models: [{nam: x}]\ndata: d\n", ["is a name, or has one"]),
        ("models: [{name: 'm:x', chekpoint: f}]\ndata: d\n", ["did you mean 'checkpoint'"]),
        ("models: m:x\ndata: 3\n", ["data must be the name"]),
        ("- a\n- b\n", ["must hold keys and values"]),
        ("models: [\n", ["is not YAML"]),
        ("!!python/object/apply:os.system [ls]\n", ["is not YAML"]),
        ("models: m:x\ndata: d\nlimit: 1\nlimit: 3\n", ["'limit' is given twice"]),
        ("fills: x\nfill: y\n", ["gives 'fill' twice, as 'fills' and as 'fill'"]),
        ("kind: other\n", ["kind of study"]),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n" * 1, ["key of a study 'a'"]),
        ("models: m:x\ndata: d\nk: &k [5, *k]\n", ["is not YAML", "aliases"]),
        ("model: &a " + "x" * 300_000, ["is not YAML", "larger than"]),
        ("data: d\nmodel: {checkpoint: w}\n", ["is a name, or has one"]),
        ("data: d\nmodel: {a=b: 'm:x'}\n", ["label of a model is a plain word", "'a=b'"]),
        ("data: d\nmodel: [{name: 'm:x', label: 3}]\n", ["label of a model", "got 3"]),
        ("data: d\nmodel: [{name: 'm:x', label: v}, {name: 'm:y', label: v}]\n", ["called 'v_d"]),
        ("data: d\nmodel: m:x\nallow_code: true\n", ["may not give 'allow_code'", "--allow-code"]),
        ("data: d\nmodel: m:x\nmethods: a.py\n", ["Unknown method 'a.py'"]),
        (
            "data: d\nmodels: m:x\n"
            + "".join(f"{key}: {list(range(300))}\n" for key in ("fill", "units", "seed")),
            ["27,000,000 runs"],
        ),
        ("[" * 5000, ["is not YAML"]),
        ("models: m:x\ndata: d\nname: ../../evil\n", ["plain word"]),
        ("models: [{name: 'm:x', checkpoint: 5}]\ndata: d\n", ["checkpoint must be a path"]),
        ("models: [{name: 'm:x', pretrained: 5}]\ndata: d\n", ["true or false"]),
        (
            "data: d\nmodels: [{name: 'm:x', checkpoint: a/w}, {name: 'm:x', checkpoint: b/w}]\n",
            ["would both be called"],
        ),
    ],
)
def test_what_is_wrong_with_a_study_is_said_in_one_sentence(tmp_path, text, words):
    with refused(*words):
        fs.load_study(written(tmp_path, text))


def test_numbers_and_words_of_a_study_are_what_they_look_like(tmp_path):
    text = "kind: roar\ndata: bundled:babi1\nlearning_rate: 1e-3\nname: 2020-01-01\n"
    study = fs.load_study(written(tmp_path, text))
    assert study.name == "2020-01-01"
    assert [cell.learning_rate for cell in study.cells.values()] == [1e-3]
    study = fs.load_study(written(tmp_path, text), {"learning_rate": 2e-3, "kind": "retrain"})
    assert [cell.learning_rate for cell in study.cells.values()] == [2e-3]


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path):
    """422 bytes that never answered."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    with in_time(5), refused("is not YAML", "aliases"):
        fs.load_study(written(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize(
    "model",
    [
        {"small vit": TINY, "other": {"name": TINY, "checkpoint": "w.safetensors"}},
        [
            {"label": "small vit", "name": TINY},
            {"label": "other", "name": TINY, "checkpoint": "w.safetensors"},
        ],
    ],
    ids=["by_label", "listed"],
)
def test_models_have_labels(model):
    study = make_study({"name": "s", "model": model, "data": "bundled:cifar10"})
    assert list(study.cells) == ["small-vit_bundled-cifar10", "other_bundled-cifar10"]
    assert [cell.model for cell in study.cells.values()] == [
        f"small vit={TINY}",
        f"other={TINY}",
    ]
    assert [cell.checkpoint for cell in study.cells.values()] == [None, "w.safetensors"]


def test_folders_are_named_by_what_is_not_as_usual():
    asked = {"name": "s", "model": TINY, "data": "bundled:cifar10", "fill": ["mean", "blur"]}
    plain, blurred = make_study(asked).cells
    assert max(len(plain), len(blurred)) < 80
    assert (plain.removesuffix("_mean"), plain[-20:]) == (
        *(blurred.removesuffix("_blur"),),
        "bundled-cifar10_mean",
    )
    whole = {"units": "patches", "upsample": "nearest", "ties": "descending", "seed": 3}
    (label,) = make_study({**asked, **whole, "fill": "mean"}).cells
    assert label == f"{plain}_patches_nearest_descending_seed-3"
    others = [TINY.replace("depth=1", f"depth={depth}") for depth in (2, 3)]
    assert len(make_study({**asked, "model": [TINY, *others]}).cells) == 6


@pytest.mark.parametrize(("which", "name"), [(0, ""), (1, "_pixels_bilinear_ascending_0")])
def test_a_run_in_a_folder_with_its_former_name_goes_on(small, tmp_path, monkeypatch, which, name):
    study = make_study({**small, "fills": ["auto", "black"]})
    fs.run_study(study, tmp_path)
    first, second = study.cells
    former = former_labels(study.cells[first])[which]
    assert former.endswith(f"_bundled-cifar10_mean{name}")
    (tmp_path / first).rename(tmp_path / former)

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a finished cell is run again")

    monkeypatch.setattr("faithscope.probes.perturb.worker.ask_shard", forbidden)
    assert list(fs.run_study(study, tmp_path).results) == [former, second]
    assert not (tmp_path / first).exists()


def test_the_label_stands_in_tables_and_the_name_in_the_plan(small, tmp_path):
    (model,) = small["models"]
    study = make_study({**small, "models": {"tiny": model}})
    (result,) = fs.run_study(study, tmp_path).results.values()
    assert result.manifest.model.name == "tiny"
    assert result.manifest.plan.given["model"] == TINY
    assert {*result.scores["model"].to_pylist()} == {"tiny"}


def test_text_models_have_labels(tmp_path):
    data = csv(tmp_path / "texts.csv", rows())
    few = {"seeds": 1, "levels": [50], "measures": ["gradient"], "epochs": 1}
    content = {"kind": "roar", "name": "s", "data": str(data), "model": {"net": "bilstm"}, **few}
    (prepared,) = [held for _, held in prepare_cells(make_study(content))]
    assert prepared.plan.model.name == "net"
    with refused("Unknown model to train 'net=lstm'"):
        make_study({**content, "model": {"net": "lstm"}})


def test_a_study_that_is_not_there_is_refused(tmp_path):
    with refused("cannot be read", "check the path"):
        fs.load_study(tmp_path / "none.yaml")


def test_a_study_runs_every_cell_and_goes_on_where_it_was(small, tmp_path, monkeypatch):
    study = make_study({**small, "fills": ["mean", "black"], "k": [5, 10]})
    done = fs.run_study(study, tmp_path)
    assert list(done.results) == list(study.cells)
    for label, cell in study.cells.items():
        result = done[label]
        assert result.manifest.protocol["fill"] == cell.fill
        assert result.metrics == ["saco(k=5)", "saco(k=10)"]
        assert result.scores.equals(fs.load_result(tmp_path / label).scores)
    with refused("run of this study"):
        done["none"]

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a finished cell is run again")

    monkeypatch.setattr("faithscope.probes.perturb.worker.ask_shard", forbidden)
    again = fs.run_study(study, tmp_path)
    for label, result in done.results.items():
        assert again[label].scores.equals(result.scores)
    with pytest.raises(AssertionError, match="run again"):
        fs.run_study(make_study({**small, "fills": ["mean", "blur"], "k": [5, 10]}), tmp_path)


def test_several_ks_share_their_maps_and_inputs(small):
    together, alone = make_study({**small, "k": [5, 10]}), make_study({**small, "k": [10]})
    both, one = (
        next(iter(forecast_study(study, device="cpu").values())).cost["model passes"]
        for study in (together, alone)
    )
    assert one < both < 2 * one


@pytest.fixture
def file(small, tmp_path: Path) -> Path:
    return written(tmp_path, json.dumps(small))  # JSON is YAML


def test_a_dry_run_says_what_it_costs_and_does_nothing(file, tmp_path):
    told = run("run", file, "--out", tmp_path / "out", "--dry-run", "--set", "fills=[mean, blur]")
    assert "2 runs" in told.output and "model passes" in told.output
    assert not (tmp_path / "out").exists()
    costs = json.loads(run("run", file, "--dry-run", "--json", "--limit", 2).stdout)
    assert [cost["cost"]["images"] for cost in costs.values()] == [2]


def test_the_command_line_runs_a_study_and_shows_it(file, tmp_path):
    request = ("run", file, "--out", tmp_path / "out", "--limit", 3, "--set", "methods=[gradient]")
    told = run(*request)
    assert "saco ↑" in told.stdout and "kept in" in told.stdout
    (folder,) = (tmp_path / "out").iterdir()
    assert fs.load_result(folder).samples.num_rows == 3
    data = json.loads(run(*request, "--json").stdout)
    assert data["cells"][folder.name]["manifest"]["plan"]["request"]["k"] == 10
    assert {row["axis"] for row in data["sensitivity"]} == {"random attribution"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "fils=[mean]"], "did you mean 'fill'"),
        (["--set", "k"], "--set takes KEY=VALUE"),
        (["--set", "k=[1"], "--set takes KEY=VALUE"),
    ],
)
def test_changes_that_are_wrong_are_refused(file, arguments, words):
    assert words in fails("run", file, *arguments)


# Enough is enough


def test_a_tolerance_stops_at_a_shard_and_says_how_precise_everything_is(small, tmp_path):
    study = make_study({**small, "tolerance": 1.9, "limit": 200, "metrics": ["aopc", "log_odds"]})
    (result,) = fs.run_study(study, tmp_path).results.values()
    said = result.manifest.stopping
    assert said.reached and said.samples == result.samples.num_rows < 200
    assert said.samples % 64 == 0
    cells = [cell for by_metric in said.sequences.values() for cell in by_metric.values()]
    assert all(cell.width < 1.9 for cell in cells)
    assert {cell.kind for cell in cells} == {"exact", "asymptotic"}
    samples = [int(name) for name in result.samples["sample"].to_pylist()]
    assert samples != sorted(samples)  # in random order, or stopping would be biased


def test_a_tolerance_that_is_not_reached_uses_all_images_and_says_so(small, tmp_path):
    study = make_study({**small, "tolerance": 0.001})
    (result,) = fs.run_study(study, tmp_path).results.values()
    assert not result.manifest.stopping.reached
    assert result.samples.num_rows == 4


def test_a_stopped_study_with_a_tolerance_goes_on_and_stops_at_the_same_image(
    small, tmp_path, monkeypatch
):
    monkeypatch.setattr("faithscope.probes.perturb.probe.SHARD", 4)
    study = make_study({**small, "tolerance": 1.7, "limit": 60, "metrics": ["aopc"]})
    (whole,) = fs.run_study(study, tmp_path / "whole").results.values()
    assert 8 <= whole.samples.num_rows < 60
    from faithscope.probes.perturb import worker

    ask, asked = worker.ask_shard, []

    def interrupted(*arguments, **options):
        asked.append(1)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return ask(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(worker, "ask_shard", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fs.run_study(study, tmp_path / "stopped")
    (again,) = fs.run_study(study, tmp_path / "stopped").results.values()
    assert again.scores.equals(whole.scores)


# Conclusions

METRICS = ["saco(k=5)", "saco(k=10)", "aopc"]


@pytest.fixture(scope="module")
def concluded(small, tmp_path_factory):
    study = make_study(
        {**small, "fills": ["mean", "black"], "k": [5, 10], "metrics": ["saco", "aopc"], "limit": 8}
    )
    return fs.run_study(study, tmp_path_factory.mktemp("concluded"))


def test_sensitivity_compares_every_axis_with_its_first_value(concluded):
    rows = concluded.sensitivity().to_pylist()
    kinds = [(row["axis"], row["first"], row["second"], row["metric"]) for row in rows]
    assert kinds == [
        ("fill", "mean", "black", "saco(k=5)"),
        ("fill", "mean", "black", "saco(k=10)"),
        ("fill", "mean", "black", "aopc"),
        ("k", "5", "10", "saco"),
        ("k", "5", "10", "saco"),
    ] + [("random attribution", "random", "random_patch", m) for m in METRICS * 2]
    mean, black = concluded.results.values()
    change = np.array([black.values(m, "aopc") - mean.values(m, "aopc") for m in mean.methods])
    row = rows[2]
    assert row["absolute"] == pytest.approx(np.abs(change).mean())
    assert row["signed"] == pytest.approx(change.mean())
    assert row["signed_low"] <= row["signed"] <= row["signed_high"]
    assert 0 <= row["flipped"] <= 1
    assert -1 <= row["agreement_low"] <= row["agreement"] <= row["agreement_high"] <= 1


def test_methods_are_compared_in_pairs_and_metrics_correlated(concluded):
    result = next(iter(concluded.results.values()))
    rows = result.comparisons().to_pylist()
    count = len(result.methods)
    assert len(rows) == 3 * count * (count - 1) // 2
    assert {"random", "random_patch"} <= {row["other"] for row in rows}
    for row in rows:
        difference = result.values(row["method"], row["metric"]) - result.values(
            row["other"], row["metric"]
        )
        assert row["difference"] == pytest.approx(difference.mean())
        assert row["d_z"] == pytest.approx(difference.mean() / difference.std(ddof=1))
        assert 0 < row["p"] <= 1
    pairs = [(row["metric"], row["other"]) for row in result.correlations().to_pylist()]
    assert pairs == [("saco(k=5)", "saco(k=10)"), ("saco(k=5)", "aopc"), ("saco(k=10)", "aopc")]


def test_every_metric_gets_a_verdict_of_its_own(small, tmp_path):
    study = make_study({**small, "metrics": ["saco", "aopc"], "limit": 12, "methods": ["gradient"]})
    (result,) = fs.run_study(study, tmp_path).results.values()
    saco, aopc = result.metric_verdicts()
    assert saco.startswith("On saco the method ") and "significantly from random" in saco
    rows = {(row["method"], row["metric"]): row for row in result.summary().to_pylist()}
    random = rows["random", "saco"]
    covers = "includes" if random["ci_low"] <= 0 <= random["ci_high"] else "does not include"
    interval = f"[{random['ci_low']:.3f}, {random['ci_high']:.3f}]"
    assert f"the interval of random, {interval}, {covers} 0" in saco
    assert aopc.startswith("On aopc the method ") and "interval" not in aopc


def test_cells_that_stopped_at_different_images_are_compared_on_those_they_share(
    small, tmp_path, monkeypatch
):
    monkeypatch.setattr("faithscope.probes.perturb.probe.SHARD", 4)
    study = make_study(
        {**small, "tolerance": 1.75, "seeds": [0, 1], "limit": 60, "metrics": ["aopc"]}
    )
    done = fs.run_study(study, tmp_path)
    one, other = done.results.values()
    first, second = (r.samples["sample"].to_pylist() for r in (one, other))
    assert first[:4] != second[:4]
    shared = [sample for sample in first if sample in second]
    (row,) = [r for r in done.sensitivity().to_pylist() if r["axis"] == "seed"]
    assert row["samples"] == len(shared)
    places = [[names.index(s) for s in shared] for names in (first, second)]
    change = [
        other.values(m, "aopc")[places[1]] - one.values(m, "aopc")[places[0]] for m in one.methods
    ]
    assert row["signed"] == pytest.approx(np.mean(change))


# Studies of retraining


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
        ("models: [bilstm, bilstm]", ["'model' names something twice"]),
        ("seeds: true", ["seeds must be a number of seeds", "got True"]),
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
