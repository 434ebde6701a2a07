"""Explanation methods: the evidence each one needs, and its map as a short function."""

from faithscope.methods.evidence import Evidence, Layer
from faithscope.methods.explain import explain_batch, explain_images
from faithscope.methods.method import (
    METHODS,
    Method,
    MethodLike,
    layer_method,
    method,
    register_method,
    resolve_methods,
)
from faithscope.methods.trial import Trial, check_methods, try_methods

# Importing a file registers its methods; the order here is the order in tables.
from faithscope.methods import gradient, named_layer, attention, lrp, conservative, random, text  # noqa: F401  # isort: skip

__all__ = [
    "METHODS",
    "Evidence",
    "Layer",
    "Method",
    "MethodLike",
    "Trial",
    "check_methods",
    "explain_batch",
    "explain_images",
    "layer_method",
    "method",
    "register_method",
    "resolve_methods",
    "try_methods",
]
