"""Texts: what is removed, what the model is asked then, and what comes of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import chain
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import faithscope as fs
from conftest import assert_same_scores
from disasters import cards_in
from faithscope.metrics import METRICS, resolve_metrics
from faithscope.models.text_model import TextModel
from faithscope.perturb import Span, order_units
from faithscope.probes.perturb import probe, worker
from faithscope.probes.perturb.plan import plan_map
from families import refused
from text_models import (
    DECODERS,
    ENCODERS,
    PAIRS,
    TEXTS,
    log_p,
    save_classifier,
    text_model,
)

Ask = Callable[[Span], Tensor]
FILLS = ("mask", "pad", "drop", "unk")
LONG = tuple(" ".join(TEXTS[place:]) for place in range(4))
"""Texts of 10 words and more."""


# --- A reference that calls the module itself, one text at a time ---


def pieces(model: TextModel, *given: str) -> tuple[list[int], list[int], list[list[int]]]:
    """Ids, types, and the places of the tokens of each unit, by the plain tokenizer."""
    read = model.tokenizer(*given, return_special_tokens_mask=True)
    sides, words = read.sequence_ids(), read.word_ids()
    units: dict[Any, list[int]] = {}
    for place, (side, word) in enumerate(zip(sides, words, strict=True)):
        is_asked = model.side == "both" or side == {"first": 0, "second": 1}[model.side]
        if side is not None and is_asked:
            key = (side, word) if model.units == "words" else place
            units.setdefault(key, []).append(place)
    types = read["token_type_ids"] if model._has_types else [0] * len(read["input_ids"])
    return list(read["input_ids"]), list(types), list(units.values())


def answer(
    model: TextModel, ids: list[int], types: list[int], removed: set[int], fill: str
) -> Tensor:
    """The log-probabilities of a text without some of its tokens."""
    attended = [1] * len(ids)
    if fill == "drop":
        kept = [place for place in range(len(ids)) if place not in removed]
        ids, types = ([row[place] for place in kept] for row in (ids, types))
        attended = [1] * len(kept)
    elif fill == "pad":
        attended = [int(place not in removed) for place in range(len(ids))]
    else:
        token = getattr(model.tokenizer, f"{fill}_token_id")
        ids = [token if place in removed else held for place, held in enumerate(ids)]
    more = {"token_type_ids": types} if model._has_types else {}
    return log_p(model.module, ids, attention_mask=attended, **more)


def asker(model: TextModel, given: tuple[str, ...], salience: Tensor, fill: str) -> Ask:
    """What gives the log-probabilities of a text without the units in a span of ranks."""
    ids, types, units = pieces(model, *given)
    assert len(units) == len(salience)
    order = order_units(salience).tolist()

    @cache
    def ask(start: int, stop: int) -> Tensor:
        removed = {*chain.from_iterable(units[unit] for unit in order[start:stop])}
        return answer(model, ids, types, removed, fill)

    return lambda span: ask(*span.cut(len(units)))


def saliences(model: TextModel, texts: Any, seed: int = 0) -> list[Tensor]:
    """Random maps, one number for each unit, with ties."""
    generator = torch.Generator().manual_seed(seed)
    given = [(text,) if isinstance(text, str) else text for text in texts]
    counts = [len(pieces(model, *one)[2]) for one in given]
    made = (torch.randn(n, generator=generator, dtype=torch.float64) for n in counts)
    return [one.round(decimals=1) for one in made]


def evaluated(model: TextModel, texts: Any, maps: list[Tensor], **options: Any) -> fs.Result:
    options = {"metrics": "registered", "random_draws": 0, **options}
    return fs.evaluate(model, list(texts), maps={"mine": maps}, **options)


def by_metric(result: fs.Result, sample: str) -> dict[str, tuple[float, str, int]]:
    rows = result.scores.to_pylist()
    return {r["metric"]: (r["value"], r["flag"], r["k"]) for r in rows if r["sample"] == sample}


def check_scores(model: TextModel, texts: Any, result: fs.Result, maps: list[Tensor]) -> None:
    """Every metric from its definition, on answers of the module itself."""
    fill = result.manifest.protocol["fill"]
    for place, text in enumerate(texts):
        given = (text,) if isinstance(text, str) else text
        found, n = by_metric(result, str(place)), len(maps[place])
        ask = asker(model, given, maps[place], fill)
        intact = ask(Span(Fraction(0), Fraction(0)))
        predicted, log_p0 = int(intact.argmax()), intact.max()
        assert {*found} == {*result.metrics}
        for label, (value, flag, k) in found.items():
            spans = METRICS[label]().spans(k)
            answers = [ask(span) for span in spans]
            log_ps = torch.stack([one[predicted] for one in answers])
            drops = log_p0.exp() - log_ps.exp()
            if label == "saco" and n == 1:
                assert (value, flag, k) == (0, "degenerate,few_units", 1)
                continue
            if label == "saco":
                ordered = maps[place].sort(descending=True).values
                sums = [ordered[slice(*span.cut(n))].sum() for span in spans]
                expected = fs.saco(torch.stack(sums), drops)
                is_constant = maps[place].max() == maps[place].min()
                expected = torch.tensor(0.0) if is_constant else expected
                assert ("few_units" in flag) == (n < 10)
                assert k == min(10, n)
            elif label == "auc":
                hits = torch.tensor([float(one.argmax() == predicted) for one in answers])
                expected = torch.trapezoid(hits.double(), dx=1 / (len(hits) - 1))
            elif label in ("deletion", "insertion"):
                expected = torch.trapezoid(log_ps.exp(), dx=1 / (len(log_ps) - 1))
            elif label == "log_odds":
                expected = (log_ps - log_p0).mean()
            else:
                expected = drops.mean()
            assert value == pytest.approx(float(expected), abs=1e-9), (label, text, flag)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("units", ["tokens", "words"])
def test_every_metric_is_what_the_module_itself_answers(fill, units):
    model = text_model().with_units(units, "both")
    maps = saliences(model, TEXTS)
    result = evaluated(model, TEXTS, maps, fill=fill, units=units)
    assert len(result.metrics) == 9
    check_scores(model, TEXTS, result, maps)


@pytest.mark.parametrize(
    ("kind", "fill"),
    [
        *((kind, fill) for kind in ENCODERS for fill in FILLS),
        *((kind, fill) for kind in DECODERS for fill in FILLS if fill != "drop"),
    ],
)
def test_every_family_and_fill(kind, fill):
    model = text_model(kind)
    maps = saliences(model, TEXTS)
    check_scores(model, TEXTS, evaluated(model, TEXTS, maps, fill=fill), maps)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("side", ["both", "first", "second"])
@pytest.mark.parametrize("units", ["tokens", "words"])
@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_pairs(kind, units, side, fill):
    model = text_model(kind).with_units(units, side)
    maps = saliences(model, PAIRS)
    result = evaluated(model, PAIRS, maps, fill=fill, units=units, side=side, k=2)
    assert result.manifest.protocol["side"] == side
    metrics = [label for label in result.metrics if label != "saco"]
    check_scores(model, PAIRS, result.rescore(metrics), maps)


# --- How many passes ---


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("fill", FILLS)
def test_a_text_costs_no_more_passes_than_an_image(fill, batch_size):
    """28 distinct inputs for five metrics and a map; fewer where short texts make spans equal."""
    model = text_model()
    long = " ".join(["good film a story"] * 5)
    texts, seen = [long, *LONG], Recorder(model.module)
    maps = [torch.randn(len(pieces(model, text)[2]), dtype=torch.float64) for text in texts]
    result = evaluated(model, texts, maps, metrics="all", fill=fill, batch_size=batch_size)
    assert result.manifest.cost.response_passes == len(seen.rows)
    assert max(seen.batches) <= batch_size
    plans = [plan_map(resolve_metrics("all"), len(one), k=10, auto=10) for one in maps]
    counts = [len(plan.cuts) for plan in plans]
    assert counts[0] == 28 and max(counts) == 28 and len(seen.rows) == sum(counts)
    if fill != "drop":  # of equal words some leave the same text
        assert len({*seen.rows}) == len(seen.rows)


def test_several_maps_share_the_intact_and_the_empty_text():
    model, long = text_model(), " ".join(["good film a story"] * 5)
    seen = Recorder(model.module)
    maps = {f"map {number}": [torch.randn(20)] for number in range(3)}
    fs.evaluate(model, [long], maps=maps, random_draws=0)
    assert len(seen.rows) == 2 + 3 * 26


def test_equal_spans_of_short_texts_are_asked_once():
    model = text_model()
    seen = Recorder(model.module)
    evaluated(model, ["good film", *LONG], saliences(model, ["good film", *LONG]), metrics="all")
    short = [row for row in seen.rows if row.count(b"|") == 4]  # of them two are special tokens
    assert len(short) == 2 + 2  # intact, without the first, without the second, without both


class Recorder:
    """Every text that goes through a module's forward, with what it attends to."""

    def __init__(self, module: nn.Module) -> None:
        self.rows: list[bytes] = []
        self.batches: list[int] = []
        module.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        ids, attended = kwargs["input_ids"], kwargs["attention_mask"]
        self.batches.append(len(ids))
        both = zip(ids.tolist(), attended.tolist(), strict=True)
        self.rows += [b"".join(b"%d.%d|" % pair for pair in zip(*row, strict=True)) for row in both]


# --- The same however texts are packed ---


@pytest.mark.parametrize("fill", FILLS)
def test_scores_do_not_depend_on_batches_order_or_shards(fill, monkeypatch):
    model = text_model()
    texts = [*TEXTS, *LONG]
    methods = ["gradient", "integrated_gradients(steps=4)", "random"]

    def run(**options: Any) -> dict[tuple[str, str, str, int], float]:
        given = options.pop("texts", texts)
        result = fs.evaluate(model, given, methods, "registered", fill=fill, **options)
        rows = result.scores.to_pylist()
        return {
            (given[int(r["sample"])], r["method"], r["metric"], r["draw"]): r["value"] for r in rows
        }

    whole = run()
    others = [run(batch_size=1), run(batch_size=3), run(texts=texts[::-1])]
    others.append(run(tolerance=1e-9, seed=0))
    monkeypatch.setattr(probe, "SHARD", 2)
    others.append(run())
    for other in others:
        assert other.keys() == whole.keys()
        for key, value in whole.items():
            assert other[key] == pytest.approx(value, abs=1e-9), key
    some = run(texts=texts[3:5])
    assert all(whole[key] == pytest.approx(value, abs=1e-9) for key, value in some.items())


def test_texts_on_a_gpu_make_larger_tasks():
    def together(modality: str, device: str) -> int:
        return probe._together(SimpleNamespace(modality=modality, device=torch.device(device)))

    assert together("text", "cuda") > together("text", "cpu") == together("image", "cuda")


@pytest.mark.parametrize("shard", [2, 5])
def test_a_run_that_was_stopped_resumes_with_the_same_bits(tmp_path, monkeypatch, shard):
    """Also where tasks would be larger now, as on another device."""
    monkeypatch.setattr(probe, "SHARD", 2)
    name = save_classifier(tmp_path / "model")
    options = {"metrics": "registered", "fill": "drop", "units": "words"}
    whole = fs.evaluate(name, list(TEXTS), "gradient", **options)
    real, asked = worker.ask_shard, []

    def stops(*given: Any, **more: Any) -> Any:
        asked.append(1)
        if len(asked) > 2:
            raise KeyboardInterrupt
        return real(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(worker, "ask_shard", stops)
        with pytest.raises(KeyboardInterrupt):
            fs.evaluate(name, list(TEXTS), "gradient", out=tmp_path / "run", **options)
    assert cards_in(tmp_path / "run") == 1
    monkeypatch.setattr(probe, "SHARD", shard)
    resumed = fs.evaluate(name, list(TEXTS), "gradient", out=tmp_path / "run", **options)
    assert resumed.manifest.plan.shard == 2
    for table in ("scores", "responses", "maps", "spans", "samples"):
        assert resumed.tables[table].equals(whole.tables[table]), table
    with refused("another"):
        fs.evaluate(name, [*TEXTS[:-1], "other"], "gradient", out=tmp_path / "run", **options)
    loaded = fs.load_result(tmp_path / "run")
    assert loaded.scores.equals(whole.scores)


def test_rescoring_needs_no_model():
    model = text_model()
    maps = saliences(model, LONG)
    result = evaluated(model, LONG, maps, metrics=["saco", "aopc"])
    again = result.rescore(["aopc", "log_odds"])
    whole = evaluated(model, LONG, maps, metrics=["aopc", "log_odds"])
    assert_same_scores(again, whole)
    with refused("not run"):
        result.rescore("insertion")


def test_two_runs_of_texts_are_compared():
    first = evaluated(text_model(), LONG, saliences(text_model(), LONG))
    second = evaluated(text_model(), LONG, saliences(text_model(), LONG), fill="pad")
    assert "fill: mask → pad" in repr(fs.compare(first, second))
    other = evaluated(text_model("Roberta"), LONG, saliences(text_model("Roberta"), LONG))
    with refused("differ"):
        fs.compare(second, other)
    fs.compare(first, other)


def test_a_text_model_travels_with_its_tokenizer():
    from faithscope.runs.sending import packed, unpacked

    model = text_model().with_units("words", "first")
    _ = model.max_length, model.fingerprint
    copy = unpacked(packed(model))
    assert isinstance(copy, TextModel)
    assert (copy.units, copy.side, copy.fingerprint) == ("words", "first", model.fingerprint)
    assert copy.encode(TEXTS[0]) == model.encode(TEXTS[0])


# --- What may be given ---


def table(result: fs.Result) -> dict[str, float]:
    """Values by sample and metric."""
    rows = result.scores.to_pylist()
    rows = [row for row in rows if row["metric"] != "auc"]  # which reads labels
    return {f"{row['sample']} {row['metric']}": row["value"] for row in rows}


def test_texts_come_in_many_shapes(tmp_path):
    model = text_model()
    maps = saliences(model, TEXTS)
    found = [log_p(model.module, model.tokenizer(text)["input_ids"]).argmax() for text in TEXTS]
    accuracy = float((torch.stack(found) == 1).double().mean())

    def run(data: Any) -> dict[str, float]:
        result = fs.evaluate(model, data, maps={"mine": maps}, random_draws=0)
        assert result.manifest.data.accuracy in (None, accuracy)
        return table(result)

    expected = run(list(TEXTS))
    labelled = [{"text": text, "label": 1} for text in TEXTS]
    (tmp_path / "texts.csv").write_text("label,text\n" + "".join(f"1,{text}\n" for text in TEXTS))
    lines = [json.dumps(row) for row in labelled]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    (tmp_path / "odd.tsv").write_text("body\tlabel\n" + "".join(f"{t}\t1\n" for t in TEXTS))
    with gzip.open(tmp_path / "texts.csv.gz", "wt") as stream:
        stream.write((tmp_path / "texts.csv").read_text())
    tokens = model.tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    left = model.tokenizer(list(TEXTS), padding=True, padding_side="left", return_tensors="np")
    given = {
        "tuple": TEXTS,
        "array": np.array(TEXTS),
        "rows": labelled,
        "csv": tmp_path / "texts.csv",
        "jsonl": str(tmp_path / "texts.jsonl"),
        "tsv": f"{tmp_path / 'odd.tsv'}(text=body)",
        "gz": tmp_path / "texts.csv.gz",
        "loaded": fs.load_data(list(TEXTS), model),
        "generator": (text for text in TEXTS),
        "tokens": tokens,
        "left": left,
        "lists": dict(model.tokenizer(list(TEXTS))),
        "each": [model.tokenizer(text) for text in TEXTS],
        "datasets": datasets.Dataset.from_list(labelled),
    }
    for name, data in given.items():
        found = run(data)
        assert found.keys() == expected.keys(), name
        assert all(found[key] == pytest.approx(expected[key], abs=1e-9) for key in found), name


def test_one_text_is_a_data_set():
    model, text = text_model(), " ".join(LONG[2:])
    one = table(fs.evaluate(model, text, "gradient", random_draws=0))
    assert one == table(fs.evaluate(model, [text], "gradient", random_draws=0))


def test_maps_of_texts_come_in_many_shapes(tmp_path):
    model = text_model()
    maps = saliences(model, TEXTS)
    longest = max(map(len, maps))
    padded = torch.stack([torch.cat([m, m.new_zeros(longest - len(m))]) for m in maps])
    folder = tmp_path / "maps"
    folder.mkdir()
    for place, one in enumerate(maps):
        np.save(folder / f"{place}.npy", one.numpy())
    given = {
        "tensors": maps,
        "arrays": [one.numpy() for one in maps],
        "lists": [one.tolist() for one in maps],
        "padded": padded,
        "by name": {str(place): one for place, one in enumerate(maps)},
        "folder": folder,
        "rows": [one[None] for one in maps],
    }
    result = fs.evaluate(model, TEXTS, maps=given, random_draws=0)
    values: dict[str, set[float]] = {}
    for row in result.scores.to_pylist():
        values.setdefault(f"{row['sample']} {row['metric']}", set()).add(round(row["value"], 9))
    assert all(len(found) == 1 for found in values.values())


def test_functions_of_ones_own_explain_texts():
    model = text_model()

    def by_unit(module: nn.Module, texts: Any, target: Tensor) -> Tensor:
        assert module is model.module and target.shape == (len(texts),)
        return texts.by_unit(texts.ids.double())

    def by_token(module: nn.Module, texts: Any, target: Tensor) -> Tensor:
        return texts.ids.double()

    for units in ("tokens", "words"):
        read = model.with_units(units, "both")
        ids = [pieces(read, text) for text in TEXTS]
        maps = [torch.tensor([float(sum(i[p] for p in u)) for u in units_]) for i, _, units_ in ids]
        result = fs.evaluate(
            model, TEXTS, [by_unit, by_token], maps={"mine": maps}, units=units, random_draws=0
        )
        values: dict[str, set[float]] = {}
        for row in result.scores.to_pylist():
            values.setdefault(f"{row['sample']} {row['metric']}", set()).add(round(row["value"], 9))
        assert all(len(found) == 1 for found in values.values())
        made = fs.explain(model, TEXTS, by_token, units=units)
        assert all(torch.equal(a.float(), b) for a, b in zip(made, maps, strict=True))


def test_the_salience_of_a_word_is_the_sum_of_its_pieces():
    model = text_model()
    for method in ("gradient", "input_x_gradient", "rollout"):
        tokens = fs.explain(model, TEXTS, method)
        words = fs.explain(model, TEXTS, method, units="words")
        for text, fine, coarse in zip(TEXTS, tokens, words, strict=True):
            _, _, of_tokens = pieces(model, text)
            _, _, of_words = pieces(model.with_units("words", "both"), text)
            known = dict(zip([place for (place,) in of_tokens], fine, strict=True))
            expected = torch.stack([sum(known[place] for place in word) for word in of_words])
            assert torch.allclose(coarse, expected, rtol=0, atol=1e-12)
    assert len(fs.explain(model, "actings", "gradient", units="words")[0]) == 1
    assert len(fs.explain(model, "actings", "gradient")[0]) > 3


def test_special_tokens_are_never_ranked():
    model = text_model()
    first, last = (model.tokenizer.cls_token, model.tokenizer.sep_token)
    result = fs.evaluate(model, LONG, "gradient", random_draws=0)
    pictures = {row["sample"]: row for row in result.pictures.to_pylist()}
    assert pictures
    for text in LONG:
        assert model.encode(text).words == tuple(model.tokenizer.tokenize(text))
        written = model.encode(f"{text} {first} {last} [MASK] [PAD]")
        assert written.words == (*model.encode(text).words, "[MASK]")


def test_few_tokens_make_few_groups():
    texts = ["it was", *LONG]
    result = evaluated(text_model(), texts, saliences(text_model(), texts), metrics=["saco"])
    found = {row["sample"]: (row["k"], row["flag"]) for row in result.scores.to_pylist()}
    assert found["0"][0] == 2 and "few_units" in found["0"][1]
    assert found["1"] == (10, "")
