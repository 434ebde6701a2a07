"""The version of the package, where nothing else has to be imported for it."""

__version__ = "0.1.0"
