"""Parity in float64 with what the methods' own programs gave (tests/fixtures/README.md).

Errors are relative to the largest value of each map: 1e-10, 1e-8 for relevance (LRP divides by
sign-indefinite sums), and 1e-6 for what was recorded in float32.
"""

from collections import defaultdict
from functools import cache, partial

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import faithscope as fs
from conftest import FIXTURES
from faithscope.methods.conservative import Simplified, conservative_gradient
from faithscope.methods.evidence import NEEDS, Evidence
from faithscope.methods.relevance import add_relevance
from faithscope.methods.trace import gather
from faithscope.perturb import to_patches
from sweeps import Noted

CONFIGS = {
    "A": {"img_size": 32, "embed_dim": 48, "depth": 4, "num_heads": 3, "num_classes": 10},
    "B": {"img_size": 48, "embed_dim": 64, "depth": 6, "num_heads": 4, "num_classes": 7},
}
RULES = {"orig": "original", "ours": "conserving"}
"""The sets of rules, by the names of the fixtures."""

EXACT, RELEVANCE, FLOAT32 = 1e-10, 1e-8, 1e-6

COMPARED: set[str] = set()
"""The keys that some test compares."""

ALIKE = {"logits", "attn", "hidden", "rollout_start0", "rollout_start1"}
ALIKE |= {"jacobgil_rollout_mean_discard0", "jacobgil_rollout_mean_discard0.9"}
"""What was recorded once for both targets."""

NOT_COMPARED = {"x": "the images: everything else is computed from them"}

every_config = pytest.mark.parametrize("config", CONFIGS)
both_targets = pytest.mark.parametrize("which", [0, 1], ids=["predicted", "other"])


def compares(keys):
    """Run a test for each of these keys, and note that they are compared."""
    COMPARED.update(keys)
    return pytest.mark.parametrize("key", keys)


@cache
def reference(config: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """The fixture's model in float64, and all that was recorded of it."""
    module = VisionTransformer(patch_size=8, qkv_bias=config == "A", **CONFIGS[config])
    weights = np.load(FIXTURES / "vision" / f"weights_{config}.npz")
    module.load_state_dict({key: torch.from_numpy(weights[key]) for key in weights})
    recorded = np.load(FIXTURES / "vision" / f"methods_{config}.npz")
    values = {key: torch.from_numpy(recorded[key]) for key in recorded}
    return module.double().eval().requires_grad_(False), values


def recorded_for(config: str, which: int, key: str) -> Tensor:
    """What was recorded for one of the two targets, or for both alike."""
    values = reference(config)[1][key]
    return values if key in ALIKE else values[:, which]


def assert_parity(
    config: str, which: int, key: str, ours: Tensor, tolerance: float, axes: int = 1
) -> None:
    """Compare maps; the first `axes` axes number the maps, whose own maximum is the scale."""
    theirs = recorded_for(config, which, key)
    assert ours.dtype == torch.float64
    if theirs.dtype == torch.float32:
        tolerance = FLOAT32
    ours, theirs = ours.flatten(axes), theirs.double().flatten(axes)
    assert ours.shape == theirs.shape
    scale = theirs.abs().amax(-1)
    assert (scale > 0).all()
    error = ((ours - theirs).abs().amax(-1) / scale).max()
    assert error <= tolerance, f"{key} is off by {error:.1e}"


# The model


@every_config
@compares(["logits", "targets"])
def test_the_reference_model_gives_the_recorded_logits_and_targets(config: str, key: str):
    module, recorded = reference(config)
    logits = module(recorded["x"])
    if key == "logits":
        assert_parity(config, 0, key, logits, EXACT)
    else:
        predicted = logits.argmax(-1)
        other = torch.where(predicted == 2, 3, 2)
        assert torch.equal(recorded[key], torch.stack([predicted, other], dim=1))


# Maps, through the public interface


PATCH_MAPS = {
    "raw_attention": "raw_attention",
    "rollout_start0": "rollout",
    "rollout_start1": "rollout(start_layer=1)",
    "gradcam": "grad_cam",
    "gradcam_signed": "grad_cam(clamp=false)",
    "gradcam_minmax": "grad_cam(minmax=true)",
    "transformer_mm": "transformer_mm",
    "attcat": "attcat",
    "attcat_alt_blockoutput": "attcat(stream=output)",
    "attcat_alt_clsrow": "attcat(attention=readout)",
    "grad_rollout_jacobgil_alignedgrads_discard0.9": "gradient_rollout",
    "grad_rollout_jacobgil_alignedgrads_discard0": "gradient_rollout(discard=0)",
    "grad_rollout_jacobgil_literal_revgrads_discard0.9": "gradient_rollout(pairing=published)",
    "jacobgil_rollout_mean_discard0.9": "gradient_rollout(gradient=false)",
    "jacobgil_rollout_mean_discard0": "gradient_rollout(gradient=false, discard=0)",
    "ablation_iii_last_attngrad_clampbeforemean": "attention(layers=last, gradient=true)",
    "ablation_iii_last_attngrad_clampaftermean": (
        "attention(layers=last, gradient=true, clamp=mean)"
    ),
    "ablation_iii_last_attngrad_signed": "attention(layers=last, gradient=true, clamp=none)",
    "ablation_iv_alt_gradattn_normrollout_start0": (
        "attention(gradient=true, aggregate=normalised)"
    ),
    "ablation_iv_alt_gradattn_sumlayers": "attention(gradient=true, aggregate=sum)",
}
PIXEL_MAPS = {}

CONSERVATIVE = {
    "": {},
    "_alt_meanstd": {"norm": "mean_std"},
    "_alt_attnonly": {"norm": "none"},
    "_alt_geluratio": {"activation": "ratio"},
}
"""The variants of conservative LRP, by the ends of their keys."""

for end, options in CONSERVATIVE.items():
    made = partial(fs.method, "conservative_lrp", **options)
    PATCH_MAPS[f"conservative_lrp_emb{end}"] = made().label
    PATCH_MAPS[f"conservative_lrp_patchproj{end}"] = made(at="patches").label
    PATCH_MAPS[f"conservative_lrp_pixel_patchsum{end}"] = made(at="pixels").label
    PIXEL_MAPS[f"conservative_lrp_pixel{end}"] = made(at="pixels").label

RELEVANCE_MAPS = {}
for name, rules in RULES.items():
    RELEVANCE_MAPS |= {
        f"lrp_full_patchsum_{name}rules": f"lrp(rules={rules})",
        f"partial_lrp_{name}rules": f"partial_lrp(rules={rules})",
        f"partial_lrp_{name}rules_isablation": f"partial_lrp(rules={rules}, gradient=true)",
        f"lrp_cam_rollout_{name}rules_start0": (
            f"transformer_attribution(rules={rules}, gradient=false)"
        ),
        f"transformer_attribution_{name}rules_start0": f"transformer_attribution(rules={rules})",
        f"transformer_attribution_{name}rules_start1": (
            f"transformer_attribution(rules={rules}, start_layer=1)"
        ),
    }
RELEVANCE_PIXEL_MAPS = {
    f"lrp_full_pixel_{name}rules": f"lrp(rules={RULES[name]})" for name in RULES
}

INTEGRALS = ["gausslegendre50", "gausslegendre20", "riemann_right50", "riemann_right20"]
INTEGRALS += ["riemann_middle50", "riemann_left50", "riemann_trapezoid50"]


@cache
def explained(config: str, which: int, units: str) -> dict[str, Tensor]:
    """Every map in these units, by the key of its counterpart, explained together."""
    tables = {"patches": PATCH_MAPS | RELEVANCE_MAPS, "pixels": PIXEL_MAPS | RELEVANCE_PIXEL_MAPS}
    methods = {key: fs.method(text) for key, text in tables[units].items()}
    module, recorded = reference(config)
    target = recorded["targets"][:, which]
    maps = fs.explain(module, recorded["x"], list(methods.values()), target=target, units=units)
    return {key: maps[method.label] for key, method in methods.items()}


@every_config
@both_targets
@compares(PATCH_MAPS)
def test_maps_of_patches_equal_the_reference(config: str, which: int, key: str):
    assert_parity(config, which, key, explained(config, which, "patches")[key], EXACT)


@every_config
@both_targets
@compares(RELEVANCE_MAPS)
def test_relevance_of_patches_equals_the_reference(config: str, which: int, key: str):
    assert_parity(config, which, key, explained(config, which, "patches")[key], RELEVANCE)


@every_config
@both_targets
@compares(PIXEL_MAPS)
def test_maps_of_pixels_equal_the_reference(config: str, which: int, key: str):
    assert_parity(config, which, key, explained(config, which, "pixels")[key], EXACT)


@every_config
@both_targets
@compares(RELEVANCE_PIXEL_MAPS)
def test_relevance_of_pixels_equals_the_reference(config: str, which: int, key: str):
    assert_parity(config, which, key, explained(config, which, "pixels")[key], RELEVANCE)


@cache
def integrated(config: str, which: int, variant: str) -> Tensor:
    module, recorded = reference(config)
    method = fs.method("integrated_gradients", rule=variant[:-2], steps=int(variant[-2:]))
    return fs.explain(module, recorded["x"], method, target=recorded["targets"][:, which])


@every_config
@both_targets
@compares([f"ig_pixel_{variant}" for variant in INTEGRALS])
def test_integrated_gradients_equal_the_reference(config: str, which: int, key: str):
    ours = integrated(config, which, key.removeprefix("ig_pixel_"))
    assert_parity(config, which, key, ours, EXACT)


@every_config
@both_targets
@compares([f"ig_patchsum_{variant}" for variant in INTEGRALS])
def test_integrated_gradients_in_patches_equal_the_reference(config: str, which: int, key: str):
    pixels = integrated(config, which, key.removeprefix("ig_patchsum_"))
    side = CONFIGS[config]["img_size"] // 8
    assert_parity(config, which, key, to_patches(pixels, (side, side)), EXACT)


@every_config
@both_targets
@compares(["ig_pixel_channels_gausslegendre50"])
def test_integrated_gradients_are_the_recorded_channels_summed(config: str, which: int, key: str):
    theirs = recorded_for(config, which, key).double().sum(1)
    ours = integrated(config, which, "gausslegendre50")
    assert (ours - theirs).abs().max() <= FLOAT32 * theirs.abs().max()


@every_config
@both_targets
@compares([f"ig_delta_{variant}" for variant in INTEGRALS])
def test_integrated_gradients_miss_the_logit_by_the_recorded_delta(
    config: str, which: int, key: str
):
    module, recorded = reference(config)
    chosen = recorded["targets"][:, [which]]
    change = module(recorded["x"]) - module(torch.zeros_like(recorded["x"]))
    change = change.gather(1, chosen)[:, 0]
    total = integrated(config, which, key.removeprefix("ig_delta_")).sum((1, 2))
    # Some deltas are rounding and nothing else, so they are compared on the scale of the logits.
    error = (total - change - recorded_for(config, which, key)).abs()
    assert (error <= EXACT * change.abs()).all()


# What the maps are made of


@cache
def evidence_of(config: str, which: int) -> Evidence:
    module, recorded = reference(config)
    images, target = recorded["x"], recorded["targets"][:, which]
    return gather(fs.wrap(module), images, target, frozenset(NEEDS), keys=[])


@cache
def pieces(config: str, which: int) -> dict[str, Tensor]:
    """What methods read, stacked over blocks, by the key of its counterpart."""
    evidence = evidence_of(config, which)
    attcat = fs.method("attcat").function
    found, row = defaultdict(list), evidence.readout
    for layer in evidence.layers():
        row = attcat(row, layer)
        found["attn"].append(layer.attention)
        found["attn_grad"].append(layer.attention_gradient)
        found["attcat_perlayer"].append(attcat(torch.zeros_like(row), layer))
        for name, rules in RULES.items():
            found[f"lrp_{name}_attn_cam"].append(layer.relevance(rules))
            found[f"lrp_{name}_R_blockin"].append(evidence.sweep(rules).descend(layer.index))
    stacked = {key: torch.stack(values[::-1], dim=1) for key, values in found.items()}
    stacked["hidden"] = torch.stack(evidence.tensors("stream"), dim=1)
    stacked["hidden_grad"] = torch.stack(evidence.tensors("stream_gradients"), dim=1)
    return stacked | {"attcat_tokens_with_cls": row}


@every_config
@both_targets
@compares(["attn", "attn_grad", "hidden", "hidden_grad"])
def test_attention_and_tokens_and_their_gradients_equal_the_reference_in_every_block(
    config: str, which: int, key: str
):
    assert_parity(config, which, key, pieces(config, which)[key], EXACT, axes=2)


@every_config
@both_targets
@compares([f"lrp_{name}_{part}" for name in RULES for part in ("attn_cam", "R_blockin")])
def test_relevance_of_attention_and_tokens_equals_the_reference_in_every_block(
    config: str, which: int, key: str
):
    assert_parity(config, which, key, pieces(config, which)[key], RELEVANCE, axes=2)


@every_config
@both_targets
@compares(["attcat_perlayer"])
def test_attcats_terms_equal_the_reference_in_every_block(config: str, which: int, key: str):
    assert_parity(config, which, key, pieces(config, which)[key], EXACT, axes=2)


@every_config
@both_targets
@compares(["attcat_tokens_with_cls"])
def test_attcat_equals_the_reference_at_the_class_token_too(config: str, which: int, key: str):
    assert_parity(config, which, key, pieces(config, which)[key], EXACT)


@every_config
@both_targets
@compares(["input_grad_pixel"])
def test_gradients_equal_the_reference(config: str, which: int, key: str):
    module, recorded = reference(config)
    assert_parity(config, which, key, evidence_of(config, which).input_gradient(), EXACT)
    theirs = recorded_for(config, which, key).double()
    target = recorded["targets"][:, which]
    maps = fs.explain(module, recorded["x"], ["gradient", "input_x_gradient"], target=target)
    for ours, expected in (
        (maps["gradient"], theirs.square().sum(1).sqrt()),
        (maps["input_x_gradient"], (theirs * recorded["x"]).sum(1)),
    ):
        assert (ours - expected).abs().max() <= FLOAT32 * expected.abs().max()


# Relevance at both ends of the model


@cache
def relevance_ends(config: str, which: int, rules: str) -> dict[str, Tensor]:
    """Relevance at the start, at the head, and from the tokens to the pixels."""
    evidence = evidence_of(config, which)
    logits = evidence.tensor("logits")
    start = nn.functional.one_hot(evidence.target, logits.shape[1]).double()
    head = Noted(evidence.tape("head"), rules, "its head")
    pool = head.run(logits, start, head.tape.roots[0])
    (linear,) = (node for node in head.tape.nodes if node.kind == "linear")
    blocks = pieces(config, which)[f"lrp_{'orig' if rules == 'original' else 'ours'}_R_blockin"]
    stem = Noted(evidence.tape("stem"), rules, "its patch embedding")
    pixels = stem.run(evidence.tensor("entered"), blocks[:, 0], stem.tape.roots[0], pixels=True)
    (added,) = (node for node in stem.tape.nodes if node.kind == "sum")
    _, positions = add_relevance(added.args[0], added.args[1], stem.relevance(added.output), rules)
    return {
        "start": start,
        "head": head.relevance(linear.inputs[0]),
        "pool": pool,
        "blocks": blocks,
        "tokens": stem.relevance(added.inputs[0]),
        "positions": positions,
        "pixels": pixels,
    }


@every_config
@both_targets
@compares([f"lrp_{name}_R_{part}" for name in RULES for part in ("head", "patchtok")])
def test_relevance_at_the_head_and_at_the_embedding_equals_the_reference(
    config: str, which: int, key: str
):
    ends = relevance_ends(config, which, RULES[key[4:8]])
    ours = ends["head"] if key.endswith("head") else ends["tokens"]
    assert_parity(config, which, key, ours, RELEVANCE)


@every_config
@both_targets
@compares([f"lrp_{name}_conservation" for name in RULES])
def test_sums_of_relevance_equal_the_reference_all_the_way_down(config: str, which: int, key: str):
    ends = relevance_ends(config, which, RULES[key[4:8]])
    sums = [ends[part].flatten(1).sum(1) for part in ("start", "head", "pool")]
    sums += ends["blocks"].flatten(2).sum(2).flip(1).unbind(1)
    sums += [ends[part].flatten(1).sum(1) for part in ("tokens", "positions", "pixels")]
    assert_parity(config, which, key, torch.stack(sums, dim=1), RELEVANCE)


# Conservative LRP, beside its maps


@every_config
@both_targets
@compares([f"conservative_lrp_emb_cls{end}" for end in CONSERVATIVE])
def test_conservative_lrp_of_the_class_token_equals_the_reference(
    config: str, which: int, key: str
):
    evidence = evidence_of(config, which)
    options = CONSERVATIVE[key.removeprefix("conservative_lrp_emb_cls")]
    options = {"norm": "std", "activation": "derivative", **options}
    gradient = conservative_gradient(evidence, **options)
    ours = (evidence.tensor("entered") * gradient).sum(-1)[:, :1]
    assert_parity(config, which, key, ours, EXACT)


@every_config
@both_targets
@compares([f"conservative_lrp_logitcheck{end}" for end in CONSERVATIVE])
def test_the_simplified_model_has_the_logits_of_the_model(config: str, which: int, key: str):
    assert (recorded_for(config, which, key).abs() <= EXACT).all()  # how far theirs was off
    module, recorded = reference(config)
    options = CONSERVATIVE[key.removeprefix("conservative_lrp_logitcheck")]
    with Simplified(options.get("norm", "std"), options.get("activation", "derivative")):
        logits = module(recorded["x"])
    assert_parity(config, which, "logits", logits, EXACT)


@every_config
def test_every_recorded_key_is_compared_by_some_test(config: str):
    assert set(reference(config)[1]) == COMPARED | set(NOT_COMPARED)
