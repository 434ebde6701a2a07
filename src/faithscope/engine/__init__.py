"""Planning the fewest model passes, packing them into batches, and scoring the answers."""

from faithscope.engine.plan import Plan, check_resolution, passes_per_image, plan_map
from faithscope.engine.precision import PRECISIONS, Forward, prepare_forward
from faithscope.engine.respond import Responder, check_classes, choose_batch_size
from faithscope.engine.score import PlanResponses, ShardResult, score_responses, score_shard
from faithscope.engine.shard import Answers, Column, Job, Protocol, ask_shard

__all__ = [
    "PRECISIONS",
    "Answers",
    "Column",
    "Forward",
    "Job",
    "Plan",
    "PlanResponses",
    "Protocol",
    "Responder",
    "ShardResult",
    "ask_shard",
    "check_classes",
    "check_resolution",
    "choose_batch_size",
    "passes_per_image",
    "plan_map",
    "prepare_forward",
    "score_responses",
    "score_shard",
]
