"""The command line, end to end: what it prints, where, and with which exit code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file

import faithscope as fs
from commands import fails, run
from conftest import randn, tiny_vit
from faithscope import cli
from faithscope.cli import console
from faithscope.cli.doctor import Check
from faithscope.report.tables import scores_table
from faithscope.runs import progress
from faithscope.runs.scheduler import Progress

VIT = "timm:vit_tiny_patch16_224(img_size=16,patch_size=4,embed_dim=24,depth=2,num_heads=3"


def shell(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a person does."""
    command = [sys.executable, "-m", "faithscope", *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env=environment, timeout=300
    )


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_file(tiny_vit(dtype=fs.load_model("bundled:cifar10_vit").dtype).state_dict(), file)
    return file


@pytest.fixture(scope="module")
def tiny(weights: Path) -> tuple[object, ...]:
    """Options that name a tiny model."""
    return "--model", f"{VIT})", "--checkpoint", weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four images in a folder."""
    root = tmp_path / "photos"
    root.mkdir()
    rng = np.random.default_rng(0)
    for index in range(4):
        pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{index}.png")
    return root


HEAVY = (
    *("torch", "numpy", "pyarrow", "scipy", "pandas", "matplotlib", "ray"),
    *("timm", "transformers", "torchvision", "captum", "datasets"),
)
"""What is needed to run something, and not to say what there is."""


@pytest.mark.parametrize(
    ("commands", "heavy"),
    [
        ([["--help"], ["--version"], ["evaluate", "--help"], ["demmo"]], ("rich", *HEAVY)),
        ([["list"], ["list", "methods", "--json"], ["doctor"]], HEAVY),
    ],
)
def test_what_only_tells_imports_nothing_heavy(commands: list[list[str]], heavy: tuple[str, ...]):
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from faithscope.cli import app\n"
        f"print([CliRunner().invoke(app, words).exit_code for words in {commands}])\n"
        f"print([name for name in {heavy} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    codes, found = done.stdout.splitlines()
    assert found == "[]", done.stderr
    assert codes == str([2 if words == ["demmo"] else 0 for words in commands])


def test_with_entries_of_other_packages_the_registries_are_listed(monkeypatch):
    groups = SimpleNamespace(groups={"console_scripts", "faithscope.metrics"})
    monkeypatch.setattr("faithscope.cli.listing.entry_points", lambda: groups)
    monkeypatch.setattr("faithscope.cli.listing.FILE", None)
    found = json.loads(run("list", "metrics", "--json").stdout)
    assert "saco" in {entry["name"] for entry in found["metrics"]}


@pytest.mark.parametrize("command", cli.shared.ORDER)
def test_every_command_shows_an_example(command):
    assert f"  faithscope {command}" in run(command, "--help").stdout
    assert f"  {command} " in run("--help").stdout


def test_examples_parse():
    """Every option that an example in the help uses is one of that command's options."""
    for command in cli.shared.ORDER:
        options, _, example = run(command, "--help").stdout.partition("Example:")
        for option in re.findall(r"--[a-z-]+", example):
            assert option in options


def test_version():
    assert run("--version").stdout == f"faithscope {fs.__version__}\n"


def test_an_unknown_command_is_guessed():
    assert "did you mean 'demo'?" in fails("demmo")


def test_usage_errors_exit_with_2():
    for arguments in (["explain"], ["evaluate", "--modle", "x"], ["demo", "--images", "many"]):
        result = run(*arguments, code=2)
        assert "Usage:" in result.stderr


def test_program_prints_one_line_and_no_traceback():
    done = shell("evaluate", "--model", "x", "--data", "x", "--maps", "mine")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: Maps are given as NAME=PATH, got 'mine'.\n"


def test_program_survives_a_terminal_without_unicode():
    done = shell("evaluate", "--help", PYTHONIOENCODING="latin-1", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert "timm:?, hf:?" in done.stdout


def test_an_error_that_is_not_ours_keeps_its_traceback(monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("faithscope.probes.perturb.resolve.load_model", broken)
    with pytest.raises(ZeroDivisionError):
        run("evaluate", "--model", "bundled:cifar10_vit", "--data", "bundled:cifar10")


def test_interrupting_exits_with_130(monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("faithscope.probes.perturb.resolve.load_model", interrupted)
    result = run("evaluate", "--model", "bundled:cifar10_vit", "--data", "x", code=130)
    assert result.stderr.count("\n") == 1


class TestEvaluate:
    def test_prints_a_table_and_a_verdict(self, tiny, folder):
        result = run("evaluate", *tiny, "--data", folder, "--methods", "rollout,gradient")
        assert "4 images, " in result.stderr  # the forecast
        rows = [line.split() for line in result.stdout.splitlines()]
        names = [row[0] for row in rows if row]
        assert names[names.index("method") + 2 :][:4] == [
            "rollout",
            "gradient",
            "random",
            "random_patch",
        ]
        assert "saco ↑" in result.stdout
        assert "log_odds ↓" in result.stdout
        assert "4 images are too few for a verdict" in result.stdout
        assert "significant" not in result.stdout

    def test_json_is_all_of_stdout_and_agrees_with_the_saved_result(self, tiny, folder, tmp_path):
        out, page = tmp_path / "deep" / "run", tmp_path / "pages" / "report.html"
        request = ["--data", folder, "--methods", "rollout", "--metrics", "saco,auc(step=50)"]
        told = run("evaluate", *tiny, *request, "--json", "--out", out, "--report", page)
        data = json.loads(told.stdout)
        saved = fs.load_result(out)
        assert data["summary"] == [
            {key: None if value != value else value for key, value in row.items()}
            for row in saved.summary().to_pylist()
        ]
        assert data["summary"][-1]["p_vs_random"] is None  # random is not compared with itself
        assert [row["metric"] for row in data["summary"][:2]] == ["saco", "auc(step=50)"]
        assert data["manifest"]["plan"]["request"]["k"] == 10
        assert data["headline"] == saved.headline()
        assert page.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html")
        assert str(out) in told.stderr

    def test_options_reach_the_protocol(self, tiny, folder):
        choices = {
            "k": "auto",
            "fill": "blur",
            "units": "patches",
            "upsample": "nearest",
            "ties": "descending",
            "group": "mean",
            "seed": 7,
            "precision": "fp64",
        }
        request = [word for key, value in choices.items() for word in (f"--{key}", value)]
        request += ["--target", 3, "--random-draws", 1, "--batch-size", 5, "--limit", 2]
        told = run("evaluate", *tiny, "--data", folder, "--methods", "rollout", *request, "--json")
        manifest = json.loads(told.stdout)["manifest"]
        expected = {**choices, "target": 3, "random_draws": 1, "batch_size": 5}
        assert expected.items() <= manifest["plan"]["request"].items()
        assert manifest["data"]["samples"] == 2

    def test_maps_of_ones_own(self, tiny, folder, tmp_path):
        mine = tmp_path / "mine.npy"
        np.save(mine, np.random.default_rng(0).integers(0, 9, (4, 16, 16)).astype(">i4"))
        told = run("evaluate", *tiny, "--data", folder, "--maps", f"mine={mine}", "--json")
        methods = json.loads(told.stdout)["manifest"]["methods"]
        assert list(methods) == ["mine", "random", "random_patch"]

    def test_an_unreadable_image_is_left_out_named_and_counted(self, tiny, folder):
        (folder / "broken.png").write_bytes(b"no image")
        told = run("evaluate", *tiny, "--data", folder, "--methods", "gradient", "--json")
        assert "1 of 5 images left out:" in told.stderr
        assert "broken.png: it cannot be read" in told.stderr
        data = json.loads(told.stdout)["manifest"]["data"]
        assert data["samples"] == 4
        assert [item["name"] for item in data["skipped"]] == ["broken.png"]

    def test_undefined_scores_are_null_and_flagged(self, tiny, folder, tmp_path):
        maps = np.random.default_rng(0).random((4, 16, 16))
        maps[0] = np.nan
        maps[1] = 1.0
        np.save(tmp_path / "odd.npy", maps)
        given = ("--maps", f"odd={tmp_path / 'odd.npy'}", "--metrics", "saco")
        told = run("evaluate", *tiny, "--data", folder, *given)
        assert "odd: 1 of 4 images flagged 'nan_map'" in told.stdout
        assert "odd: 1 of 4 maps is constant, so it ranks nothing." in told.stdout
        one = run("evaluate", *tiny, "--data", folder, *given, "--limit", 1, "--json", code=2)
        assert "expected 1 map" in one.stderr

    def test_a_dry_run_says_the_cost_and_writes_nothing(self, tiny, folder, tmp_path):
        out = tmp_path / "run"
        asked = ("evaluate", *tiny, "--data", folder, "--methods", "rollout", "--dry-run")
        asked = (*asked, "--out", out, "--report", tmp_path / "pages" / "page.html")
        told = run(*asked).stdout
        assert re.match(r"4 images, 736 model passes, about \d+ s\n$", told)
        data = json.loads(run(*asked, "--json").stdout)
        assert (data["cost"]["images"], data["tasks"], data["folder"]) == (4, 1, str(out))
        assert [path.name for path in tmp_path.iterdir()] == [folder.name]
        assert "--from" in fails("evaluate", "--from", tmp_path, "--dry-run")

    def test_what_fails_leaves_no_empty_folder(self, tiny, folder, tmp_path):
        out = tmp_path / "new" / "run"
        asked = ("evaluate", *tiny, "--data", folder, "--methods", "grad_cam(layer=nowhere)")
        assert "Unknown layer" in fails(*asked, "--out", out)
        assert not out.parent.exists() and tmp_path.exists()

    def test_one_image_has_no_interval(self, tiny, folder):
        request = ("--methods", "gradient", "--metrics", "saco", "--limit", 1)
        told = run("evaluate", *tiny, "--data", folder, *request, "--json")
        rows = json.loads(told.stdout)["summary"]
        assert all(row["ci_low"] is None for row in rows)
        assert "nan" not in run("evaluate", *tiny, "--data", folder, *request).stdout

    def test_a_failing_report_loses_nothing(
        self,
        tiny,
        folder,
        tmp_path,
        monkeypatch,
    ):
        def broken(*_: object, **__: object) -> None:
            raise fs.FaithscopeError("The page cannot be written.")

        monkeypatch.setattr("faithscope.report.page.write_page", broken)
        request = ("--methods", "gradient", "--metrics", "saco", "--out", tmp_path / "run")
        told = run(
            "evaluate", *tiny, "--data", folder, *request, "--report", tmp_path / "r.html", code=2
        )
        assert "gradient" in told.stdout
        assert "error: The page cannot be written." in told.stderr
        assert fs.load_result(tmp_path / "run").methods[0] == "gradient"

    def test_a_result_that_cannot_be_saved_is_not_lost(
        self,
        tiny,
        folder,
        tmp_path,
        monkeypatch,
    ):
        def broken(*_: object) -> None:
            raise fs.FaithscopeError("No space left.")

        request = ("--methods", "gradient", "--metrics", "saco", "--out", tmp_path / "run")
        with monkeypatch.context() as patch:
            patch.setattr("faithscope.runs.store.save_run", broken)
            told = run("evaluate", *tiny, "--data", folder, *request, code=2)
        assert "error: No space left." in told.stderr
        told = run("evaluate", *tiny, "--data", folder, *request)
        assert "resuming the run" in told.stderr
        assert "saco ↑" in told.stdout

    @pytest.mark.parametrize(
        ("request_", "complaint"),
        [
            (["--metrics", ","], "Unknown metric ''"),
            (["--k", "300", "--metrics", "saco"], "k = 300 groups cannot be made of 256 units"),
            (["--device", "gpu"], "The device 'gpu' is not available here"),
            (["--maps", "mine.npy"], "NAME=PATH"),
            (["--maps", "mine=missing.npy"], "There is no file or folder of maps 'missing.npy'"),
            (["--data", "missing"], "There is no folder or image 'missing'"),
            (["--data", "bundled:cifar"], "Unknown bundled data 'cifar'"),
            (["--model", "vit"], "A model is named 'source:name'"),
            (["--model", "tim:vit"], "Unknown model source 'tim': did you mean 'timm'?"),
            (["--checkpoint", "missing.pt"], "There is no checkpoint file 'missing.pt'"),
        ],
    )
    def test_bad_options_are_refused(self, tiny, folder, request_, complaint):
        usual = ("--methods", "gradient") if "--methods" not in request_ else ()
        assert complaint in fails("evaluate", *tiny, "--data", folder, *usual, *request_)

    def test_targets_that_are_not_there(self, tiny, folder):
        request = ("evaluate", *tiny, "--data", folder, "--methods", "gradient", "--target")
        assert "error: target='label' needs labels" in run(*request, "label", code=2).stderr
        assert "its classes are 0 to 4" in run(*request, 5, code=2).stderr

    def test_an_empty_folder(self, tiny, tmp_path):
        (tmp_path / "notes.txt").write_text("nothing to see")
        assert "holds no images" in fails("evaluate", *tiny, "--data", tmp_path)

    def test_a_folder_of_nothing_but_broken_images(self, tiny, tmp_path):
        (tmp_path / "a.png").write_bytes(b"no image")
        assert "'a.png': it cannot be read" in fails("evaluate", *tiny, "--data", tmp_path)

    def test_a_damaged_checkpoint(self, folder, tmp_path):
        for name in ("damaged.safetensors", "damaged.pt"):
            file = tmp_path / name
            file.write_bytes(b"these are no weights")
            told = fails("evaluate", "--model", f"{VIT})", "--checkpoint", file, "--data", folder)
            assert f"The checkpoint '{file}' cannot be read" in told

    def test_a_checkpoint_of_another_model(self, weights, folder):
        other = ("--model", f"{VIT},num_classes=7)", "--checkpoint", weights)
        told = fails("evaluate", *other, "--data", folder)
        assert "does not fit this model" in told
        assert "head.weight" in told

    @pytest.mark.parametrize("content", [b"", b"text", None])
    def test_a_file_that_holds_no_maps(self, tiny, folder, tmp_path, content):
        file = tmp_path / "maps.npy"
        if content is None:
            np.save(file, np.array([{"code": "runs"}]), allow_pickle=True)
        else:
            file.write_bytes(content)
        told = fails("evaluate", *tiny, "--data", folder, "--maps", f"mine={file}")
        assert "cannot be read" in told

    def test_a_place_that_cannot_be_written_is_refused_before_the_work(self, folder, tmp_path):
        (tmp_path / "taken").write_text("a file")
        request = ("--model", "no:such", "--data", folder)
        for option in (["--out", tmp_path / "taken"], ["--report", tmp_path / "taken" / "r.html"]):
            assert "cannot be made" in fails("evaluate", *request, *option)


class TestLongWork:
    def ask(self, monkeypatch: pytest.MonkeyPatch, *, person: bool, yes: bool = False) -> int:
        """Forecast a long run, answer no if there is a question; how often was it asked?"""
        asked = []
        stream = SimpleNamespace(isatty=lambda: person)
        monkeypatch.setattr("sys.stdin", stream)
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setattr("typer.confirm", lambda *_, **__: bool(asked.append(1)))
        monkeypatch.setattr("typer.echo", lambda *_, **__: None)
        forecast: Any = SimpleNamespace(seconds=cli.shared.LONG_SECONDS + 1)
        try:
            cli.shared.ask(forecast, yes, "fewer images")
        except typer.Exit as stopped:
            assert stopped.exit_code == 1
            assert asked
        return len(asked)

    @pytest.mark.parametrize(("person", "yes", "times"), [(1, 0, 1), (0, 0, 0), (1, 1, 0)])
    def test_a_person_is_asked_unless_yes_was_said(self, monkeypatch, person, yes, times):
        assert self.ask(monkeypatch, person=bool(person), yes=bool(yes)) == times


class TestExplain:
    def test_picture_and_saco(self, tiny, folder, tmp_path):
        picture = tmp_path / "out" / "picture.png"
        request = (folder / "0.png", *tiny, "--methods", "rollout,gradient", "--out", picture)
        told = run("explain", *request)
        assert re.search(r"^predicted: \d, \d+\.\d%$", told.stdout, re.MULTILINE)
        assert str(picture) in told.stdout
        with Image.open(picture) as opened:
            assert min(opened.size) > 100
        data = json.loads(run("explain", *request, "--json").stdout)
        for method, value in data["saco"].items():
            assert re.search(rf"^{method} +{value:.3f}", told.stdout, re.MULTILINE)
        assert list(data["saco"]) == ["rollout", "gradient"]

    def test_agrees_with_evaluate(self, tiny, folder):
        model = fs.load_model(f"{VIT})", checkpoint=tiny[-1])
        expected = fs.evaluate(model, folder / "1.png", "rollout", "saco", target=2, k=5)
        request = ("--methods", "rollout", "--target", 2, "--k", 5, "--out", folder / "x.png")
        data = json.loads(run("explain", folder / "1.png", *tiny, *request, "--json").stdout)
        assert data["saco"]["rollout"] == pytest.approx(expected.values("rollout", "saco")[0])
        assert data["explained"]["class"] == 2
        probability = np.exp(expected.samples["log_p0"][0].as_py())
        assert data["explained"]["probability"] == pytest.approx(probability, rel=1e-5)
        assert data["predicted"]["probability"] >= data["explained"]["probability"]

    def test_the_map_drawn_is_the_map_scored(self, tiny, folder, monkeypatch):
        """Also for random attribution, which is drawn by the sample's key."""
        drawn: dict[str, Any] = {}

        def draw(model: object, images: object, maps: Any, path: Path, **rest: Any) -> None:
            drawn.update(images=images, maps=maps, scores=rest["scores"])

        monkeypatch.setattr("faithscope.report.figures.draw_explanations", draw)
        request = ("--methods", "random,gradient", "--target", 3, "--out", folder / "x.png")
        run("explain", folder / "0.png", *tiny, *request)
        model = fs.load_model(f"{VIT})", checkpoint=tiny[-1])
        maps = {f"drawn {name}": values for name, values in drawn["maps"].items()}
        again = fs.evaluate(model, drawn["images"], (), "saco", maps=maps, target=3)
        for name in ("random", "gradient"):
            expected = again.values(f"drawn {name}", "saco")
            assert drawn["scores"][name] == pytest.approx(expected)

    def test_default_name(self, tiny, folder, monkeypatch):
        monkeypatch.chdir(folder)
        run("explain", "2.png", *tiny, "--methods", "gradient")
        assert (folder / "2-explained.png").is_file()

    def test_bad_input(self, tiny, folder):
        (folder / "broken.png").write_bytes(b"no image")
        assert "is a folder" in fails("explain", folder, *tiny)
        assert "There is no folder or image" in fails("explain", folder / "9.png", *tiny)
        assert "cannot be used: it cannot be read" in fails("explain", folder / "broken.png", *tiny)
        assert "its classes are 0 to 4" in fails(
            "explain", folder / "0.png", *tiny, "--target", 5, "--methods", "gradient"
        )
        assert "did you mean 'rollout'?" in fails(
            "explain", folder / "0.png", *tiny, "--methods", "rollot"
        )


class TestList:
    def test_everything(self):
        told = run("list").stdout
        for name in ("rollout", "saco ↑", "log_odds ↓", "inpaint", "bundled:cifar10_vit"):
            assert name in told
        assert "start_layer=0" in told
        assert "patch map · reads attention" in told

    def test_json(self):
        found = json.loads(run("list", "--json").stdout)
        assert list(found) == [
            *("methods", "metrics", "fills", "models", "data"),
            *("measures", "texts", "text models"),
        ]
        methods = {entry["name"]: entry for entry in found["methods"]}
        assert methods["integrated_gradients"]["options"]["steps"] == 50
        assert methods["rollout"]["needs"] == ["attention"]
        metrics = {entry["name"]: entry for entry in found["metrics"]}
        assert metrics["saco"]["bounds"] == [-1, 1]
        assert metrics["log_odds"]["bounds"] == [None, None]
        assert not metrics["log_odds"]["higher_is_better"]
        assert all(entry["summary"] for entries in found.values() for entry in entries)

    def test_one_kind(self):
        assert list(json.loads(run("list", "fills", "--json").stdout)) == ["fills"]
        assert "did you mean 'metrics'?" in fails("list", "metric")


class TestDoctor:
    def test_a_sound_installation(self):
        checks = json.loads(run("doctor", "--run", "--json").stdout)
        by_name = {check["name"]: check for check in checks}
        assert by_name["bundled model"]["status"] == "ok"
        assert float(by_name["bundled model"]["detail"].split("%")[0]) > 90
        assert by_name["attention"]["status"] == "ok"
        assert not [check for check in checks if check["status"] == "fail"]

    def test_failures_are_told_with_advice_and_exit_1(self, monkeypatch):
        checks = [Check("python", "ok", "3"), Check("torch", "fail", "missing", "install it")]
        monkeypatch.setattr("faithscope.cli.doctor.examine", lambda run: iter(checks))
        told = run("doctor", code=1)
        assert re.search(r"^fail +torch +missing$", told.stdout, re.MULTILINE)
        assert "→ install it" in told.stdout
        assert json.loads(run("doctor", "--json", code=1).stdout)[1]["status"] == "fail"

    def test_a_check_that_breaks_is_a_failure(self, monkeypatch):
        def broken(*_: object, **__: object) -> None:
            raise ImportError("libtorch is not here")

        monkeypatch.setattr("faithscope.models.load_model", broken)
        told = run("doctor", "--run", code=1)
        assert re.search(r"^fail +bundled model +ImportError: libtorch", told.stdout, re.MULTILINE)
        assert re.search(r"^ok +python", told.stdout, re.MULTILINE)

    def test_lower_bounds(self, monkeypatch):
        lines = ["numpy>=1", "torch>=999", "no-such-package>=1", "ray>=2; extra == 'ray'"]
        monkeypatch.setattr("importlib.metadata.requires", lambda _: lines)
        told = run("doctor", code=1)
        assert re.search(r"^ok +numpy +\d", told.stdout, re.MULTILINE)
        assert re.search(
            r"^fail +torch +\d.* is too old; requires >=999$", told.stdout, re.MULTILINE
        )
        assert re.search(r"^fail +no-such-package +not installed", told.stdout, re.MULTILINE)
        assert "pip install --upgrade 'torch>=999'" in told.stdout
        assert "ray" not in told.stdout


def test_demo(tmp_path, monkeypatch):
    # the picture shows more than a shard
    monkeypatch.setattr("faithscope.probes.perturb.probe.SHARD", 1)
    out = tmp_path / "demo"
    told = run("demo", "--images", 2, "--out", out)
    assert "2 images, 472 model passes" in told.stderr
    assert "2 random draws" in told.stderr
    result = fs.load_result(out / "run")
    assert result.methods[0] == "integrated_gradients"
    assert result.metrics == ["saco", "aopc", "log_odds", "auc", "comprehensiveness"]
    assert result.headline() in told.stdout
    for sentence in result.verdicts():
        assert sentence in told.stdout
    with Image.open(out / "heatmaps.png") as picture:
        assert min(picture.size) > 300
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    for path in (out / "heatmaps.png", out / "report.html", out / "run"):
        assert str(path) in told.stdout
    assert told.stdout.count("\n  faithscope ") == 2


def test_demo_refuses_what_makes_no_sense(tmp_path):
    said = fails("demo", "--images", 0, "--out", tmp_path / "none")
    assert "--images must be at least 1" in said and not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("taken")
    assert "cannot be made" in fails("demo", "--out", tmp_path / "file")


class TestProgress:
    def pace(self, monkeypatch: pytest.MonkeyPatch, done: float, now: float) -> Any:
        monkeypatch.setattr("time.perf_counter", lambda: now)
        pace = progress.Pace("model passes", SimpleNamespace(seconds=80.0), started=0.0)
        pace.move(Progress("explaining", "shard-0", 0.0, 2000.0))
        pace.move(Progress("measuring", "shard-0", done, 2000.0))
        return pace

    def test_before_anything_is_done_the_forecast_counts(self, monkeypatch):
        pace = self.pace(monkeypatch, 0.0, 10.0)
        assert pace.seconds_left() == 70
        assert str(pace) == "0/2,000 model passes · 1:10 left"

    def test_then_the_rate_counts_the_more_the_more_is_done(self, monkeypatch):
        # half of it took 60 s, so all would take 120 and not the 80 of the forecast
        pace = self.pace(monkeypatch, 1000.0, 60.0)
        assert pace.seconds_left() == pytest.approx(0.5 * (0.5 * 120 + 0.5 * 80))
        assert str(pace) == "1,000/2,000 model passes · 17 per second · 0:50 left"
        assert self.pace(monkeypatch, 2000.0, 100.0).seconds_left() == 0

    def test_lines_instead_of_a_bar(self, monkeypatch, capsys):
        now = [0.0]
        monkeypatch.setattr("time.perf_counter", lambda: now[0])

        def work(report: Any) -> str:
            for step in range(21):
                report(Progress("measuring", "shard-0", 100.0 * step, 2000.0))
                now[0] += 4.0
            return "done"

        prepared: Any = SimpleNamespace(run=work, probe=SimpleNamespace(unit="model passes"))
        assert console.run_with_progress(prepared) == "done"
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 6  # every third of twenty steps
        assert lines[0] == " 15% · measuring · 300/2,000 model passes · 25 per second · 1:08 left"

    def test_clock(self):
        assert [progress.clock(s) for s in (0.4, 61, 3661)] == ["0:00", "1:01", "1:01:01"]


@pytest.mark.parametrize(
    ("width", "form"),
    [
        (80, "{ci_low:.2f}…{ci_high:.2f}"),
        (120, "[{ci_low:.3f}, {ci_high:.3f}]"),
        (200, "{mean:.3f} [{ci_low:.3f}, {ci_high:.3f}]"),
    ],
)
def test_the_table_fits_the_terminal(width, form, tiny, folder):
    model = fs.load_model(f"{VIT})", checkpoint=tiny[-1])
    methods = ["integrated_gradients(steps=2)", "input_x_gradient"]
    result = fs.evaluate(model, folder, methods)
    terminal = Console(width=width, force_terminal=True, color_system=None, record=True)
    terminal.print(scores_table(result).fitted(terminal))
    text = terminal.export_text()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for row in result.summary().to_pylist():
        assert form.format(**row) in text
        assert f"{row['mean']:.3f}" in text


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("study")
    for fill in ("mean", "blur"):
        images = randn(6, 3, 16, 16)
        methods, metrics = ["rollout", "gradient"], ["saco", "aopc", "auc"]
        options = {"fill": fill, "random_draws": 1, "out": root / fill}
        fs.evaluate(tiny_vit(), images, methods, metrics, **options)
    (root / "begun").mkdir()
    (root / "begun" / "plan.json").write_text("{}")
    return root


class TestReport:
    """`faithscope report`, from a run's folder to files."""

    def test_a_run_gets_its_page_figures_and_tables(self, study, tmp_path):
        run("report", study / "mean", "--figures", tmp_path / "f", "--tables", tmp_path / "t")
        assert "6 images" in (study / "mean" / "report.html").read_text("utf-8")
        names = {file.name for file in (tmp_path / "f").iterdir()}
        assert {"intervals.pdf", "intervals.png", "radar.pdf", "curves.png"} <= names
        assert (tmp_path / "f" / "curves.pdf").read_bytes().startswith(b"%PDF")
        names = {file.name for file in (tmp_path / "t").iterdir()}
        assert {"scores.md", "scores.tex", "scores.csv", "comparisons.csv"} <= names

    def test_a_study_shares_one_page_that_names_what_is_missing(self, study, tmp_path):
        told = run("report", study, "--out", tmp_path / "deep" / "page.html")
        assert "page.html" in told.stdout
        page = (tmp_path / "deep" / "page.html").read_text("utf-8")
        assert "2 runs: fill mean, blur" in page
        assert "fill=blur" in page
        assert "Not finished, and not on this page: begun" in page

    def test_the_same_run_gives_the_same_bytes(self, study, tmp_path):
        for name in "ab":
            out = tmp_path / name
            run("report", study / "blur", "--out", out / "p.html", "--figures", out)
        assert [file.read_bytes() for file in sorted((tmp_path / "a").iterdir())] == [
            file.read_bytes() for file in sorted((tmp_path / "b").iterdir())
        ]

    def test_bad_input_is_one_sentence(self, study, tmp_path):
        assert "no folder" in run("report", tmp_path / "none", code=2).stderr
        assert "is too long" in run("report", "x" * 300, code=2).stderr
        assert "no finished run" in run("report", tmp_path, code=2).stderr
        assert "not finished" in run("report", study / "begun", code=2).stderr
        (tmp_path / "file").write_text("")
        taken = run("report", study / "mean", "--out", tmp_path / "file" / "p.html", code=2)
        assert "cannot be made" in taken.stderr
        assert "cannot be written" in run("report", study / "mean", "--out", study, code=2).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "--out", ""],
        ["report", ""],
        ["compare", "a", "b", "--csv", ""],
        ["pack", ""],
        ["unpack", "", "--out", "x"],
        ["explain", ""],
        ["run", ""],
        ["run", "x.yaml", "--out", ""],
        ["roar", "--pack", ""],
        ["evaluate", "--from", ""],
        ["evaluate", "--report", ""],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused(arguments):
    assert "is empty" in fails(*arguments)
