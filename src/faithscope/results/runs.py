"""Finished runs of a folder: of one run, or of a study with a folder for each of its cells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from faithscope.errors import FaithscopeError
from faithscope.results.result import Result, load_result
from faithscope.results.sensitivity import telling_names


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
        notes = [f"Not finished, and not in this page: {', '.join(self.unfinished)}."]
        return write_page(self.told, path, title=title, notes=notes if self.unfinished else ())


def load_results(folder: str | Path) -> Runs:
    """Read the run in a folder, or every finished run in the folders of a study.

    Runs that were begun and not finished are named in `unfinished`.
    """
    root = Path(folder)
    if _exists(root / "manifest.json"):
        name = root.resolve().name
        return Runs({name: load_result(root)}, name=name)
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
            "--out` or `faithscope run` wrote."
        )
    loaded = {path: load_result(path) for path in finished}
    in_order = sorted(loaded, key=lambda path: _moment(path, loaded[path]))
    done = {path.name for path in finished}
    return Runs(
        {path.name: loaded[path] for path in in_order},
        tuple(name for name in unfinished if name not in done),
        root.resolve().name,
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long to be one
        return False


def _moment(path: Path, result: Result) -> tuple[str, int]:
    """When a run was finished; files know it better than to the second."""
    return str(result.manifest.get("created", "")), (path / "manifest.json").stat().st_mtime_ns
