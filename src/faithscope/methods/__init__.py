"""Explanation methods: the evidence each one needs, and its map as a short function."""

from faithscope.methods.evidence import explain_batch
from faithscope.methods.method import (
    METHODS,
    Evidence,
    Layer,
    Method,
    MethodLike,
    layer_method,
    method,
    register_method,
    resolve_methods,
)

# Importing a file registers its methods; the order here is the order in tables.
from faithscope.methods import gradient, attention, random  # noqa: F401  # isort: skip

__all__ = [
    "METHODS",
    "Evidence",
    "Layer",
    "Method",
    "MethodLike",
    "explain_batch",
    "layer_method",
    "method",
    "register_method",
    "resolve_methods",
]
