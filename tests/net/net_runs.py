"""A dozen small runs of both kinds whose numbers and sentences are on record (records/).

Each is made through the public calls alone, so that whatever is rebuilt inside can be asked the
same. `PYTHONPATH=tests:tests/helpers python tests/net/net_runs.py NAME …` records runs anew, all
of them without a name; with `--words` only what they say, when the words are meant to change and
the numbers are not.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import faithscope as fs
from bags import BagLearner, bag_texts
from conftest import NORMALISED, randn, tiny_vit

RECORDS = Path(__file__).parent / "records"
PAPERS_PATH = "rule=riemann_right, baseline=zero, scaling=code, signed=false"
"""Options of integrated gradients in the paper of Recursive ROAR."""

Record = dict[str, Any]
"""`tables`, `rows` and `facts` hold numbers, `words` what people read."""


# The runs


class AnySize(nn.Module):
    """A classifier of images of any size."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            self.filters, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 4)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0.0, 1.0, generator=generator)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.filters(x).tanh().mean((2, 3)))


def _vit() -> fs.Model:
    return fs.wrap(tiny_vit(), name="tiny", **NORMALISED)


def _images(count: int = 12) -> Tensor:
    return randn(count, 3, 16, 16, seed=7)


def plain(root: Path) -> Record:
    """Methods of every kind, the papers' metrics, labels."""
    result = fs.evaluate(
        _vit(),
        _images(),
        ["rollout", "gradient", "integrated_gradients(steps=3)", "lrp"],
        "all",
        labels=torch.arange(12) % 5,
        random_draws=2,
        out=root / "run",
    )
    return of_images(result, root)


def auto_k(root: Path) -> Record:
    """K chosen per map: flat, peaked and in between."""
    peaked = torch.zeros(10, 16, 16, dtype=torch.float64)
    peaked[:, :2, :4] = 1 + randn(10, 2, 4, seed=1).abs()
    result = fs.evaluate(
        _vit(),
        _images(10),
        ["raw_attention"],
        ["saco", "aopc"],
        maps={"peaked": peaked, "flat": 5 + randn(10, 16, 16, seed=2)},
        k="auto",
        random_draws=1,
        out=root / "run",
    )
    return of_images(result, root)


def maps(root: Path) -> Record:
    """Given maps of pixels and patches, constant and NaN ones; other rules for groups and ties."""
    constant, broken = torch.ones(6, 16, 16), randn(6, 16, 16, seed=4)
    broken[2, 3, 3] = torch.nan
    result = fs.evaluate(
        _vit(),
        _images(6),
        maps={
            "pixels": randn(6, 16, 16, seed=5),
            "patches": randn(6, 4, 4, seed=6),
            "constant": constant,
            "broken": broken,
        },
        metrics=["saco", "saco(weight=ratio)", "saco(k=4, penalty=1.0)", "auc(step=5)"],
        target=torch.arange(6) % 5,
        group="mean",
        ties="descending",
        upsample="nearest",
        random_draws=1,
        out=root / "run",
    )
    again = result.rescore(["saco(penalty=2.0)", "log_odds"], group="sum")
    record = of_images(result, root)
    record["tables"]["rescored"] = rows_of(again.scores.select(IMAGE_COLUMNS["scores"]))
    return record


def broken(root: Path) -> Record:
    """A folder of images labelled by class folders; one file is none, one has another size."""
    folder = root / "images"
    draw = np.random.default_rng(0)
    for place in range(7):
        file = folder / ("dog" if place % 2 else "cat") / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        side = 20 if place == 3 else 16
        Image.fromarray(draw.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(file)
    (folder / "cat" / "broken.png").write_bytes(b"no image")
    model = fs.wrap(
        tiny_vit(num_classes=2, dtype=torch.float64),
        name="pets",
        classes=("cat", "dog"),
        input_size=(16, 16),
        **NORMALISED,
    )
    model.module.double()
    result = fs.evaluate(
        model,
        _Doubles(fs.load_data(folder, model)),
        ["attcat", "grad_cam"],
        ["saco", "auc", "insertion"],
        fill="black",
        upsample="nearest",  # exact ties: at the edges bilinear ones hang on a CPU's rounding
        target="label",
        random_draws=1,
        seed=3,
    )
    return of_images(result, root)


class _Doubles:
    """A data set whose images are made float64, as the model is."""

    def __init__(self, data: Any) -> None:
        self.data, self.name = data, data.name

    def __len__(self) -> int:
        return len(self.data)

    def batches(self, size: int) -> Iterator[Any]:
        from dataclasses import replace

        for batch in self.data.batches(size):
            yield replace(batch, images=batch.images.double())


def patches(root: Path) -> Record:
    """Whole patches removed and replaced by noise."""
    result = fs.evaluate(
        _vit(),
        _images(8),
        ["transformer_mm", "gradient"],
        ["saco(k=4)", "comprehensiveness", "sufficiency", "deletion"],
        units="patches",
        k=4,
        fill="noise",
        random_draws=2,
        seed=1,
        out=root / "run",
    )
    return of_images(result, root)


def sizes(root: Path) -> Record:
    """Images of two sizes; the smaller ones have fewer units than groups."""
    images = [randn(3, side, side, seed=side + i) for i, side in enumerate((4, 8, 4, 8, 8))]
    result = fs.evaluate(
        fs.wrap(AnySize(), name="any size"),
        images,
        ["gradient", "input_x_gradient"],
        ["saco", "aopc", "log_odds"],
        k=20,
        fill="blur",
        random_draws=1,
        out=root / "run",
    )
    return of_images(result, root)


def loader(root: Path) -> Record:
    """Batches that can be read once, in order."""
    images, labels = _images(9), torch.arange(9) % 5
    batches = [(images[i : i + 4], labels[i : i + 4]) for i in range(0, 9, 4)]
    result = fs.evaluate(
        _vit(), iter(batches), ["rollout"], ["saco", "aopc"], target=2, random_draws=1
    )
    return of_images(result, root)


STUDY = """
models: [bundled:cifar10_vit]
data: [bundled:cifar10]
methods: [rollout, gradient]
metrics: [saco, aopc]
k: [5, 10]
fills: [mean, black]
random_draws: 1
limit: 3
"""


def study(root: Path) -> Record:
    """Several K's and two fills of the bundled model, in float32."""
    (root / "several.yaml").write_text(STUDY)
    done = fs.run_study(fs.load_study(root / "several.yaml"), root / "runs", device="cpu")
    runs = fs.load_results(root / "runs")
    record = {"tables": {}, "rows": {}, "facts": {}, "words": {}}
    for label, result in done.results.items():
        one = of_images(result, root / label)
        for part in ("tables", "rows", "facts"):
            record[part] |= {f"{label} {name}": held for name, held in one[part].items()}
        record["words"][label] = one["words"]["sentences"]
    record["rows"]["sensitivity"] = done.sensitivity().to_pylist()
    record["words"]["page"] = page_words(runs.report(root / "page.html"))
    return record


def tolerance(root: Path) -> Record:
    """A run that stops as soon as its means are known well enough."""
    (root / "enough.yaml").write_text(
        "models: bundled:cifar10_vit\ndata: bundled:cifar10\nmethods: gradient\nmetrics: saco\n"
        "k: 3\nrandom_draws: 1\nlimit: 80\ntolerance: 1.5\n"
    )
    done = fs.run_study(fs.load_study(root / "enough.yaml"), root / "runs", device="cpu")
    return of_images(next(iter(done.results.values())), root)


FEW = {"measures": ["gradient", "input_x_gradient", "mutual_information"], "levels": [20, 50]}


def _roar(root: Path | None, **options: Any) -> Any:
    return fs.roar(bag_texts(), BagLearner(), **{"seeds": 3, **FEW, **options}, out=root)


def roar(root: Path) -> Record:
    """Both procedures of a bag of words."""
    return of_texts(_roar(root / "run"), root)


def recursive(root: Path) -> Record:
    """Recursive ROAR alone, with two seeds: no intervals and no verdict."""
    result = _roar(root / "run", procedures="recursive", seeds=[4, 1], specials=False)
    return of_texts(result, root)


def count(root: Path) -> Record:
    """Tokens masked one by one."""
    return of_texts(_roar(root / "run", strategy="count", levels=[1, 2, 4]), root)


def joined(root: Path) -> Record:
    """Seeds trained apart and joined."""
    for name, seeds in (("a", [0, 1]), ("b", [2])):
        _roar(root / name, seeds=seeds)
    return of_texts(fs.load_result(join_runs([root / "a", root / "b"], root / "joined")), root)


def babi(root: Path) -> Record:
    """The BiLSTM with attention on the bundled stories, in float32."""
    training = {"epochs": 2, "batch_size": 32, "learning_rate": 5e-3}
    result = fs.roar(
        "bundled:babi1",
        measures=["attention", f"integrated_gradients(steps=3, {PAPERS_PATH})"],
        seeds=1,
        levels=[30, 60],
        limit=80,
        device="cpu",
        out=root / "run",
        **training,
    )
    return of_texts(result, root)


def compare(root: Path) -> Record:
    """Two runs over images that differ in their fill, and two ROAR runs of other recipes."""
    options = {"metrics": ["saco", "aopc"], "random_draws": 1}
    one, other = (
        fs.evaluate(_vit(), _images(14), ["rollout", "gradient"], fill=fill, **options)
        for fill in ("mean", "blur")
    )
    short = BagLearner()
    short.recipe = type(short.recipe)(epochs=2, batch_size=16, learning_rate=1)
    first = _roar(None, seeds=5)
    second = fs.roar(bag_texts(), short, **{**FEW, "seeds": 5})
    record: Record = {"tables": {}, "rows": {}, "facts": {}, "words": {}}
    for name, pair in {"images": (one, other), "texts": (first, second)}.items():
        found = fs.compare(*pair)
        record["rows"][name] = compared_rows(found)
        record["words"][name] = [found.headline(), *found.sentences(), *found.differs]
    return record


def compared_rows(found: Any) -> list[dict[str, Any]]:
    """The rows of the first record: of texts no end of the curve, and no test."""
    if found.first.manifest.kind == "perturb":
        return without(found.rows, "procedure")
    return [
        {
            **{key: row[key] for key in row if key not in ("procedure", "p", "d_z")},
            "measure": row["method"],
            "method": f"{row['method']}/{row['procedure']}",
        }
        for row in found.rows
        if row["metric"] != "end"
    ]


RUNS: Mapping[str, Callable[[Path], Record]] = {
    run.__name__: run
    for run in (
        *(plain, auto_k, maps, broken, patches, sizes, loader, study, tolerance),
        *(roar, recursive, count, joined, babi, compare),
    )
}
IN_FLOAT32 = ("study", "tolerance", "babi")


def join_runs(parts: list[Path], out: Path) -> Path:
    """Pack runs and unpack them as one."""
    from faithscope.api import pack_run, unpack_run

    unpack_run([pack_run(part).file for part in parts], out)
    return out


# What is recorded of a result, in the columns of the first record


def of_images(result: Any, root: Path) -> Record:
    manifest = result.manifest
    root.mkdir(parents=True, exist_ok=True)
    protocol = {key: value for key, value in manifest.protocol.items() if key != "tolerance"}
    first = protocol["k"][0] if isinstance(protocol["k"], tuple) else protocol["k"]
    stopping = manifest.stopping
    return {
        "tables": {
            name: rows_of(getattr(result, name).select(columns))
            for name, columns in IMAGE_COLUMNS.items()
        },
        "rows": {
            "summary": without(result.summary().to_pylist(), "procedure"),
            "comparisons": result.comparisons().to_pylist(),
            "correlations": result.correlations().to_pylist(),
            "pictures": [
                {key: row[key] for key in ("sample", "method", "kind", "height", "width")}
                for row in result.pictures.to_pylist()
            ],
        },
        "facts": {
            "protocol": {**protocol, "k": first, "target": str(protocol["target"])},
            "data": {
                "name": manifest.data.name,
                "images": manifest.data.samples,
                "accuracy": manifest.data.accuracy,
            },
            "skipped": [{"sample": s.name, "reason": s.why} for s in manifest.data.skipped],
            "methods": {
                label: {
                    "granularity": card.granularity,
                    "random": card.is_random,
                    "matched_random": card.matched_random,
                }
                for label, card in manifest.methods.items()
            },
            "metrics": {name: card.higher_is_better for name, card in manifest.metrics.items()},
            "passes": [manifest.cost.response_passes, manifest.cost.explanation_passes],
            "stopping": None
            if stopping is None
            else {
                "tolerance": stopping.tolerance,
                "images": stopping.samples,
                "reached": stopping.reached,
                "sequences": stopping.model_dump()["sequences"],
            },
            "plan": {
                "model": manifest.model.fingerprint,
                "data": manifest.data.fingerprint,
                "shard": manifest.plan.shard,
            },
        },
        "words": {
            "sentences": [result.headline(), *result.verdicts(), *result.metric_verdicts()],
            "table": result.table().splitlines(),
            "page": page_words(result.report(root / "page.html")),
        },
    }


IMAGE_COLUMNS = {
    "scores": [
        *("model", "data", "sample", "method", "draw", "metric", "k", "fill", "upsample"),
        *("value", "flag"),
    ],
    "responses": [
        *("sample", "method", "draw", "start", "stop", "log_p", "top1", "salience"),
    ],
    "samples": ["sample", "label", "target", "predicted", "log_p0"],
}
"""The columns of the first record."""
TRAINING_COLUMNS = [
    *("job", "data", "model", "measure", "procedure", "strategy", "k", "seed", "metric"),
    *("value", "epoch"),
]


def without(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in names} for row in rows]


def of_texts(result: Any, root: Path) -> Record:
    manifest, texts = result.manifest, result.manifest.data.texts
    protocol = manifest.protocol
    about = texts.model_dump(exclude={"majority"})
    majority = {"class": texts.majority.label, "score": texts.majority.score}
    return {
        "tables": {
            "trainings": sorted_rows(result.trainings.select(TRAINING_COLUMNS)),
            "sparsity": sorted_rows(result.sparsity),
        },
        "rows": {
            "racu": result.racu().to_pylist(),
            "unclipped": result.racu(clip=False).to_pylist(),
            "curves": result.curves().to_pylist(),
            "examples": nested_examples(result),
            "one_class": result.one_class(),
        },
        "facts": {
            "protocol": {
                "measures": result.methods,
                "clip": True,
                **{
                    key: protocol[key]
                    for key in ("strategy", "levels", "procedures", "seeds", "specials")
                },
            },
            "data": {
                **about,
                "name": manifest.data.name,
                "fingerprint": manifest.data.fingerprint,
                "majority": majority,
            },
            "model": {
                "name": manifest.model.name,
                "parameters": manifest.model.parameters,
                "recipe": manifest.model.recipe.model_dump(),
            },
            "trainings": manifest.cost.trainings,
            "explained": manifest.cost.explained,
            "plan": {"pack_size": manifest.plan.pack_size},
        },
        "words": {
            "sentences": [result.headline(), *result.warnings()],
            "table": result.table().splitlines(),
            "page": page_words(result.report(root / "page.html")),
        },
    }


def nested_examples(result: Any) -> list[dict[str, Any]]:
    """The rows of the examples as the first record has them: a text with all its levels."""
    same = ("split", "index", "words", "eligible", "label", "auxiliary")
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in result.examples.to_pylist():
        key = row["measure"], row["procedure"], row["index"]
        held = {name: row[name] for name in (*same, "measure", "procedure", "seed")}
        own = found.setdefault(key, {**held, "levels": []})
        own["levels"].append({name: row[name] for name in ("k", "masked", "scores")})
    for example in found.values():
        example["levels"].sort(key=lambda level: level["k"])
    procedures = result.procedures
    place = {label: i for i, label in enumerate(result.methods)}
    return [
        found[key]
        for key in sorted(found, key=lambda k: (place[k[0]], procedures.index(k[1]), k[2]))
    ]


def rows_of(table: Any) -> dict[str, list[Any]]:
    return {name: table[name].to_pylist() for name in table.column_names}


def sorted_rows(table: Any) -> dict[str, list[Any]]:
    """Columns of rows whose order means nothing."""
    columns = rows_of(table)
    order = sorted(range(table.num_rows), key=lambda i: str([c[i] for c in columns.values()]))
    return {name: [values[i] for i in order] for name, values in columns.items()}


VOLATILE = re.compile(
    r"\d+ \w+ \d{4}, \d\d:\d\d UTC|[\d.]+ s\b|\d+ min \d+ s|passes per second|machine|versions|"
    r"faithscope \d|^[0-9a-f]{16,}$|threads|^[\d.]+ s$|< 0.01 s"
)


def page_words(page: Path) -> list[str]:
    """What a reader sees of a page, line by line, but for times, machines, batches and hashes."""
    text = page.read_text("utf-8")
    text = re.sub(r"<dt>batch size</dt>\s*<dd>\d+</dd>", " ", text)  # of a CPU by its threads
    text = re.sub(r"<(style|script|svg|title)\b.*?</\1>", " ", text, flags=re.DOTALL)
    text = re.sub(
        r"<(?:p|h\d|li|tr|td|th|dt|dd|small|summary|figcaption|option)\b[^>]*>", "\n", text
    )
    lines = (
        " ".join(html.unescape(line).split()) for line in re.sub(r"<[^>]+>", " ", text).split("\n")
    )
    return [line for line in lines if line and not VOLATILE.search(line)]


# The record


def plainly(value: Any) -> Any:
    """Values as JSON gives them back; NaN and infinity as text."""
    if isinstance(value, Mapping):
        return {str(key): plainly(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [plainly(held) for held in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def words(record: Record) -> str:
    """What a run says, as a text that a person can read in a diff."""
    return "".join(
        f"## {part}\n\n" + "".join(f"{line}\n" for line in lines) + "\n"
        for part, lines in record["words"].items()
    )


def write(name: str, record: Record, *, words_only: bool) -> None:
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{name}.txt").write_text(words(record), "utf-8")
    if not words_only:
        numbers = {key: held for key, held in record.items() if key != "words"}
        text = json.dumps(plainly(numbers), sort_keys=True)
        (RECORDS / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def make(name: str) -> Record:
    with tempfile.TemporaryDirectory() as folder:
        return RUNS[name](Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(RUNS))
    parser.add_argument("--words", action="store_true", help="leave the numbers as they are")
    options = parser.parse_args()
    for name in options.names or RUNS:
        write(name, make(name), words_only=options.words)
        print(name, file=sys.stderr)


if __name__ == "__main__":
    main()
