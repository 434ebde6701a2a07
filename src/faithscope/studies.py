"""Studies: one YAML file, many runs, one folder; and the runs of a folder.

The keys of a study are the options of its runs. Some are *axes*: a list of values makes one run
each, and every combination is a run in a folder of its own.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, product
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import yaml

from faithscope.api import Prepared, prepare_request, prepare_typed
from faithscope.errors import FaithscopeError, choose, shown, unknown, warn
from faithscope.models import Model
from faithscope.probes import probe_of
from faithscope.probes.perturb.resolve import OF_A_NAME, load_named_model, with_model
from faithscope.report.page import write_page
from faithscope.report.plots import write_figures
from faithscope.report.tables import write_tables
from faithscope.request import (
    KINDS,
    Given,
    Perturb,
    Place,
    Request,
    as_path,
    as_place,
    check_request,
    options,
    plain,
    python_names,
)
from faithscope.request.code import named_code, refuse_code, short_name, split_label
from faithscope.result import Result, load_result, runs_in
from faithscope.runs.run import is_run
from faithscope.runs.scheduler import Forecast
from faithscope.verdicts.sensitivity import distinguishing_labels, sensitivity_rows

WORDS = {"perturb": "perturb", "retrain": "retrain", "images": "perturb", "roar": "retrain"}
"""What a study may call its kind; without a word about it, it perturbs inputs."""
MODEL_KEYS = ("name", "label", "checkpoint", "pretrained", "device")
LARGEST = 1 << 18
"""Bytes of a study."""
MOST_NODES, DEEPEST = 10_000, 20
"""Words, numbers, lists and keys of a study, and how deep they are nested."""
MOST_RUNS = 10_000
OF_IMAGES = {"fill": "mean", "units": "pixels"}
"""What "auto" meant before there were texts."""
EXAMPLES = {"model": "bundled:cifar10_vit", "data": "bundled:cifar10"}

Runner = Callable[[str, Prepared], Result]


@dataclass(frozen=True)
class Study:
    """What to run: requests by the names of their folders."""

    name: str
    cells: Mapping[str, Request]
    allows_code: bool = False
    """Whether the Python code that it names may run."""

    @property
    def code(self) -> dict[str, list[str]]:
        """The Python code that runs name, FILE.py:NAME, by run; reading a study imports none."""
        named = {
            label: named_code([held.model, *_methods(held)]) for label, held in self.cells.items()
        }
        return {label: names for label, names in named.items() if names}

    def allowing_code(self) -> Study:
        """The same study, whose Python code you trust: it is imported when a run needs it."""
        return replace(self, allows_code=True)

    def without_code(self) -> Study:
        """The runs of the study that name no Python code."""
        named = self.code
        cells = {label: held for label, held in self.cells.items() if label not in named}
        return replace(self, cells=cells)

    def at(self, out: str | Place) -> Study:
        """The same study, whose runs keep the names of the folders that they have there already."""
        root, cells = as_place(out, "out"), dict[str, Request]()
        for label, held in self.cells.items():
            names = (label, *former_labels(held))
            cells[next((name for name in names if is_begun(root / name)), label)] = held
        return replace(self, cells=cells)

    def run_on(self, **where: Any) -> Study:
        """The same study elsewhere: on, address, workers, gpus_per_worker, cpus_per_worker."""
        cells = {label: held.model_copy(update=where) for label, held in self.cells.items()}
        return replace(self, cells=cells)

    def trusted(self) -> Study:
        """The same study, whose models of Hugging Face may run the code that comes with them."""
        trust = {"trust_remote_code": True}
        cells = {
            label: held.model_copy(update=trust if _is_hugging_face(held.model) else {})
            for label, held in self.cells.items()
        }
        return replace(self, cells=cells)


@dataclass(frozen=True, eq=False)
class Runs:
    """Results by the names of their folders, the oldest first, and the runs still unfinished."""

    results: dict[str, Result]
    unfinished: tuple[str, ...] = ()
    name: str = ""
    failed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What went wrong with those of them that an error ended, by name."""

    def __getitem__(self, label: str) -> Result:
        return self.results[choose("run of this study", label, self.results)]

    @property
    def labelled(self) -> dict[str, Result]:
        """The results by what distinguishes them, as "fill=blur"."""
        names = distinguishing_labels(self.results)
        return {names[name]: result for name, result in self.results.items()}

    def sensitivity(self) -> pa.Table:
        """What an option of the protocol moves: for every axis, its first value against the others.

        One row per metric: `absolute` and `signed` mean change of a score, the signed one with its
        interval; `flipped`, the share of pairs of methods whose order of means changes; and
        `agreement`, the rank correlation over methods, sample by sample, with its interval.
        """
        return pa.Table.from_pylist(sensitivity_rows(self.results))

    def report(self, path: str | Place) -> Place:
        """Write all of them as one self-contained HTML page."""
        notes = [f"Not finished, and not on this page: {', '.join(self.unfinished)}."]
        return write_page(
            self.labelled,
            as_place(path),
            title=self.name if len(self.results) > 1 else None,
            notes=notes if self.unfinished else (),
        )

    def write_figures(self, folder: str | Path) -> list[Path]:
        """Write every figure, as PDF and PNG."""
        return write_figures(self.labelled, as_path(folder))

    def write_tables(self, folder: str | Path) -> list[Path]:
        """Write the tables, as Markdown, LaTeX and CSV."""
        return write_tables(self.labelled, as_path(folder))


# Reading a study


def load_study(path: str | Path, changes: Mapping[str, Any] | None = None) -> Study:
    """Read a study from YAML, with some keys changed; what is wrong is said in one sentence."""
    file = as_path(path, "The study")
    try:
        with file.open("rb") as held:
            content = read_yaml(held.read(LARGEST + 1))
    except OSError as error:
        raise FaithscopeError(
            f"The study '{path}' cannot be read ({error.strerror}): check the path."
        ) from None
    except ValueError as error:
        raise FaithscopeError(f"The study '{path}' is not YAML ({error}).") from None
    if not isinstance(content, dict):
        raise FaithscopeError(f"The study '{path}' must hold keys and values, such as 'model: …'.")
    if changes is not None and not isinstance(changes, Mapping):
        raise FaithscopeError(f"The changes of a study are keys and values, got {shown(changes)}.")
    return make_study({"name": file.stem, **content}, changes or {})


class _PlainYaml(yaml.SafeLoader):  # type: ignore[misc]
    """YAML of words, numbers, lists and keys that are given once, of bounded size when spelled out.

    A few lines of aliases of aliases can stand for more than any memory holds.
    """

    yaml_implicit_resolvers: ClassVar[Any] = {
        first: [held for held in resolvers if held[0] != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    depth = nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth, self.nodes = self.depth + 1, self.nodes + 1
        if self.depth > DEEPEST or self.nodes > MOST_NODES:
            raise yaml.YAMLError(
                f"a study has at most {MOST_NODES:,} values, nested at most {DEEPEST} levels deep"
            )
        if tag := getattr(self.peek_event(), "tag", None):
            raise yaml.YAMLError(f"a study has no tags, such as '{tag}'")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        waiting = [] if node is None else [(node, 1)]
        for seen in count():
            if not waiting:
                return node
            held, depth = waiting.pop()
            if seen > MOST_NODES or depth > DEEPEST:  # which a node that holds itself is
                raise yaml.YAMLError("spelled out, its aliases are too much")
            below = held.value if isinstance(held.value, list) else ()
            for part in below:
                parts = part if isinstance(part, tuple) else (part,)
                waiting += [(one, depth + 1) for one in parts]

    def construct_yaml_int(self, node: Any) -> int:
        value: int = super().construct_yaml_int(node)
        if abs(value) >= 1 << 63:
            raise yaml.YAMLError("a number has too many digits")
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key, times in Counter(map(repr, keys)).items():
            if times > 1:
                raise yaml.YAMLError(f"the key {key} is given twice")
        return super().construct_mapping(node, deep)


_PlainYaml.add_implicit_resolver(  # as YAML 1.2 and everybody else, who do not ask for a dot
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), "-+0123456789"
)
_PlainYaml.add_constructor("tag:yaml.org,2002:int", _PlainYaml.construct_yaml_int)


def read_yaml(content: bytes | str) -> Any:
    """Read YAML safely; a ValueError says what is wrong with it."""
    if len(content) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST >> 10} KB")
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        return yaml.load(text, _PlainYaml)  # a SafeLoader
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None


def make_study(content: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Study:
    """Check every key and value of a study; `changes` are keys that count instead."""
    held, changed = dict(content), dict(changes or {})
    word = {"kind": "perturb", **held, **changed}["kind"]
    kind = KINDS[WORDS[choose("kind of study", word, WORDS)]]
    values = {**_by_field(kind, held), **_by_field(kind, changed)}
    name = values.pop("name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[\w][\w .-]*", name):
        raise FaithscopeError(f"The study's 'name' must be a plain word, got {shown(name)}.")
    for key, field in kind.model_fields.items():
        if field.is_required() and key != "kind" and not values.get(key):
            example = EXAMPLES.get(key, "…") if kind is Perturb else "bundled:babi1"
            raise FaithscopeError(f"A study needs '{key}': for example {key}: [{example}].")
    axes = {name: _axis(name, values.pop(name)) for name in _axes(kind) if name in values}
    if (runs := math.prod(map(len, axes.values()))) > MOST_RUNS:
        raise FaithscopeError(f"The study is {runs:,} runs: more than {MOST_RUNS:,} are not taken.")
    cells: dict[str, Request] = {}
    for chosen in product(*axes.values()):
        request = _cell(kind, values, dict(zip(axes, chosen, strict=True)))
        label = cell_label(request)
        if label in cells:
            raise FaithscopeError(
                f"Two runs of the study would both be called '{label}': label the models, or "
                "rename a checkpoint or data folder."
            )
        cells[label] = request
    for request in cells.values():
        probe_of(request.kind).check(_without_code(request), Given())
    return Study(name, cells)


def _without_code(request: Request) -> Request:
    """The same without the methods that are Python code, of which nothing is known yet."""
    named = named_code(_methods(request))
    rest = tuple(name for name in _methods(request) if name not in named)
    return request.model_copy(update={"methods": rest}) if named else request


def _methods(request: Request) -> tuple[str, ...]:
    return getattr(request, "methods", None) or ()


def _axes(kind: type[Request]) -> list[str]:
    return [name for name, option in options(kind).items() if option.axis]


def _by_field(kind: type[Request], content: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the names of fields, whatever they were called."""
    known = {alias: name for name, held in options(kind).items() for alias in held.aliases}
    known |= {held.name: name for name, held in options(kind).items() if held.name}
    known |= {name: name for name, held in options(kind).items()} | {"name": "name"}
    known |= {"allow_code": "allow_code"}
    by_hand = {"allow_code"} | {name for name, held in options(kind).items() if held.by_hand}
    values, spelled = dict[str, Any](), dict[str, str]()
    for key, value in content.items():
        if key == "kind":
            continue
        if key in known and known[key] in by_hand:
            raise FaithscopeError(
                f"A study may not give '{key}': type --{key.replace('_', '-')} on the command "
                "line, if that is what you want."
            )
        if key not in known:
            valid = [name for name, field in python_names(kind).items() if field not in by_hand]
            raise unknown("key of a study", str(key), ["kind", "name", *valid])
        name = known[key]
        if name in values:
            raise FaithscopeError(
                f"The study gives '{name}' twice, as '{spelled[name]}' and as '{key}': give it "
                "once."
            )
        values[name], spelled[name] = value, key
    return values


def _axis(name: str, value: Any) -> list[Any]:
    """The values of an axis; one value is a list of one, and models may be given by label."""
    if name == "model" and isinstance(value, Mapping) and not {*MODEL_KEYS} & {*value}:
        value = [_labelled(label, model) for label, model in value.items()]
    items = list(value) if isinstance(value, list | tuple) else [value]
    if not items:
        raise FaithscopeError(f"The study's '{name}' is empty: give at least one value.")
    if len({repr(item) for item in items}) < len(items):
        raise FaithscopeError(f"The study's '{name}' names something twice: name it once.")
    return items


def _labelled(label: Any, model: Any) -> Any:
    """A model by its label, as one that has it."""
    if isinstance(model, Mapping):
        return {"label": label, **model}
    return {"label": label, "name": model}


def _cell(kind: type[Request], values: Mapping[str, Any], chosen: dict[str, Any]) -> Request:
    """One run: a model may be a name, or a name with how it is loaded."""
    model = chosen.get("model")
    if isinstance(model, Mapping):
        if not isinstance(model.get("name"), str):
            raise FaithscopeError(
                f"A model of a study is a name, or has one (name: …, checkpoint: …), got "
                f"{shown(model)}."
            )
        for key in model:
            if key not in MODEL_KEYS or key not in ("name", "label", *options(kind)):
                raise unknown("key of a model in a study", str(key), MODEL_KEYS)
        how = {key: value for key, value in model.items() if key not in ("name", "label")}
        chosen = {**chosen, "model": _with_label(model), **how}
    return check_request(kind, {**values, **plain(chosen)}, of="key of a study")


def _with_label(model: Mapping[str, Any]) -> str:
    label, name = model.get("label"), str(model["name"])
    if label is None:
        return name
    text = f"{label}={name}"
    if not isinstance(label, str) or split_label(text) != (label, name):
        raise FaithscopeError(
            f"The label of a model is a plain word of at most 60 characters, got {shown(label)}."
        )
    return text


def _is_hugging_face(model: str) -> bool:
    return split_label(model)[1].startswith("hf:")


def cell_label(request: Request) -> str:
    """The name of a run's folder: model, data, and what else is not as usual."""
    return _label(request, _defaults(request))


def _label(request: Request, usual: Mapping[str, Any]) -> str:
    parts = []
    for name in _axes(type(request)):
        value = getattr(request, name)
        if name == "model":
            parts.append(short_name(_model_part(request)))
        elif name == "data" or (name == "fill" and value != usual[name]):
            parts.append(short_name(str(value)))
        elif value != usual[name]:
            parts.append(f"{name}-{value}" if isinstance(value, int) else str(value))
    return "_".join(part or "-" for part in parts)


def _defaults(request: Request) -> dict[str, Any]:
    return {name: field.default for name, field in type(request).model_fields.items()}


def _model_part(request: Request) -> str:
    label, name = split_label(request.model)
    if isinstance(request, Perturb) and request.checkpoint and not label:
        return f"{name}-{Path(request.checkpoint).stem}"
    return label or name


def former_labels(request: Request) -> list[str]:
    """The names that a run's folder had when there were only images: short, and before in full."""
    if not isinstance(request, Perturb) or request.side != "both":
        return [_full_label(request)]
    was = {name: value for name, value in OF_IMAGES.items() if getattr(request, name) == "auto"}
    before = request.model_copy(update=was)
    usual = {**_defaults(request), **OF_IMAGES, "fill": None}
    return [_label(before, usual), _full_label(before)]


def _full_label(request: Request) -> str:
    """The values of all axes that there were."""
    parts = []
    for name in _axes(type(request)):
        value = str(getattr(request, name))
        if name == "side":
            continue
        if name == "model" and isinstance(request, Perturb) and request.checkpoint:
            value = f"{value}-{Path(request.checkpoint).stem}"
        parts.append(re.sub(r"[^\w.=-]+", "-", value).strip("-"))
    return "_".join(parts)


# Running a study


def prepare_cells(
    study: Study, out: str | Place | None = None, device: str = "auto"
) -> Iterator[tuple[str, Prepared]]:
    """Check and plan the runs one after the other; a model is loaded once."""
    if not isinstance(study, Study):
        raise FaithscopeError(f"A study is what fs.load_study gives, got {shown(study)}.")
    if study.code and not study.allows_code:
        refuse_code(name for names in study.code.values() for name in names)
    loaded: tuple[Any, Model] | None = None
    for label, request in (study if out is None else study.at(out)).cells.items():
        changes = {} if out is None else {"out": str(as_place(out, "out") / label)}
        if request.device == "auto":
            changes["device"] = device
        request = request.model_copy(update=changes)
        given = Given()
        if isinstance(request, Perturb) and request.on == "local":
            how = tuple(getattr(request, name) for name in ("model", *OF_A_NAME))
            if loaded is None or loaded[0] != how:
                loaded = how, load_named_model(request, allow_code=study.allows_code)
            given, request = Given(model=loaded[1]), with_model(request)
        prepare = prepare_typed if study.allows_code else prepare_request
        yield label, prepare(request, given)


def forecast_study(
    study: Study, out: str | Place | None = None, device: str = "auto"
) -> dict[str, Forecast]:
    """What every run will cost."""
    return {label: prepared.forecast() for label, prepared in prepare_cells(study, out, device)}


def run_study(
    study: Study, out: str | Place, *, device: str = "auto", run: Runner | None = None
) -> Runs:
    """Run everything into folders below `out`; what is finished is not run again.

    A run that an error ends costs that run: the others go on, and `failed` says what it was. If all
    fail, the first error is raised.
    """
    results: dict[str, Result] = {}
    errors: dict[str, FaithscopeError] = {}
    for label, prepared in prepare_cells(study, out, device):
        try:
            results[label] = run(label, prepared) if run else prepared.run()
        except FaithscopeError as error:
            errors[label] = error
            if run is None:
                warn(f"The run '{label}' failed: {error}")
    if errors and not results:
        raise next(iter(errors.values()))
    failed = {label: str(error) for label, error in errors.items()}
    return Runs(results, tuple(failed), study.name, failed)


# The runs of a folder


def load_results(folder: str | Place) -> Runs:
    """Read the run in a folder, or every finished run in the folders of a study.

    Runs that were begun and not finished are named in `unfinished`.
    """
    root = as_place(folder)
    if is_run(root):
        name = root.resolve().name
        return Runs({name: load_result(root)}, name=name)
    finished, unfinished = runs_in(root)
    loaded = {path: load_result(path) for path in finished}
    in_order = sorted(loaded, key=lambda path: _moment(path, loaded[path]))
    _check_kinds(root, {path.name: loaded[path] for path in in_order})
    return Runs(
        {path.name: loaded[path] for path in in_order}, tuple(unfinished), root.resolve().name
    )


def _check_kinds(root: Place, results: Mapping[str, Result]) -> None:
    """Two kinds of run in one folder cannot be shown together."""
    kinds: dict[str, list[str]] = {}
    for name, result in results.items():
        kinds.setdefault(result.manifest.kind, []).append(name)
    if len(kinds) > 1:
        listed = " and ".join(f"{kind} runs ({', '.join(own)})" for kind, own in kinds.items())
        raise FaithscopeError(f"'{root.name}' holds {listed}: give the folder of one of them.")


def is_begun(root: Place) -> bool:
    """Whether a folder holds a run, finished or not."""
    try:
        return any((root / name).exists() for name in ("plan.json", "manifest.json"))
    except OSError:  # a name that no folder can have, or one that may not be looked into
        return False


def _moment(path: Place, result: Result) -> tuple[str, int]:
    """When a run was finished; files know it better than to the second."""
    own = (path / "manifest.json").stat().st_mtime_ns if isinstance(path, Path) else 0
    return result.manifest.created, own
