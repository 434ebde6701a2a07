"""Finished runs of a folder: of one run, or of a study with a folder for each of its cells.

A run is one over images (`Result`) or of ROAR (`RoarResult`); its manifest says which.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from faithscope.errors import FaithscopeError
from faithscope.result import Result
from faithscope.result import load_result as load_image_result
from faithscope.verdicts.sensitivity import telling_names

if TYPE_CHECKING:
    from faithscope.probes.retrain.result import RoarResult


@dataclass(frozen=True, eq=False)
class Runs:
    """Results by the names of their folders, the oldest first, and the runs still unfinished."""

    results: dict[str, Result]
    unfinished: tuple[str, ...] = ()
    name: str = ""

    @property
    def told(self) -> dict[str, Result]:
        """The results by what tells them from each other, as "fill=blur"."""
        names = telling_names(self.results)
        return {names[name]: result for name, result in self.results.items()}

    def report(self, path: str | Path) -> Path:
        """Write all of them as one self-contained HTML page."""
        from faithscope.report import write_page

        title = self.name if len(self.results) > 1 else None
        return write_page(self.told, path, title=title, notes=_left_out(self.unfinished))

    def write_figures(self, folder: str | Path) -> list[Path]:
        """Write every figure, as PDF and PNG."""
        from faithscope.report import write_figures

        return write_figures(self.told, folder)

    def write_tables(self, folder: str | Path) -> list[Path]:
        """Write the tables, as Markdown, LaTeX and CSV."""
        from faithscope.report import write_tables

        return write_tables(self.told, folder)


@dataclass(frozen=True, eq=False)
class RoarRuns:
    """The same of ROAR runs."""

    results: dict[str, RoarResult]
    unfinished: tuple[str, ...] = ()
    name: str = ""

    @property
    def told(self) -> dict[str, RoarResult]:
        """The results by data set and model, or by their own names if those are not enough."""
        named = [
            f"{result.manifest['data']['name']}, {result.manifest['model']['name']}"
            for result in self.results.values()
        ]
        clear = len(set(named)) == len(named)
        return dict(zip(named if clear else self.results, self.results.values(), strict=True))

    def report(self, path: str | Path) -> Path:
        """Write all of them as one self-contained HTML page."""
        from faithscope.report import write_roar_page

        title = self.name if len(self.results) > 1 else None
        return write_roar_page(self.told, path, title=title, notes=_left_out(self.unfinished))

    def write_figures(self, folder: str | Path) -> list[Path]:
        """Write every figure, as PDF and PNG."""
        from faithscope.report import write_roar_figures

        return write_roar_figures(self.told, folder)

    def write_tables(self, folder: str | Path) -> list[Path]:
        """Write the tables, as Markdown, LaTeX and CSV."""
        from faithscope.report import write_roar_tables

        return write_roar_tables(self.told, folder)


def load_result(folder: str | Path) -> Result | RoarResult:
    """Read a finished run, over images or of ROAR."""
    from faithscope.probes.retrain.result import load_roar

    return load_roar(folder) if _is_roar(Path(folder)) else load_image_result(folder)


def load_results(folder: str | Path) -> Runs | RoarRuns:
    """Read the run in a folder, or every finished run in the folders of a study.

    Runs that were begun and not finished are named in `unfinished`.
    """
    root = Path(folder)
    if _exists(root / "manifest.json"):
        name = root.resolve().name
        return _runs([(name, load_result(root))], (), name)
    if _exists(root / "plan.json"):
        raise FaithscopeError(
            f"The run in '{folder}' is not finished: give the command that began it once more, and "
            "it goes on where it was."
        )
    try:
        below = sorted(path for path in root.iterdir() if path.is_dir())
    except OSError as error:
        raise FaithscopeError(
            f"The folder '{folder}' cannot be read ({error.strerror}): check the path."
        ) from None
    finished = [path for path in below if (path / "manifest.json").exists()]
    unfinished = [path.name for path in below if (path / "plan.json").exists()]
    if not finished:
        begun = f", only unfinished ones ({', '.join(unfinished)})" if unfinished else ""
        raise FaithscopeError(
            f"'{folder}' holds no finished run{begun}: give a folder that `faithscope evaluate "
            "--out`, `faithscope roar --out` or `faithscope run` wrote."
        )
    loaded = {path: load_result(path) for path in finished}
    in_order = sorted(loaded, key=lambda path: _moment(path, loaded[path]))
    done = {path.name for path in finished}
    return _runs(
        [(path.name, loaded[path]) for path in in_order],
        tuple(name for name in unfinished if name not in done),
        root.resolve().name,
    )


def _runs(
    loaded: Sequence[tuple[str, Result | RoarResult]], unfinished: tuple[str, ...], name: str
) -> Runs | RoarRuns:
    """Runs of one kind; two kinds in one folder cannot be shown together."""
    images = {label: result for label, result in loaded if isinstance(result, Result)}
    texts = {label: result for label, result in loaded if not isinstance(result, Result)}
    if images and texts:
        raise FaithscopeError(
            f"'{name}' holds runs over images ({', '.join(images)}) and of ROAR "
            f"({', '.join(texts)}): give the folder of one of them."
        )
    return Runs(images, unfinished, name) if images else RoarRuns(texts, unfinished, name)


def _is_roar(root: Path) -> bool:
    """Whether a folder's manifest is that of a ROAR run; a broken one is told by who reads it."""
    try:
        manifest = json.loads((root / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("kind") == "roar"


def _left_out(unfinished: Sequence[str]) -> list[str]:
    if not unfinished:
        return []
    return [f"Not finished, and not in this page: {', '.join(unfinished)}."]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long to be one
        return False


def _moment(path: Path, result: Result | RoarResult) -> tuple[str, int]:
    """When a run was finished; files know it better than to the second."""
    return str(result.manifest.get("created", "")), (path / "manifest.json").stat().st_mtime_ns
