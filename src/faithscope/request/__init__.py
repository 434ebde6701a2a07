"""What is asked for, as plain values: every option is declared once, in `requests`.

Nothing heavy is imported here, since `--help` reads it.
"""

from faithscope.request.check import check_request, plain
from faithscope.request.given import Given
from faithscope.request.option import Option, options, python_names, renamed
from faithscope.request.paths import Place, as_path, as_place, existing_path, split_options
from faithscope.request.requests import KINDS, Perturb, Request, Retrain
from faithscope.request.text import read_texts

__all__ = [
    "KINDS",
    "Given",
    "Option",
    "Perturb",
    "Place",
    "Request",
    "Retrain",
    "as_path",
    "as_place",
    "check_request",
    "existing_path",
    "options",
    "plain",
    "python_names",
    "read_texts",
    "renamed",
    "split_options",
]
