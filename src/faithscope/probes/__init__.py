"""How faithfulness is probed: perturb the input, or remove and retrain."""

from __future__ import annotations

from functools import cache
from typing import Any

from faithscope.probes.probe import Probe


@cache
def probe_of(kind: str) -> Probe:
    """The probe that a request or a run asks for; only here is one chosen."""
    probe: Any
    if kind == "perturb":
        from faithscope.probes.perturb.probe import PerturbProbe

        probe = PerturbProbe()
    else:
        from faithscope.probes.retrain.probe import RetrainProbe

        probe = RetrainProbe()
    found: Probe = probe
    return found
