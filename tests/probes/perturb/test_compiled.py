"""A compiled model: the same scores, one size of batch, and nothing of it stays behind."""

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

import faithscope as fs
from commands import fails, run
from conftest import (
    assert_same_scores,
    eleven_maps,
    randn,
    score_cube,
    score_maps,
    single_vit,
    tiny_vit,
    toy,
)
from faithscope.methods.trace import gather
from faithscope.perturb import FILLS
from faithscope.probes.perturb import compiled, probe
from families import refused, state_of, unsettled
from text_models import TEXTS, text_model

MAPS = {"pixels": randn(3, 16, 16, seed=1), "patches": randn(3, 4, 4, seed=2)}


def hugging_face(dtype: torch.dtype) -> nn.Module:
    config = ViTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=48,
        image_size=16,
        patch_size=4,
        num_labels=5,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ViTForImageClassification(config).to(dtype).eval()


BUILDS = {"timm": lambda dtype: tiny_vit(dtype=dtype), "hugging_face": hugging_face}


class Compiler:
    """Compiles nothing, and remembers for which batches it was asked, and which it ran."""

    def __init__(self, most=math.inf):
        self.most, self.programs, self.batches = most, [], []

    def __call__(self, graph, inputs):
        self.programs.append(self.size(inputs))

        def run(*inputs):
            self.batches.append(self.size(inputs))
            if self.batches[-1] > self.most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return graph(*inputs)

        return run

    @staticmethod
    def size(inputs):
        return next(len(held) for held in inputs if held.ndim == 4)


@pytest.fixture(autouse=True)
def forgetful():
    """What was compiled for one test is not there in another."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def compiler(monkeypatch):
    made = Compiler()
    monkeypatch.setattr(compiled, "BACKEND", made)
    return made


@pytest.fixture
def traced(monkeypatch):
    """What torch captures of the model is run as it is: no machine code is made."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")


def everything(module, images, **options):
    options = {"methods": ["rollout", "gradient"], "metrics": "registered", **options}
    return fs.evaluate(module, images, maps=MAPS, random_draws=1, **options)


def assert_agrees(module, images, tolerance):
    plain = everything(module, images)
    fast, again = (everything(module, images, compile=True) for _ in range(2))
    np.testing.assert_allclose(
        fast.responses["log_p"].to_numpy(), plain.responses["log_p"].to_numpy(), 0, tolerance
    )
    if tolerance < 1e-6:
        assert_same_scores(fast, plain, tolerance)
    assert fast.manifest.cost.response_passes == plain.manifest.cost.response_passes
    assert fast.manifest.plan.request.compile and not plain.manifest.plan.request.compile
    assert again.scores.equals(fast.scores) and again.responses.equals(fast.responses)


# --- The same scores ---


@pytest.mark.parametrize("build", list(BUILDS))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_what_is_traced_scores_as_the_model_itself(traced, build, dtype, tolerance):
    assert_agrees(BUILDS[build](dtype), randn(3, 3, 16, 16, dtype=dtype), tolerance)


@pytest.mark.parametrize(
    ("build", "dtype", "tolerance"),
    [
        ("timm", torch.float64, 1e-9),
        pytest.param("timm", torch.float32, 1e-4, marks=pytest.mark.slow),
        pytest.param("hugging_face", torch.float64, 1e-9, marks=pytest.mark.slow),
        pytest.param("hugging_face", torch.float32, 1e-4, marks=pytest.mark.slow),
    ],
)
def test_machine_code_scores_as_the_model_itself(build, dtype, tolerance):
    assert_agrees(BUILDS[build](dtype), randn(3, 3, 16, 16, dtype=dtype), tolerance)


def test_a_copy_in_another_precision_is_compiled(compiler):
    images = randn(3, 3, 16, 16, dtype=torch.float32)
    module = tiny_vit(dtype=torch.float32)
    fast = everything(module, images, compile=True, precision="fp64")
    assert compiler.programs
    assert_same_scores(fast, everything(module, images, precision="fp64"))


def test_a_module_that_was_compiled_already_is_compiled_afresh(compiler):
    images = randn(3, 3, 16, 16)
    theirs = torch.compile(tiny_vit(), backend="eager")
    fast = everything(theirs, images, compile=True, methods="gradient")
    assert compiler.programs
    assert_same_scores(fast, everything(tiny_vit(), images, methods="gradient"))


# --- One size of batch ---


@pytest.mark.parametrize("batch_size", [7, 100, 1000])
def test_all_batches_are_of_one_size_and_passes_are_counted_as_asked(compiler, batch_size):
    images, maps = randn(3, 3, 10, 10), eleven_maps(3, 10, 10)
    module, told = nn.Sequential(nn.Identity(), toy()), []
    result = score_maps(
        module, images, maps, batch_size=batch_size, compile=True, progress=told.append
    )
    perturbed = math.ceil(3 * 287 / batch_size)
    assert compiler.batches == [batch_size] * (1 + perturbed)
    assert compiler.programs == [batch_size]
    assert result.manifest.cost.response_passes == told[-1].done == 3 * 288
    assert_same_scores(result, score_maps(module, images, maps))


@pytest.mark.parametrize(("count", "chosen"), [(1, 64), (3, 256), (11, 512)])
def test_a_batch_size_is_chosen_that_fills_up_little(monkeypatch, count, chosen):
    """64 images: a batch of 512 would be one eighth full of intact ones."""
    monkeypatch.setattr(probe, "choose_batch_size", lambda *_: 512)
    maps = {f"map {i}": torch.rand(70, 10, 10) for i in range(count)}
    options = {"methods": (), "maps": maps, "random_draws": 0}
    images = randn(70, 3, 10, 10)
    plain, fast = (fs.prepare(toy(), images, **options, compile=held) for held in (False, True))
    assert (plain.plan.request.batch_size, fast.plan.request.batch_size) == (512, chosen)
    asked = fs.prepare(toy(), images, **options, compile=True, batch_size=512)
    assert asked.plan.request.batch_size == 512


def test_shards_and_runs_share_a_program(compiler, monkeypatch):
    monkeypatch.setattr(probe, "SHARD", 2)
    images, maps = randn(5, 3, 10, 10), eleven_maps(5, 10, 10)
    for seed in range(2):
        module = nn.Sequential(toy(seed=seed))
        fast = score_maps(module, images, maps, batch_size=64, compile=True)
        assert_same_scores(fast, score_maps(module, images, maps, batch_size=64))
    assert compiler.programs == [64]


@pytest.mark.parametrize("fill", [name for name in FILLS if not FILLS[name].drops])
def test_a_forecast_and_every_fill_have_one_program(compiler, fill):
    options = {"maps": MAPS, "random_draws": 0, "batch_size": 32, "fill": fill}
    plan = fs.prepare(single_vit(), randn(3, 3, 16, 16).float(), compile=True, **options)
    plan.forecast()
    plan.run()
    assert compiler.programs == [32] and {*compiler.batches} == {32}


def test_a_batch_that_does_not_fit_is_halved_and_compiled_once_more(compiler):
    compiler.most = 20
    images, maps = randn(3, 3, 10, 10), eleven_maps(3, 10, 10)
    module = nn.Sequential(toy())
    fast = score_maps(module, images, maps, batch_size=64, compile=True)
    assert compiler.programs == [64, 32, 16] and fast.manifest.cost.batch_halvings == 2
    assert {*compiler.batches[2:]} == {16}
    assert_same_scores(fast, score_maps(module, images, maps))


def test_images_of_several_sizes_make_a_program_each(compiler):
    module = nn.Sequential(nn.AdaptiveAvgPool2d(2), toy(2, 2))
    images = [randn(3, 6, 6), randn(3, 8, 8), randn(3, 6, 6, seed=1)]
    options = {"methods": "gradient", "random_draws": 0, "batch_size": 8}
    fast = fs.evaluate(module, images, **options, compile=True)
    assert compiler.programs == [8, 8]
    assert_same_scores(fast, fs.evaluate(module, images, **options))


def test_many_models_of_a_class_are_all_compiled(compiler):
    """Torch itself runs the ninth uncompiled."""
    for classes in range(2, 13):
        module = nn.Sequential(toy(classes=classes))
        score_maps(module, randn(1, 3, 10, 10), eleven_maps(1, 10, 10), compile=True, batch_size=64)
    assert compiler.programs == [64] * 11


def test_only_perturbed_images_are_run_by_the_program(compiler, monkeypatch):
    """Methods see the module itself, which can be watched."""
    seen = []
    monkeypatch.setattr(
        "faithscope.methods.explain.gather",
        lambda *args, **given: (seen.append(args[0].module), gather(*args, **given))[1],
    )
    module = tiny_vit()
    everything(module, randn(3, 3, 16, 16), compile=True)
    assert seen and all(held is module for held in seen)


# --- Failures ---


class Particular(nn.Module):
    """Raises on an image that is too bright."""

    def __init__(self):
        super().__init__()
        self.body = toy()

    def forward(self, x):
        if x.max() > 50:
            raise ValueError("too bright")
        return self.body(x)


def test_an_image_on_which_the_model_raises_costs_itself_alone(traced):
    images, maps = randn(3, 3, 10, 10), eleven_maps(3, 10, 10)
    images[1] *= 100
    plain, fast = (
        score_maps(Particular(), images, maps, batch_size=16, compile=held)
        for held in (False, True)
    )
    failed = plain.manifest.data.failed
    assert failed == fast.manifest.data.failed and {held.sample for held in failed} == {"1"}
    assert_same_scores(fast, plain)


def test_what_cannot_be_compiled_is_refused_in_a_sentence(monkeypatch):
    def fail(*_):
        raise RuntimeError("no C++ compiler\nin sight")

    monkeypatch.setattr(compiled, "BACKEND", fail)
    module = tiny_vit()
    before = state_of(module)
    words = "cannot be compiled", "no C++ compiler", "leave compile out, or install"
    for call in (lambda plan: plan.run(), lambda plan: plan.forecast()):
        with refused(*words):
            call(fs.prepare(module, randn(3, 3, 16, 16), "gradient", compile=True))
    assert state_of(module) == before


def test_a_missing_compiler_is_refused_in_a_sentence(monkeypatch):
    import torch._inductor.config as inductor

    with (
        inductor.patch({"cpp.cxx": (None, "no-such-compiler++"), "force_disable_caches": True}),
        refused("cannot be compiled", "no-such-compiler++", "a C++ compiler"),
    ):
        everything(tiny_vit(dtype=torch.float32), randn(3, 3, 16, 16), compile=True)


def test_an_error_of_the_model_itself_is_said_as_ever(traced):
    images = randn(2, 3, 20, 20)
    with refused("cannot run images of shape [3, 20, 20]: Input height (20)"):
        score_maps(tiny_vit(), images, {"mine": randn(2, 20, 20)}, compile=True)


class Counting(nn.Module):
    """Is another model at every call, as far as a compiler can tell."""

    def __init__(self):
        super().__init__()
        self.body, self.calls = toy(), 0

    def forward(self, x):
        self.calls += 1
        return self.body(x) * (1 + 0 * self.calls)


def test_a_model_that_is_compiled_again_and_again_is_refused(compiler, monkeypatch):
    monkeypatch.setattr(compiled, "MOST_PROGRAMS", 5)
    options = {"batch_size": 4, "compile": True}
    with refused("cannot be compiled", "limit"):
        score_maps(Counting(), randn(3, 3, 10, 10), eleven_maps(3, 10, 10), **options)
    assert len(compiler.programs) == 5


class Uncopied(nn.Sequential):
    """Holds something of which there is only one."""

    def __deepcopy__(self, memo):
        raise AttributeError("there is only one")


def test_a_model_that_cannot_be_copied_is_refused():
    with refused("cannot be copied, which compile needs (AttributeError: there is only one)"):
        score_maps(Uncopied(toy()), randn(3, 3, 10, 10), eleven_maps(3, 10, 10), compile=True)


def test_what_has_many_sizes_is_refused():
    with refused("compile makes a program for inputs of one size", "fill='drop'"):
        fs.evaluate("bundled:cifar10_vit", "nowhere", fill="drop", units="patches", compile=True)
    with refused("compile is for models of images, and", "reads texts: leave it out"):
        fs.evaluate(text_model("Bert"), TEXTS, "gradient", compile=True)


# --- Nothing stays behind ---


@pytest.mark.parametrize("is_whole", [True, False])
def test_module_and_process_are_left_as_they_were(traced, monkeypatch, is_whole):
    import torch._dynamo.config as dynamo

    module = unsettled(tiny_vit(dtype=torch.float32, proj_drop_rate=0.5))
    module.eval()
    before = state_of(module), torch.random.get_rng_state().tolist(), dynamo.recompile_limit
    marks = [vars(held) for held in module.parameters()]
    if not is_whole:
        monkeypatch.setattr(probe.PerturbProbe, "collect", lambda *_: 1 / 0)
    try:
        everything(module, randn(3, 3, 16, 16, dtype=torch.float32), compile=True)
    except ZeroDivisionError:
        assert not is_whole
    assert (state_of(module), torch.random.get_rng_state().tolist(), dynamo.recompile_limit) == (
        before
    )
    assert [vars(held) for held in module.parameters()] == marks


def test_the_copy_shares_the_weights_and_goes_with_the_run(traced, monkeypatch):
    made = []

    def remember(model, module):
        held = compiled.compiled(model, module)
        pairs = zip(module.parameters(), held.model.module.parameters(), strict=True)
        assert all(one.data_ptr() == other.data_ptr() for one, other in pairs)
        made.append(weakref.ref(held.model.module))
        return held

    monkeypatch.setattr("faithscope.probes.perturb.precision.compiled", remember)
    result = everything(tiny_vit(), randn(3, 3, 16, 16), compile=True)
    gc.collect()
    assert len(made) == 1 and made[0]() is None and result


# --- In the plan ---


def test_a_run_that_was_stopped_goes_on_and_another_is_refused(traced, monkeypatch, tmp_path):
    monkeypatch.setattr(probe, "SHARD", 1)
    images = randn(3, 3, 16, 16)

    def stop(_):
        if list(tmp_path.glob("tasks/*.json")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        everything(tiny_vit(), images, compile=True, out=tmp_path, progress=stop)
    with refused("compile is true there and false here"):
        everything(tiny_vit(), images, out=tmp_path)
    whole = everything(tiny_vit(), images, compile=True)
    resumed = everything(tiny_vit(), images, compile=True, out=tmp_path)
    assert resumed.scores.equals(whole.scores) and resumed.responses.equals(whole.responses)


def test_a_forecast_tells_what_compiling_takes(traced, monkeypatch):
    module, images = single_vit(), randn(3, 3, 16, 16, dtype=torch.float32)
    plan = fs.prepare(module, images, "gradient", compile=True)
    cost = plan.forecast()
    program = plan.planned.worker.setup.forward.program
    assert cost.compiling == program.seconds > 0 == fs.prepare(module, images).forecast().compiling
    program.seconds = 31.4
    assert str(plan.forecast()).endswith("of compiling") and " after 31 s" in str(plan.forecast())
    program.seconds = 0.3
    assert "compiling" not in str(plan.forecast())


def test_progress_says_that_the_model_is_compiled(traced, monkeypatch):
    monkeypatch.setattr(probe, "SHARD", 1)
    told = []
    everything(tiny_vit(), randn(3, 3, 16, 16), compile=True, progress=told.append)
    doing = [place.doing for place in told]
    assert doing.count("compiling the model") == 1 and "explaining" in doing
    assert doing.index("compiling the model") < doing.index("measuring")


def test_another_process_makes_its_own_program(traced):
    pytest.importorskip("ray")
    from faithscope.runs.sending import packed, unpacked

    images = randn(3, 3, 16, 16)
    plan = fs.prepare(tiny_vit(), images, "gradient", compile=True)
    plan.forecast()
    forward = plan.planned.worker.setup.forward
    other = unpacked(packed(plan.planned.worker)).setup.forward
    assert forward.program.is_made and not other.program.is_made
    with forward.mode():
        for one, held in zip(forward.answer(images, 5), other.answer(images, 5), strict=True):
            assert len(one) == 3 and torch.equal(one, held)


# --- From the command line ---


def test_a_command_compiles(compiler, tmp_path):
    command = ("evaluate", "--model", "bundled:cifar10_vit", "--data", "bundled:cifar10")
    command = (*command, "--limit", 2, "--methods", "gradient", "--metrics", "saco", "--yes")
    command = (*command, "--random-draws", 0, "--batch-size", 8)
    run(*command, "--compile", "--out", tmp_path / "fast", "--report", tmp_path / "page.html")
    assert compiler.programs == [8] and {*compiler.batches} == {8}
    run(*command, "--out", tmp_path / "slow", "--report", tmp_path / "plain.html")
    pages = [(tmp_path / name).read_text("utf-8") for name in ("page.html", "plain.html")]
    assert ["<dt>compile</dt>" in page for page in pages] == [True, False]
    results = [fs.load_result(tmp_path / name) for name in ("fast", "slow")]
    np.testing.assert_allclose(*map(score_cube, results), rtol=0, atol=1e-4)
    compared = fs.compare(*results)
    assert compared.rows and compared.differs == ("compile: true → false (rounding)",)
    assert "--compile makes a program" in fails(
        *command, "--compile", "--fill", "drop", "--units", "patches"
    )


@pytest.mark.slow
def test_a_command_makes_machine_code(tmp_path):
    command = ("evaluate", "--model", "bundled:cifar10_vit", "--data", "bundled:cifar10")
    command = (*command, "--limit", 2, "--methods", "gradient", "--metrics", "aopc", "--yes")
    for name in ("--compile", "--no-compile"):
        run(*command, name, "--out", tmp_path / name)
    fast, slow = (fs.load_result(tmp_path / name) for name in ("--compile", "--no-compile"))
    np.testing.assert_allclose(score_cube(fast), score_cube(slow), rtol=0, atol=1e-5)
