"""How errors and warnings look to whoever called: their own line, and one sentence."""

import warnings

import pytest
import torch

import faithscope as fs
from conftest import toy
from faithscope.errors import warn


def test_a_notebook_shows_the_users_lines_and_the_sentence():
    def mine():
        fs.saco([1, 2], [3, 4, 5])

    with pytest.raises(fs.FaithscopeError) as caught:
        mine()
    lines = caught.value._render_traceback_()
    assert lines[-1].startswith("FaithscopeError: saco needs salience and drop of one shape")
    assert any("fs.saco([1, 2], [3, 4, 5])" in line for line in lines)
    assert not any("metrics/saco.py" in line for line in lines)


def test_an_error_of_the_users_own_code_is_shown_whole():
    def broken(module, images, target):
        raise KeyError("mine")

    with pytest.raises(fs.FaithscopeError) as caught:
        fs.explain(toy(4, 4), torch.zeros(1, 3, 4, 4, dtype=torch.float64), broken)
    text = "\n".join(caught.value._render_traceback_())
    assert 'raise KeyError("mine")' in text and "KeyError: 'mine'\n" in text
    assert text.splitlines()[-1].startswith("FaithscopeError: The method 'broken' fails")


def test_a_warning_names_the_line_of_the_caller():
    namespace = {"__name__": "faithscope.somewhere", "warn": warn}
    exec("def deep():\n    warn('careful')\ndef call():\n    deep()", namespace)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        namespace["call"]()
    (said,) = caught
    assert said.filename == __file__ and str(said.message) == "careful"
