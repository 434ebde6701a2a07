"""Packs of Vision Transformers: each model is the one that would be trained alone."""

import os
import signal
from dataclasses import replace
from io import BytesIO
from multiprocessing import get_context
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

import faithscope as fs
from faithscope import api
from faithscope.data.labelled_images import load_labelled
from faithscope.data.pictures import example_name
from faithscope.methods import METHODS, method
from faithscope.models.vit_pack import ViTShape, answer, flatten, initial, unflatten
from faithscope.probes.retrain import vit
from faithscope.probes.retrain.images import PRESET
from faithscope.probes.retrain.learner import Recipe
from faithscope.probes.retrain.vit import (
    MOST_NORM,
    SMOOTHING,
    ViTLearner,
    ViTOptions,
    ViTTraining,
    _moved,
    _normalised,
)
from faithscope.report.masked_image import masked_image
from faithscope.runs.tables import table_of_rows
from families import refused
from small_images import MODEL, SMALL, corner_images


def learner(**options):
    recipe = Recipe(epochs=3, batch_size=16, learning_rate=5e-3, weight_decay=0.05)
    return ViTLearner(ViTOptions(dim=16, depth=2, **options), recipe=recipe)


def data_of(held, **options):
    return held.encode(load_labelled(corner_images(**options)))


def half_masked(data, seed):
    """Half of the pixels of every image, at random."""
    draw = torch.Generator().manual_seed(seed)
    return data.masked(
        {name: torch.rand(len(p), 64, generator=draw) < 0.5 for name, p in data.splits}
    )


def train(training):
    while not training.is_done:
        training.run_epoch()
    return training


def same_bits(one, other):
    """Two runs have the same scores, curves and pictures."""
    for name in ("scores", "trainings", "pictures"):
        columns = [c for c in one.get_table(name).column_names if c != "seconds"]
        mine, theirs = (run.get_table(name).select(columns) for run in (one, other))
        assert str(mine.to_pylist()) == str(theirs.to_pylist()), name  # NaN is NaN


@pytest.fixture(scope="module")
def whole():
    """A run that nothing stopped."""
    return fs.roar(corner_images(), MODEL, **SMALL)


class TestThePack:
    def test_answers_as_timm_does_model_by_model(self):
        shape = ViTShape((8, 12), 3, 5, dim=24, depth=2, heads=2, mlp=2.0, patch=4)
        starts = [initial(shape, seed) for seed in range(3)]
        images = torch.randn(3, 4, 3, 8, 12, dtype=torch.float64)
        p = unflatten(shape, tuple(part.double() for part in flatten(shape, starts)))
        logits = answer(shape, p, images, torch.float64)
        for place, start in enumerate(starts):
            module = shape.module().eval().double()
            module.load_state_dict(start)
            torch.testing.assert_close(module(images[place]), logits[place])

    def test_takes_the_steps_of_adamw_that_timm_takes(self, monkeypatch):
        """Losses, gradients and two steps in float64, model by model."""
        monkeypatch.setattr(ViTLearner, "dtype", torch.float64)
        own = learner()
        intact = data_of(own)
        data = [intact, half_masked(intact, 1)]
        pack = own.begin(data, [0, 1])
        pack.parameters = {
            name: value.detach().double().requires_grad_(True)
            for name, value in pack.parameters.items()
        }
        pack.colours = tuple(colour.double() for colour in pack.colours)
        pack.optimizer = pack.make_optimizer()
        rows, moves = pack.draws(0)
        modules, optimizers = [], []
        for seed in (0, 1):
            module = pack.shape.module().double()
            module.load_state_dict(initial(pack.shape, seed))
            named, (heavy, light) = dict(module.named_parameters()), pack.shape.halves()
            groups = [
                {"params": [named[name] for name in heavy], "weight_decay": 0.05},
                {"params": [named[name] for name in light], "weight_decay": 0.0},
            ]
            modules.append(module)
            optimizers.append(torch.optim.AdamW(groups, lr=2e-3))
        for at in range(2):
            losses = pack.step(rows[at], moves[at], 2e-3)
            found = unflatten(pack.shape, tuple(pack.parameters.values()))
            slopes = unflatten(pack.shape, tuple(p.grad for p in pack.parameters.values()))
            for place, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
                images = pack.images["train"][place : place + 1, rows[at, place]]
                moved, inside = _moved(images, moves[at, place : place + 1])
                seen = torch.where(inside, _normalised(moved, pack.colours), 0.0)[0]
                targets = pack.targets[rows[at, place]]
                loss = cross_entropy(module(seen), targets, label_smoothing=SMOOTHING)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(module.parameters(), MOST_NORM)
                optimizer.step()
                torch.testing.assert_close(losses[place], loss.detach())
                for name, parameter in module.named_parameters():
                    torch.testing.assert_close(slopes[name][place], parameter.grad)
                    torch.testing.assert_close(found[name][place].detach(), parameter.detach())

    def test_trains_every_model_as_it_would_be_trained_alone(self):
        own = learner()
        intact = data_of(own)
        data, seeds = [intact, half_masked(intact, 1), half_masked(intact, 2)], [0, 1, 0]
        pack = train(own.begin(data, seeds))
        together = pack.finish()
        for place in range(3):
            alone = train(own.begin([data[place]], [seeds[place]]))
            assert (alone.losses[:, 0] - pack.losses[:, place]).abs().max() < 1e-4
            (one,) = alone.finish()
            assert one.validation == together[place].validation
            for name, value in one.weights.items():
                torch.testing.assert_close(value, together[place].weights[name], atol=1e-4, rtol=0)

    def test_learns(self):
        own = learner()
        own.recipe = Recipe(epochs=12, batch_size=16, learning_rate=5e-3, weight_decay=0.05)
        (trained,) = train(own.begin([data_of(own, train=160)], [0])).finish()
        assert trained.scores["accuracy"] > 0.9

    def test_goes_on_from_a_state_with_the_same_bits(self):
        own = learner()
        data = data_of(own)
        whole = train(own.begin([data] * 2, [0, 1]))
        first = own.begin([data] * 2, [0, 1])
        first.run_epoch()
        second = own.begin([data] * 2, [0, 1])
        second.load_state(first.state())
        train(second)
        for name, value in whole.state().items():
            assert torch.equal(value, second.state()[name]), name

    def test_a_model_that_diverges_leaves_the_others_alone(self):
        own = learner()
        data = data_of(own)
        pack, alone = own.begin([data] * 2, [0, 1]), own.begin([data], [1])
        pack.parameters["heavy"].data[0] = torch.nan
        train(pack)
        train(alone)
        broken, fine = pack.finish()
        assert np.isnan(broken.scores["accuracy"])
        assert fine.scores["accuracy"] == alone.finish()[0].scores["accuracy"]

    def test_the_compiled_loss_is_the_plain_one(self):
        own = learner()
        training = own.begin([data_of(own)] * 2, [0, 1])
        rows, moves = training.draws(0)
        plain = training._descend(vit.pack_loss, rows[0], moves[0])
        gradient = training.parameters["heavy"].grad.clone()
        traced = vit._compiled("aot_eager")
        assert torch.equal(training._descend(traced, rows[0], moves[0]), plain)
        assert torch.equal(training.parameters["heavy"].grad, gradient)

    def test_packs_of_every_size_have_a_program_of_their_own(self):
        made: list[list[list[int]]] = []

        def backend(graph: torch.fx.GraphModule, _: object) -> object:
            nodes = [n for n in graph.graph.nodes if n.op == "placeholder"]
            seen = [n.meta["example_value"] for n in nodes]
            made.append([[*map(int, v.shape)] for v in seen if isinstance(v, torch.Tensor)])
            return graph.forward

        own, loss = learner(), vit._compiled(backend)
        data = data_of(own)
        sizes = [*range(1, 12), 3]  # more than torch compiles of one function by itself
        for number in sizes:
            training = own.begin([data] * number, list(range(number)))
            rows, moves = training.draws(0)
            plain = training._descend(vit.pack_loss, rows[0], moves[0])
            assert torch.equal(training._descend(loss, rows[0], moves[0]), plain)
        assert len(made) == len({*sizes})
        for number, shapes in zip(sizes, made, strict=False):
            assert any(shape[0] == number for shape in shapes)


@pytest.mark.parametrize(("gibibytes", "models"), [(139, 24), (24, 11), (8, 3), (1, 1)])
def test_a_pack_fits_in_the_memory_of_its_gpu(gibibytes, models, monkeypatch):
    about = SimpleNamespace(total_memory=gibibytes << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: about)
    held = ViTLearner(device="cuda:0")
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    cifar = {
        name: (images.expand(count, -1, -1, -1), torch.arange(count) % 10)
        for name, count in (("train", 50_000), ("test", 10_000))
    }
    data = load_labelled(cifar)
    held.encode(data)
    assert held.pack_size == models
    assert ViTLearner(device="cuda:0", pack_size=2).pack_size == 2


class TestMoves:
    def test_are_shifts_and_mirrors_by_whole_pixels(self):
        images = torch.arange(16, dtype=torch.uint8).view(1, 1, 1, 4, 4)
        moved, inside = _moved(images, torch.tensor([[[1, 0, 0]]]))
        assert torch.equal(moved[..., :3, :], images[..., 1:, :])
        assert inside[0, 0, 0, :, 0].tolist() == [True, True, True, False]
        mirrored, inside = _moved(images, torch.tensor([[[0, 0, 1]]]))
        assert torch.equal(mirrored, images.flip(-1)) and inside.all()

    def test_hang_on_the_seed_and_the_epoch_alone(self):
        own = learner()
        data = data_of(own)
        pack, alone = own.begin([data] * 2, [4, 7]), own.begin([data], [7])
        for mine, other in zip(pack.draws(2), alone.draws(2), strict=True):
            assert torch.equal(mine[:, 1], other[:, 0])
        assert not torch.equal(pack.draws(1)[0], pack.draws(2)[0])


class TestFills:
    @pytest.mark.parametrize("fill", ["mean", "black", "noise", "blur", "inpaint"])
    def test_replace_what_is_masked_and_nothing_else(self, fill):
        own = learner()
        data = half_masked(data_of(own), 3).framed(fill=fill)
        part = data.train
        filled = part.filled("cpu")
        seen = ~part.hidden.view(-1, 1, 8, 8).expand_as(filled)
        assert torch.equal(filled[seen], part.images[seen])
        assert not torch.equal(filled, part.images)
        assert torch.equal(part.at(torch.tensor([5, 9])).filled("cpu"), filled[[5, 9]])

    def test_mean_is_of_the_image(self):
        own = learner()
        part = half_masked(data_of(own), 3).train
        mean = part.images.double().mean((2, 3)).round()
        hidden = part.hidden.view(-1, 8, 8)
        row, y, x = hidden.nonzero()[0].tolist()
        assert torch.equal(part.filled("cpu")[row, :, y, x].double(), mean[row])

    def test_whole_patches(self):
        own = learner()
        data = data_of(own).framed(units=(2, 2))
        masks = {n: torch.zeros(len(p), 4, dtype=torch.bool) for n, p in data.splits}
        masks["train"][:, 1] = True
        filled = data.masked(masks).train.filled("cpu")
        assert torch.equal(filled[..., :4, :4], data.train.images[..., :4, :4])
        assert (filled[0, :, :4, 4:] == filled[0, :, :1, 4:5]).all()


class TestExplaining:
    @pytest.mark.parametrize("name", PRESET)
    def test_every_measure_of_the_preset(self, name):
        own = learner()
        data = data_of(own)
        start = initial(own.shape(data), 0)
        own.check(method(name))
        (scores,) = own.explain([start], [data.test], method(name), [0])
        assert scores.shape == (32, 64) and scores.isfinite().all()

    def test_is_what_explain_gives_for_the_labels(self):
        own = learner()
        data = data_of(own)
        start = initial(own.shape(data), 3)
        module = own.shape(data).module()
        module.load_state_dict(start)
        images = data.frame.normalised(data.test.images)
        maps = fs.explain(fs.wrap(module), images, "rollout", target=data.test.labels)
        (scores,) = own.explain([start], [data.test], METHODS["rollout"], [0])
        torch.testing.assert_close(scores, maps.flatten(1))

    def test_random_maps_hang_on_seed_split_and_place(self):
        own = learner()
        data = data_of(own)
        random = METHODS["random"]
        (one,), (same,), (other,) = (
            own.explain([{}], [data.test], random, [seed]) for seed in (1, 1, 2)
        )
        assert torch.equal(one, same) and not torch.equal(one, other)
        few = data.test.at(torch.tensor([4, 7]))
        assert torch.equal(own.explain([{}], [few], random, [1])[0], one[[4, 7]])


class TestRoar:
    def test_scores_racu_and_draws_a_page_of_images(self, tmp_path):
        result = fs.roar(corner_images(), MODEL, **{**SMALL, "seeds": 3})
        racu = [row for row in result.scores.to_pylist() if row["metric"] == "racu"]
        assert len(racu) == 3 * 2 * 2 and any(np.isfinite(row["value"]) for row in racu)
        assert result.trainings.num_rows == 3 * 2 * 3 * 4 * 5
        assert not result.sparsity.num_rows
        assert len(result.examples) == len(result.pictures) == 3 * 2 * 4
        assert result.manifest.data.images.height == 8
        assert result.manifest.protocol["fill"] == "mean"
        page = result.report(tmp_path / "page.html").read_text("utf-8")
        for said in ("pixels masked", "32 test images", "own mean, per channel", "8×8 pixels"):
            assert said in page
        words = page[page.index("<body") :]
        assert "One image, masked step by step" in words
        assert "okens" not in words.replace("Allegedly Important Tokens", "")
        again = result.rescore(["racu(clip=false)"])
        assert again.metrics == ["racu(clip=false)"]

    @pytest.mark.parametrize("size", [0, 2000])
    def test_forged_pictures_are_not_drawn(self, whole, size):
        file = BytesIO()
        if size:
            Image.new("RGB", (size, size)).save(file, "png")
        rows = [{**row, "content": file.getvalue()} for row in whole.pictures.to_pylist()]
        tables = {**whole.tables, "pictures": table_of_rows("pictures", rows)}
        with refused("A picture of this run is damaged"):
            masked_image(replace(whole, tables=tables))

    def test_pictures_are_what_the_next_models_see(self, whole):
        pixels = {}
        for row in whole.examples.to_pylist():
            (file,) = (
                held["content"]
                for held in whole.pictures.to_pylist()
                if held["sample"] == example_name(row)
            )
            picture = np.asarray(Image.open(BytesIO(file))).astype(int)
            pixels[row["measure"], row["procedure"], row["k"]] = picture
        test, labels = corner_images()["test"]
        mean = test[0].astype(float).mean((0, 1)).round()
        assert {row["label"] for row in whole.examples.to_pylist()} == {str(labels[0])}
        for (_, _, k), picture in pixels.items():
            masked = (picture == mean).all(-1)
            assert masked.sum() == 64 * k // 100
            assert (picture[~masked] == test[0][~masked]).all()

    def test_the_masks_of_roar_are_nested_and_of_the_right_size(self):
        prepared = fs.prepare_roar(corner_images(), MODEL, **SMALL)
        worker = prepared.planned.worker
        jobs = next(iter(worker.jobs.values()))
        scores = {n: torch.rand(len(p), 64) for n, p in worker.data.splits}
        masks = {
            k: worker.masker._mask(jobs.curve("gradient", "roar", 0)[k], worker.data, scores)
            for k in (30, 60)
        }
        for name, _ in worker.data.splits:
            low, high = masks[30][name], masks[60][name]
            assert (low.sum(1) == 19).all() and (high.sum(1) == 38).all()
            assert (high | ~low).all()

    @pytest.mark.parametrize("options", [{"fill": "blur"}, {"units": "patches", "levels": [50]}])
    def test_other_fills_and_units(self, options):
        result = fs.roar(corner_images(), MODEL, **{**SMALL, "procedures": "roar", **options})
        assert result.manifest.protocol["units"] == options.get("units", "pixels")

    def test_resumes_with_the_same_bits_and_travels(self, whole, tmp_path, monkeypatch):
        real, begun = ViTTraining.run_epoch, []

        def run_epoch(self):
            begun.append(1)
            if len(begun) == 4:  # in the second epoch of the second pack
                raise KeyboardInterrupt
            real(self)

        with monkeypatch.context() as patch:
            patch.setattr(ViTTraining, "run_epoch", run_epoch)
            with pytest.raises(KeyboardInterrupt):
                fs.roar(corner_images(), MODEL, out=tmp_path / "half", **SMALL)
        parcel = api.pack_run(tmp_path / "half", tmp_path / "half.tar.gz", states=True)
        api.unpack_run(parcel.file, tmp_path / "there")
        same_bits(whole, fs.roar(corner_images(), MODEL, out=tmp_path / "there", **SMALL))

    @pytest.mark.parametrize(
        ("owner", "name", "call"),
        [
            (ViTTraining, "run_epoch", 4),
            (ViTLearner, "explain_together", 5),
            (ViTTraining, "finish", 2),
        ],
    )
    def test_kill_9_costs_no_bit(self, owner, name, call, whole, tmp_path, monkeypatch):
        """In an epoch of the second pack, in the second thing that is explained, and in a test."""
        real, calls = getattr(owner, name), []

        def deadly(self, *arguments):
            if name == "explain_together" and not arguments[0][0]:  # random maps need no model
                return real(self, *arguments)
            calls.append(1)
            if len(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *arguments)

        def work():
            fs.roar(corner_images(), MODEL, out=tmp_path / "run", **SMALL)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, deadly)
            child = get_context("fork").Process(target=work)
            child.start()
            child.join()
        assert child.exitcode == -signal.SIGKILL
        assert any((tmp_path / "run" / "tasks").iterdir())
        again = []
        epoch = ViTTraining.run_epoch
        with monkeypatch.context() as patch:
            patch.setattr(ViTTraining, "run_epoch", lambda self: (again.append(1), epoch(self)))
            same_bits(whole, fs.roar(corner_images(), MODEL, out=tmp_path / "run", **SMALL))
        assert 0 < len(again) < 2 * whole.manifest.cost.packs  # what was finished was kept

    def test_seeds_of_several_machines_are_joined(self, tmp_path):
        alone = []
        for seed in (0, 1):
            here = {"out": tmp_path / str(seed), "seeds": [seed]}
            alone.append(fs.roar(corner_images(), MODEL, **{**SMALL, **here}))
            api.pack_run(tmp_path / str(seed))
        files = [tmp_path / f"{seed}.tar.gz" for seed in (0, 1)]
        assert api.unpack_run(files, tmp_path / "both").is_whole
        both = fs.load_result(tmp_path / "both")
        for own in alone:
            (seed,) = own.trained.seeds
            rows = [row for row in both.trainings.to_pylist() if row["seed"] == seed]
            assert rows == own.trainings.to_pylist()
        assert both.pictures.to_pylist() == alone[0].pictures.to_pylist()
        assert "One image, masked step by step" in both.report(tmp_path / "p.html").read_text()

    def test_is_forecast_before_anything_is_trained(self):
        prepared = fs.prepare_roar(corner_images(), MODEL, **SMALL)
        found = prepared.forecast()
        assert found.seconds > 0 and not prepared.out


SMALL_IMAGES, FEW_IMAGES = corner_images(), corner_images(2, 2)
BAD = [
    ("texts", "bundled:babi1", "vit", {}, ["are texts", "'bilstm'"]),
    ("images", "bundled:cifar10", "bilstm", {}, ["are images", "'vit'"]),
    ("an option", "bundled:cifar10", "vit(width=3)", {}, ["option of model 'vit'", "width"]),
    ("a value", "bundled:cifar10", "vit(depth=0)", {}, ["'depth'", "above 0"]),
    ("a kind of value", "bundled:cifar10", "vit(depth=two)", {}, ["'depth'", "a whole number"]),
    ("heads", "bundled:cifar10", "vit(dim=64, heads=5)", {}, ["5 heads", "divides"]),
    ("patches", "bundled:cifar10", "vit(patch=5)", {}, ["32×32", "whole patches of 5"]),
    ("a model", "bundled:cifar10", "vti", {}, ["Unknown model to train 'vti'"]),
    ("a fill", "bundled:cifar10", "vit", {"fill": "men"}, ["Unknown fill 'men'"]),
    ("drop", "bundled:cifar10", "vit", {"fill": "drop"}, ["fill='drop'", "choose another", "mean"]),
    ("a fill of texts", "bundled:babi1", "bilstm", {"fill": "mean"}, ["fill is of images"]),
    ("specials", "bundled:cifar10", "vit", {"specials": False}, ["specials is of texts"]),
    ("a measure", "bundled:cifar10", "vit", {"measures": "atention"}, ["Unknown method"]),
    ("of texts", "bundled:cifar10", "vit", {"measures": "mutual_information"}, ["is for texts"]),
    ("few patches", SMALL_IMAGES, MODEL, {"units": "patches", "levels": [10]}, ["4 patches"]),
    ("few images", FEW_IMAGES, MODEL, {}, ["validation split", "no images"]),
    ("a count", "bundled:cifar10", "vit", {"strategy": "count", "levels": [0]}, ["one pixel"]),
    ("a source", "imagenet:x", "vit", {}, ["'imagenet' is no data set of labelled images"]),
    ("nothing", "nowhere", "vit", {}, ["'nowhere' is no data set"]),
]


@pytest.mark.parametrize(("data", "model", "options", "words"), [case[1:] for case in BAD])
def test_what_does_not_go_together_is_refused_in_a_sentence(data, model, options, words):
    with refused(*words):
        fs.prepare_roar(data, model, **options)


def test_measures_together_give_what_they_give_alone():
    own = learner()
    data = data_of(own)
    start = initial(own.shape(data), 0)
    measures = [method(name) for name in ("rollout", "gradient", "attcat")]
    together = own.explain_together([start], [data.test], measures, [0])
    for measure, [found] in zip(measures, together, strict=True):
        [alone] = own.explain([start], [data.test], measure, [0])
        torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-7)
