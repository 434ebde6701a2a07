"""Parity in float64 with what programs for BERT gave (tests/fixtures/README.md).

Errors are relative to the largest value of each map: 1e-10, 1e-8 for relevance (LRP divides by
sign-indefinite sums), and 1e-6 for what was recorded in float32.
"""

import re
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import faithscope as fs
from conftest import FIXTURES
from faithscope.methods import METHODS, explain_batch
from faithscope.methods.evidence import NEEDS, Evidence
from faithscope.methods.trace import gather
from faithscope.models import TextModel, TokenInputs

CONFIGS = {
    "T1": {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_labels": 3},
    "T2": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "num_labels": 2},
}
SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")

EXACT, RELEVANCE, FLOAT32 = 1e-10, 1e-8, 1e-6

COMPARED: set[str] = set()
"""The keys that some test compares."""

NOT_COMPARED = {"input_ids", "token_type_ids", "attention_mask", "lengths", "eligible", "targets"}
"""What everything else was computed from."""

every_config = pytest.mark.parametrize("config", CONFIGS)
both_targets = pytest.mark.parametrize("which", [0, 1], ids=["predicted", "other"])
both_kernels = pytest.mark.parametrize("kernel", ["eager", "sdpa"])

# Every map, by the key of its counterpart; LAST stands for the last block

MAPS = {
    "raw_attention": "raw_attention",
    "rollout_start0": "rollout",
    "rollout_start1": "rollout(start_layer=1)",
    "rollout_nonorm_mmrepo": "rollout(aggregate=product)",
    "gradcam": "grad_cam",
    "gradcam_raw": "grad_cam(minmax=false)",
    "transformer_mm": "transformer_mm",
    "transformer_mm_clskept": "transformer_mm",
    "attcat": "attcat",
    "conservative_lrp": "conservative_lrp",
    "conservative_lrp_word": "conservative_lrp(at=words)",
    "conservative_lrp_alt_meanstd": "conservative_lrp(norm=mean_std)",
    "conservative_lrp_alt_geluratio": "conservative_lrp(activation=ratio)",
    "gradient_word_l2": "gradient",
    "gradient_word_l1": "gradient(norm=l1)",
    "gradient_emb_l2": "gradient(at=tokens)",
    "gradient_emb_l1": "gradient(norm=l1, at=tokens)",
    "gradient_emb_sum": "gradient(norm=sum, at=tokens)",
    "input_x_gradient_word": "input_x_gradient",
    "input_x_gradient_emb": "input_x_gradient(at=tokens)",
}
INTEGRALS = {
    "ig_word_padkeepspecial": "integrated_gradients",
    "ig_word_pad": "integrated_gradients(baseline=pad_all)",
    "ig_word_zero": "integrated_gradients(baseline=zero)",
    "ig_emb_padkeepspecial": "integrated_gradients(at=tokens)",
    "ig_emb_pad": "integrated_gradients(baseline=pad_all, at=tokens)",
    "ig_emb_zero": "integrated_gradients(baseline=zero, at=tokens)",
}
RELEVANCE_MAPS = {
    "lrp_full_origrules": "lrp",
    "lrp_full_oursrules": "lrp(rules=conserving)",
    "lrp_full_clskept_origrules": "lrp",
    "lrp_full_clskept_oursrules": "lrp(rules=conserving)",
    "partial_lrp_origrules": "partial_lrp",
    "partial_lrp_oursrules": "partial_lrp(rules=conserving)",
    "partial_lrp_minmax_mmrepo": "partial_lrp(rules=conserving, clamp=false, minmax=true)",
    "transformer_attribution_start0": "transformer_attribution",
    "transformer_attribution_startlast": "transformer_attribution(start_layer=LAST)",
    "transformer_attribution_start0_attcatfork": "transformer_attribution",
    "transformer_attribution_nonorm_mmrepo": "transformer_attribution(aggregate=product)",
}
ALL_MAPS = MAPS | INTEGRALS | RELEVANCE_MAPS

ZERO = {"raw_attention", "rollout_start0", "rollout_start1", "rollout_nonorm_mmrepo", "gradcam"}
ZERO |= {"transformer_mm"} | {key for key in RELEVANCE_MAPS if "clskept" not in key}
MINIMUM = {"transformer_attribution_start0", "transformer_attribution_startlast"}
ZERO -= MINIMUM
"""Where a program writes 0, or the row's minimum, in the place of [CLS], which is never ranked."""


def compares(keys):
    """Run a test for each of these keys, and note that they are compared."""
    COMPARED.update(keys)
    return pytest.mark.parametrize("key", keys)


@cache
def reference(config: str, kernel: str = "eager") -> tuple[TextModel, dict[str, Tensor]]:
    """The fixture's model in float64, and all that was recorded of it."""
    sizes = CONFIGS[config]
    settings = BertConfig(
        vocab_size=60,
        max_position_embeddings=24,
        intermediate_size=2 * sizes["hidden_size"],
        layer_norm_eps=1e-12,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=kernel,
        **sizes,
    )
    with torch.random.fork_rng(devices=[]):
        module = BertForSequenceClassification(settings).double().eval()
    weights = np.load(FIXTURES / "text" / f"weights_{config}.npz")
    module.load_state_dict({key: torch.from_numpy(weights[key]).double() for key in weights})
    recorded = np.load(FIXTURES / "text" / f"methods_{config}.npz")
    values = {key: torch.from_numpy(recorded[key]) for key in recorded}
    return fs.wrap(module.requires_grad_(False), tokenizer=tokenizer(), name=config), values


def tokenizer() -> PreTrainedTokenizerFast:
    words = [*SPECIALS, *(f"word{number}" for number in range(len(SPECIALS), 60))]
    ids = {word: number for number, word in enumerate(words)}
    names = dict(zip(("pad_token", "cls_token", "sep_token", "mask_token"), SPECIALS, strict=True))
    known = Tokenizer(models.WordLevel(ids, unk_token="[MASK]"))
    return PreTrainedTokenizerFast(tokenizer_object=known, **names)


def tokens_of(config: str) -> dict[str, Tensor]:
    recorded = reference(config)[1]
    return {key: recorded[key] for key in ("input_ids", "attention_mask", "token_type_ids")}


def recorded_for(config: str, which: int, key: str) -> Tensor:
    """What was recorded for one of the two targets, or for both alike: [texts, tokens]."""
    values = reference(config)[1][key]
    return values if values.ndim == 2 else values[:, which]


def spec(config: str, key: str) -> str:
    return ALL_MAPS[key].replace("LAST", str(CONFIGS[config]["num_hidden_layers"] - 1))


def tolerance(key: str) -> float:
    return RELEVANCE if key in RELEVANCE_MAPS else EXACT


def error_of(ours: Tensor, theirs: Tensor, whole: Tensor) -> float:
    """The largest difference, relative to the largest value of the whole recorded map."""
    assert ours.dtype == torch.float64
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / whole.abs().max())


# Maps, through the public interface


@cache
def explained(config: str, which: int, kernel: str) -> dict[str, list[Tensor]]:
    """Every map of the tokens that can be ranked, by method, explained together."""
    model, recorded = reference(config, kernel)
    asked = list(dict.fromkeys(spec(config, key) for key in ALL_MAPS))
    target = recorded["targets"][:, which]
    return fs.explain(model, tokens_of(config), asked, target=target)


@every_config
@both_targets
@both_kernels
@compares(ALL_MAPS)
def test_maps_of_tokens_equal_the_reference(config: str, which: int, kernel: str, key: str):
    label = fs.method(spec(config, key), modality="text").label
    maps = explained(config, which, kernel)[label]
    theirs, eligible = recorded_for(config, which, key), reference(config)[1]["eligible"].bool()
    for ours, expected, ranked in zip(maps, theirs, eligible, strict=True):
        assert error_of(ours, expected[ranked], expected) <= tolerance(key)


# Special tokens too


@cache
def of_all_tokens(config: str, which: int) -> list[dict[str, Tensor]]:
    """Of each text, the maps of all of its tokens."""
    model, recorded = reference(config)
    asked = list(dict.fromkeys(spec(config, key) for key in ALL_MAPS))
    methods = [(fs.method(text, modality="text"), 0) for text in asked]
    found = []
    for place in range(4):
        goal = recorded["targets"][place : place + 1, which]
        maps = explain_batch(model, whole_text(config, place), goal, methods, keys=["text"])
        each = zip(methods, maps, strict=True)
        found.append({method.label: made[0, 0] for (method, _), made in each})
    return found


def whole_text(config: str, place: int) -> TokenInputs:
    """A text of which every token can be ranked."""
    recorded = reference(config)[1]
    parts = (recorded[key][place] for key in ("input_ids", "token_type_ids"))
    ids, types = (part[: recorded["lengths"][place]][None] for part in parts)
    units = torch.arange(ids.shape[1])[None]
    return TokenInputs(ids, torch.ones_like(ids), types, units, ids.shape[1])


@every_config
@both_targets
@pytest.mark.parametrize("key", ALL_MAPS)
def test_special_tokens_have_the_recorded_values_too(config: str, which: int, key: str):
    label = fs.method(spec(config, key), modality="text").label
    theirs = recorded_for(config, which, key)
    for maps, expected in zip(of_all_tokens(config, which), theirs, strict=True):
        ours = maps[label].clone()
        if key in ZERO:
            ours[0] = 0
        elif key in MINIMUM:
            ours[0] = ours.min()
        assert error_of(ours, expected[: len(ours)], expected) <= tolerance(key)
        assert not expected[len(ours) :].any()


@every_config
@both_targets
def test_relevance_by_the_conserving_rules_sums_to_one(config: str, which: int):
    for maps in of_all_tokens(config, which):
        torch.testing.assert_close(
            maps["lrp(rules=conserving)"].sum().item(), 1.0, atol=1e-6, rtol=0
        )


@every_config
@both_targets
@compares([f"ig_delta_{key.removeprefix('ig_')}" for key in INTEGRALS])
def test_integrated_gradients_miss_the_logit_by_the_recorded_delta(
    config: str, which: int, key: str
):
    model, recorded = reference(config)
    variant = key.replace("ig_delta", "ig")
    for place, maps in enumerate(of_all_tokens(config, which)):
        text = whole_text(config, place)
        goal = int(recorded["targets"][place, which])
        change = model.logits(text) - baseline_logits(model, text, variant)
        total = maps[fs.method(spec(config, variant), modality="text").label].sum()
        error = (total - change[0, goal] - recorded[key][place, which]).abs()
        # some deltas are rounding and nothing else, so they are compared on the scale of the logits
        assert error <= EXACT * change.abs().max()


def baseline_logits(model: TextModel, text: TokenInputs, variant: str) -> Tensor:
    """What the model says where the path begins."""
    if not variant.endswith("zero"):
        return model.logits(model.padded(text, keep_special=variant.endswith("keepspecial")))
    if "_word_" in variant:
        return model.read(text, torch.zeros_like(model.embed(text)))
    first = model.module.bert.encoder.layer[0]
    hook = first.register_forward_pre_hook(lambda _, args: (torch.zeros_like(args[0]), *args[1:]))
    with hook:
        return model.logits(text)


# What the maps are made of


@cache
def evidence_of(config: str, which: int, place: int) -> Evidence:
    model, recorded = reference(config)
    goal = recorded["targets"][place : place + 1, which]
    return gather(model, whole_text(config, place), goal, frozenset(NEEDS), keys=[])


@cache
def pieces(config: str, which: int, place: int) -> dict[str, Tensor]:
    """What methods read of a text, stacked over blocks, by the key of its counterpart."""
    evidence, found = evidence_of(config, which, place), defaultdict(list)
    for layer in evidence.layers():
        found["attn"].append(layer.attention[0])
        found["attn_grad"].append(layer.attention_gradient[0])
        found["lrp_cam_origrules"].append(layer.relevance("original")[0])
        found["lrp_cam_oursrules"].append(layer.relevance("conserving")[0])
    stacked = {key: torch.stack(values[::-1]) for key, values in found.items()}
    stacked["hidden"] = torch.cat(evidence.tensors("stream"))
    stacked["hidden_grad"] = torch.cat(evidence.tensors("stream_gradients"))
    return stacked


@every_config
@both_targets
@compares(["attn", "attn_grad", "hidden", "hidden_grad", "lrp_cam_origrules", "lrp_cam_oursrules"])
def test_what_methods_read_equals_the_reference_in_every_block(config: str, which: int, key: str):
    recorded = reference(config)[1][key]
    for place, length in enumerate(reference(config)[1]["lengths"]):
        theirs = recorded[place] if key in ("attn", "hidden") else recorded[place, which]
        columns = slice(None) if key.startswith("hidden") else slice(length)
        for ours, expected in zip(pieces(config, which, place)[key], theirs, strict=True):
            expected = expected[..., :length, columns].double()
            assert error_of(ours, expected, expected) <= FLOAT32


@every_config
@compares(["logits"])
def test_the_reference_model_gives_the_recorded_logits_and_targets(config: str, key: str):
    model, recorded = reference(config)
    logits = torch.cat([model.logits(whole_text(config, place)) for place in range(4)])
    assert error_of(logits, recorded[key], recorded[key]) <= EXACT
    assert torch.equal(logits.argmax(-1), recorded["targets"][:, 0])


@compares(["logits_notypes"])
def test_token_types_are_passed_on(key: str):
    model, recorded = reference("T2")
    texts = [whole_text("T2", place) for place in range(4)]
    plain = [replace(text, types=torch.zeros_like(text.types)) for text in texts]
    logits = torch.cat([model.logits(text) for text in plain])
    assert error_of(logits, recorded[key], recorded[key]) <= EXACT
    assert (recorded["logits"] - recorded[key]).abs().max() > 1


# What was recorded and is not offered


def not_offered() -> set[str]:
    """The keys in the table of docs/methods.md."""
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    table = page.partition("| recorded as | what it is")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("|")]
    return {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}


@every_config
def test_every_recorded_key_is_compared_by_some_test_or_named_as_not_offered(config: str):
    keys, named = set(reference(config)[1]), not_offered()
    assert keys <= COMPARED | NOT_COMPARED | named
    assert not named & COMPARED
    assert named <= keys


# Several texts at once, padded texts


def alike(config: str) -> dict[str, Tensor]:
    """Texts of one length: the longest, with its words in other places."""
    tokens = {
        key: held[2:3, : reference(config)[1]["lengths"][2]]
        for key, held in tokens_of(config).items()
    }
    ids = tokens["input_ids"]
    words = (ids[0] >= len(SPECIALS)).nonzero().flatten()
    rows = [ids[0].index_copy(0, words, ids[0, words].roll(turn)) for turn in range(3)]
    return {key: held.expand(3, -1) for key, held in tokens.items()} | {
        "input_ids": torch.stack(rows)
    }


@every_config
def test_a_text_of_a_batch_has_the_map_that_it_has_alone(config: str):
    model, together = reference(config)[0], alike(config)
    methods = [name for name in METHODS.of("text") if name != "mutual_information"]
    goal = torch.tensor([0, 1, 1])
    maps = fs.explain(model, together, methods, target=goal)
    padded = {key: torch.nn.functional.pad(held, (0, 5)) for key, held in together.items()}
    in_padding = fs.explain(model, padded, methods, target=goal)
    assert set(methods) == set(maps)
    for place in range(3):
        single = {key: held[place : place + 1] for key, held in together.items()}
        alone = fs.explain(model, single, methods, target=goal[place : place + 1])
        for name, (ours,) in alone.items():
            allowed = RELEVANCE if "relevance" in fs.method(name, modality="text").needs else EXACT
            assert error_of(maps[name][place], ours, ours) <= allowed
            assert torch.equal(in_padding[name][place], maps[name][place])
