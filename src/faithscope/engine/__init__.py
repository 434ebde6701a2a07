"""Planning the fewest model passes, packing them into batches, and scoring the answers."""

from faithscope.engine.plan import Plan, check_resolution, passes_per_image, plan_map
from faithscope.engine.precision import PRECISIONS, Forward, prepare_forward
from faithscope.engine.respond import Responder, choose_batch_size
from faithscope.engine.shard import Column, Job, Protocol, ShardResult, evaluate_shard

__all__ = [
    "PRECISIONS",
    "Column",
    "Forward",
    "Job",
    "Plan",
    "Protocol",
    "Responder",
    "ShardResult",
    "check_resolution",
    "choose_batch_size",
    "evaluate_shard",
    "passes_per_image",
    "plan_map",
    "prepare_forward",
]
