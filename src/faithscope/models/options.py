"""What a name in brackets, a study or a card may say of a model: options known to be safe.

A constructor of another library takes much that a file must not choose: paths that are unpickled
(`checkpoint_path`), code that is fetched and run (`trust_remote_code`), other hosts. So only what
shapes a model can be said, in plain values of a bounded size.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import nn

from faithscope.errors import FaithscopeError, shortened, shown, unknown

SAFE: Mapping[str, frozenset[str]] = {
    "timm": frozenset(
        """
        img_size patch_size in_chans num_classes global_pool embed_dim embed_dims depth depths
        num_heads mlp_ratio mlp_ratios qkv_bias qk_norm proj_bias init_values class_token
        no_embed_class reg_tokens pre_norm final_norm fc_norm pos_embed dynamic_img_size
        dynamic_img_pad strict_img_size act_layer norm_layer drop_rate drop_path_rate pos_drop_rate
        patch_drop_rate proj_drop_rate attn_drop_rate weight_init window_size window_ratio dims
        widths heads head_dim num_kv_heads swiglu_mlp scale_mlp ls_init_value
        layer_scale_init_value use_abs_pos_emb use_rel_pos_bias use_shared_rel_pos_bias
        use_pos_embed use_rot_pos_emb rope_type rope_theta rope_temperature ref_feat_shape
        num_reg_tokens distilled output_stride stem_type always_partition
        """.split()
    ),
    "hf": frozenset(
        """
        revision num_labels ignore_mismatched_sizes local_files_only attn_implementation
        image_size patch_size num_channels hidden_size num_hidden_layers num_attention_heads
        intermediate_size hidden_act qkv_bias layer_norm_eps
        """.split()
    ),
    "torchvision": frozenset(
        """
        num_classes image_size patch_size num_layers num_heads hidden_dim mlp_dim dropout
        attention_dropout stochastic_depth_prob representation_size progress
        """.split()
    ),
}
"""Names of options by source."""
COUNTS = ("depth", "depths", "num_layers", "num_hidden_layers")
"""Options that are numbers of layers, each of which is built."""
SIZES = ("size", "dim", "depth", "heads", "layers", "chans", "channels", "labels")
"""Parts of the names of options that are sizes, of at least 1."""
FLAGS = ("dynamic_img_size", "strict_img_size", "ignore_mismatched_sizes")
MOST, MOST_LAYERS, MOST_WORDS = 100_000, 1000, 2**31
"""The largest size, number of layers and vocabulary that are tried."""
ATTENTION = ("eager", "sdpa")
"""What comes with torch; anything else may be code that is fetched."""


def check_safe(source: str, name: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that is not known to be safe, or a value that is not plain."""
    for option, value in options.items():
        if option == "trust_remote_code":
            raise FaithscopeError(
                f"'{source}:{name}' may not ask for its own code to be run: if you trust it, give "
                "trust_remote_code=True in Python or type --trust-remote-code."
            )
        if option not in SAFE[source]:
            problem = unknown(f"option of a {source} model", option, SAFE[source])
            raise FaithscopeError(
                f"{str(problem).rstrip('.')}; for any other build the module in Python and give "
                "it to fs.wrap."
            )
        if not _is_plain(value):
            raise FaithscopeError(
                f"The option '{option}' of '{source}:{name}' must be a number, true, false, a word "
                f"or a list of these, got {shown(value)}."
            )
        _check_size(f"'{source}:{name}'", option, value)
        if option == "attn_implementation" and value not in ATTENTION:
            raise unknown("attention implementation", str(value), ATTENTION)


def check_config(name: str, config: Any) -> None:
    """The same of the configuration that lies beside the weights of Hugging Face."""
    for option in (*SAFE["hf"], "vocab_size", "max_position_embeddings", "num_labels"):
        value = getattr(config, option, None)
        if isinstance(value, int):
            _check_size(f"'{name}'", option, value)
    attention = getattr(config, "_attn_implementation", None)
    if isinstance(attention, str) and attention not in ATTENTION:
        raise FaithscopeError(
            f"The configuration of '{name}' asks for attention {shown(attention)}, code that may "
            "be fetched: take that out of its config.json."
        )
    for passed_on in ("model_args", "backbone_kwargs"):  # to timm, as they are
        held = getattr(config, passed_on, None)
        if held is not None and not isinstance(held, Mapping):
            raise FaithscopeError(
                f"'{passed_on}' in the configuration of '{name}' must be options."
            )
        check_safe("timm", name, held or {})


def check_memory(name: str, shell: nn.Module) -> None:
    """Refuse a model, built without memory, that is larger than this machine has free."""
    needed = sum(held.numel() * held.element_size() for held in shell.parameters())
    if needed > free_memory():
        raise FaithscopeError(
            f"{name} would need {needed / 1e9:,.0f} GB of memory, and {free_memory() / 1e9:,.0f} "
            "GB are free: make it smaller."
        )


def not_loaded(name: str, error: Exception, advice: str) -> FaithscopeError:
    """Say why another library could not load a model."""
    text = str(error).strip()
    if "custom code" in text or "trust_remote_code" in text:
        return FaithscopeError(
            f"'{name}' comes with Python files of its own, which are not run: if you trust them, "
            "give trust_remote_code=True in Python or type --trust-remote-code."
        )
    reason = shortened(text.splitlines()[0], 200) if text else "no reason"
    return FaithscopeError(
        f"'{name}' could not be loaded ({type(error).__name__}: {reason}): {advice}."
    )


def free_memory() -> float:
    """Bytes that this machine has free; infinity where nobody says."""
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        pass
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, AttributeError):
        return float("inf")


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, list | tuple):
        return depth < 3 and len(value) <= 100 and all(_is_plain(one, depth + 1) for one in value)
    if isinstance(value, str):
        return len(value) <= 100 and value.isprintable()
    if isinstance(value, float):
        return abs(value) <= MOST
    return value is None or isinstance(value, bool | int)


def _check_size(owner: str, option: str, value: Any) -> None:
    """Refuse a whole number that is out of range, or true where a size is meant."""
    is_size = any(part in option for part in SIZES) and option not in FLAGS
    least = 1 if is_size else 0
    most = MOST_LAYERS if option in COUNTS else MOST_WORDS if option == "vocab_size" else MOST
    for number in value if isinstance(value, list | tuple) else (value,):
        if isinstance(number, list | tuple):
            _check_size(owner, option, number)
            continue
        wrong = isinstance(number, int) and not least <= number <= most
        if wrong or (is_size and isinstance(number, bool | str | float)):
            raise FaithscopeError(
                f"The option '{option}' of {owner} must be a whole number from {least} to "
                f"{most:,}, got {shown(number)}."
            )
