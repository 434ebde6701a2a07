"""Run the notebook of the documentation and write what its cells show.

python docs/notebook.py           # runs every cell, in order, and stores its outputs
python docs/notebook.py --check   # only runs them

Cells are run in this process, as a kernel would run them, in a folder that is removed afterwards:
neither Jupyter nor IPython is needed.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
from base64 import b64encode
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parent / "strangers.ipynb"
SHOWN = {"text/html": "_repr_html_", "image/png": "_repr_png_"}


def run_notebook(notebook: dict[str, Any]) -> dict[str, Any]:
    """The same notebook with fresh outputs; the first cell that fails raises its error."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for place, cell in enumerate(notebook["cells"]):
            if cell["cell_type"] == "code":
                count = sum(done["cell_type"] == "code" for done in cells) + 1
                outputs = _run(source(cell), f"<cell {count}>", names, count)
                cell = {**cell, "execution_count": count, "outputs": outputs}
            cells.append({**cell, "id": f"cell-{place}"})
    return {**notebook, "cells": cells}


def source(cell: dict[str, Any]) -> str:
    """The text of a cell."""
    return "".join(cell["source"])


def _run(code: str, file: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell; what it prints, and the value of its last line if that is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    streams = {"stdout": StringIO(), "stderr": StringIO()}
    with redirect_stdout(streams["stdout"]), redirect_stderr(streams["stderr"]):
        exec(compile(tree, file, "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval"), names)
    outputs: list[dict[str, Any]] = [
        {"output_type": "stream", "name": name, "text": text.splitlines(keepends=True)}
        for name, stream in streams.items()
        if (text := stream.getvalue())
    ]
    if value is not None and not code.rstrip().endswith(";"):
        shown = {"output_type": "execute_result", "execution_count": count, "metadata": {}}
        outputs.append({**shown, "data": _data(value)})
    return outputs


def _data(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    for kind, name in SHOWN.items():
        shown = getattr(value, name)() if hasattr(value, name) else None
        if isinstance(shown, bytes):
            found[kind] = b64encode(shown).decode()
        elif shown is not None:
            found[kind] = shown.splitlines(keepends=True)
    return found


def main() -> None:
    """Run the notebook, and write it unless it is only checked."""
    done = run_notebook(json.loads(NOTEBOOK.read_text("utf-8")))
    if "--check" not in sys.argv:
        NOTEBOOK.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", "utf-8")
    size = os.path.getsize(NOTEBOOK) / 1000
    print(f"{NOTEBOOK.name}: {len(done['cells'])} cells, {size:.0f} kB")


if __name__ == "__main__":
    main()
