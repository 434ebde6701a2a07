"""Write reference.md, the schema of manifests and the command line's catalogue; check links.

python docs/build.py           # writes and checks
python docs/build.py --check   # only checks, as the tests do
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

from faithscope.cli.catalog import CATALOGUES, list_measures, list_methods
from faithscope.cli.listing import FILE as CATALOGUE
from faithscope.cli.listing import KINDS, options
from faithscope.metrics import METRICS
from faithscope.perturb import DEFAULTS, FILLS
from faithscope.runs.manifest import Manifest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
REFERENCE = ROOT / "docs" / "reference.md"
SCHEMA = ROOT / "docs" / "manifest.schema.json"


def reference() -> str:
    """The page that lists everything registered."""
    methods, measures = (
        [
            [
                f"`{entry['name']}`",
                entry["granularity"],
                ", ".join(entry["needs"]) or "—",
                ", ".join(f"`{option}`" for option in options(entry)) or "—",
                "yes" if entry["in_papers"] else "",
                entry["summary"],
            ]
            for entry in entries
            if "granularity" in entry
        ]
        for entries in (list_methods(), list_measures())
    )
    heads = ["name", "granularity", "evidence", "options", "in the papers", "what it is"]
    metrics = [
        [
            f"`{metric.name}`",
            metric.probe,
            "↑" if metric.higher_is_better else "↓",
            " … ".join(str(bound).replace("inf", "∞") for bound in metric.bounds),
            ", ".join(f"`{field.name}={field.default}`" for field in fields(metric)) or "—",
            metric.equation,
            metric.paper,
        ]
        for metric in METRICS.values()
    ]
    fills = [
        [f"`{fill.name}`", f"{modality}s", fill.summary]
        for modality in DEFAULTS
        for fill in FILLS.of(modality).values()
    ]
    return "\n".join(
        [
            "# Reference",
            "",
            "Written by `make docs` from the registries; `faithscope list` prints the same.",
            "",
            "## Methods",
            "",
            table(heads, methods),
            "",
            "Definitions, variants and costs: [methods.md](methods.md).",
            "",
            "Also `captum:CLASS` for captum's attribution classes, any function, and maps given.",
            "",
            "## Measures: methods for text",
            "",
            table(heads, measures),
            "",
            "Definitions: [text.md](text.md#measures).",
            "",
            "## Metrics",
            "",
            table(["name", "of", "better", "range", "options", "equation", "paper"], metrics),
            "",
            "## Fills",
            "",
            table(["name", "of", "what replaces a removed unit"], fills),
            "",
        ]
    )


def schema() -> str:
    """The JSON schema of a run's manifest, with its plan and request."""
    return json.dumps(Manifest.model_json_schema(), indent=1, ensure_ascii=False) + "\n"


def catalogue() -> str:
    """Everything registered, for `faithscope list`, which imports none of it."""
    entries = {kind: CATALOGUES[kind]() for kind in KINDS}
    return json.dumps(entries, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped)


def broken_links(page: Path) -> list[str]:
    """Relative links and images of a page that do not exist."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    return [
        f"{page.name}: {link}"
        for link in links
        if "://" not in link and not (page.parent / link).exists()
    ]


def examples(page: Path) -> str:
    """All Python examples of a page, in order."""
    return "\n\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))


def run_examples(page: Path) -> str:
    """Run a page's examples in a fresh process and folder; return the error, if any."""
    code = examples(page)
    if not code:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
        )
    return f"{page.name}: {done.stderr}" if done.returncode else ""


def main() -> int:
    """Write the generated files unless only checking; report every problem."""
    problems = []
    for file, text in ((REFERENCE, reference()), (SCHEMA, schema()), (CATALOGUE, catalogue())):
        if "--check" not in sys.argv:
            file.write_text(text)
        elif file.read_text() != text:
            problems.append(f"{file.name} is out of date: run `make docs`")
    for page in PAGES:
        problems += broken_links(page)
        problems += filter(None, [run_examples(page)])
    print("\n".join(problems) or "documentation: reference, links and examples are fine")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
