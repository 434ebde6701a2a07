"""Retraining: ROAR, Recursive ROAR and RACU."""
