"""scale_down: a Hugging Face config.json of the same build, small enough to be instantiated and run anywhere."""

from collections.abc import Mapping
from typing import Any

from headwise.errors import ConfigError

VOCAB_SIZE = 97
HEAD_DIM = 8  # of a head whose width is its share of the model's
OWN_HEAD_DIM = 24  # where a config states it: no such share, and a quarter of it is even
MAX_HEADS = 8
WINDOW = 7  # shorter than the texts that the small model is run on
MAX_LAYERS_OF_A_KIND = 2
MAX_INTERVAL = 8

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers")
_LAYERS_TOO = ("decoder_layers",)
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
_HEADS = (
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
)
_KV_HEADS = "num_key_value_heads"
_HEAD_DIMS = ("head_dim", "d_kv")
_HIDDEN = (
    "intermediate_size",
    "n_inner",
    "hidden_dim",
    "d_ff",
    "ffn_dim",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_ACTIVE_EXPERTS = ("num_experts_per_tok", "num_experts_per_token")
_INTERVALS = ("full_attention_interval", "sliding_window_pattern")  # each so many layers there is one of another kind
_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "sliding_window": WINDOW,
    "image_size": 12,
    "patch_size": 4,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "hidden_size_per_layer_input": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}


def scale_down(config: object) -> dict[str, Any]:
    """Return the content of a config.json with small sizes and all else as it was.

    What kind of model it is stays: its class, grouped heads in their proportion, heads that are no even share of the
    width, experts, windows, latent ranks, and each kind of layer that it has, at most two of a kind in a row.

    Args:
        config: the content of a config.json, of any model_type.

    Raises:
        ConfigError: it is no object, or its numbers of heads cannot be read.
    """
    if not isinstance(config, Mapping):
        raise ConfigError("a config must be an object with keys")
    small = {key: _scaled(key, value) for key, value in config.items()}
    num_heads = _scale_heads(config, small)
    width = num_heads * HEAD_DIM
    for key in _HEAD_DIMS:
        if _is_size(config.get(key)):
            small[key] = HEAD_DIM if _is_even_share(config, config[key]) else OWN_HEAD_DIM
    small |= {key: width for key in _WIDTHS if _is_size(config.get(key))}
    small |= {key: 2 * width for key in _HIDDEN if _is_size(config.get(key))}
    _scale_experts(config, small)
    _scale_layers(config, small)
    return small


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _scaled(key: str, value: Any) -> Any:
    return min(_SIZES[key], value) if key in _SIZES and _is_size(value) else value


def _is_even_share(config: Mapping[str, Any], head_dim: int) -> bool:
    """Tell whether a stated width of a head is what the model's width divided by the heads gives anyway."""
    widths = {config[key] for key in _WIDTHS if _is_size(config.get(key))}
    return any(head_dim * config[key] in widths for key in _HEADS if _is_size(config.get(key)))


def _scale_heads(config: Mapping[str, Any], small: dict[str, Any]) -> int:
    """Scale the heads, keeping how many queries share a key; return the number of query heads."""
    heads_keys = [key for key in _HEADS if _is_size(config.get(key))]
    if not heads_keys:
        raise ConfigError(f"a config must say its number of heads in one of {', '.join(_HEADS)}")
    heads = config[heads_keys[0]]
    kv_heads = config[_KV_HEADS] if _is_size(config.get(_KV_HEADS)) else heads
    if heads % kv_heads:
        raise ConfigError(f"{heads_keys[0]} must be a multiple of {_KV_HEADS}; got {heads} and {kv_heads}")
    queries_per_kv = min(heads // kv_heads, MAX_HEADS)
    small_kv_heads = min(kv_heads, max(MAX_HEADS // queries_per_kv // 2, 1))
    if _is_size(config.get(_KV_HEADS)):
        small[_KV_HEADS] = small_kv_heads
    small |= dict.fromkeys(heads_keys, small_kv_heads * queries_per_kv)
    num_heads: int = small_kv_heads * queries_per_kv
    return num_heads


def _scale_experts(config: Mapping[str, Any], small: dict[str, Any]) -> None:
    for key in _EXPERTS:
        if _is_size(config.get(key)):
            small[key] = min(config[key], 5)
            small |= {active: min(config[active], 2) for active in _ACTIVE_EXPERTS if _is_size(config.get(active))}


def _scale_layers(config: Mapping[str, Any], small: dict[str, Any]) -> None:
    """Keep the first layers, until every kind of layer is among them."""
    kinds = config.get("layer_types")
    has_kinds = isinstance(kinds, list) and kinds
    num_layers = MAX_LAYERS_OF_A_KIND
    if has_kinds:
        assert isinstance(kinds, list)
        num_layers = max(num_layers, *(kinds.index(kind) + 1 for kind in set(map(str, kinds)) if kind in kinds))
        small["layer_types"] = kinds[:num_layers]
    if isinstance(config.get("attention_types"), list):  # GPT-Neo: how often a row of kinds is repeated
        pattern = config["attention_types"][0][0]
        small["attention_types"], num_layers = [[pattern, 1]], len(pattern)
        small.pop("attention_layers", None)
    intervals = [config[key] for key in _INTERVALS if _is_size(config.get(key)) and config[key] <= MAX_INTERVAL]
    if config.get("model_type") == "qwen3_next":
        intervals.append(4)  # its interval where the config does not say
    num_layers = max(num_layers, *intervals) if intervals else num_layers
    for key in (*_LAYERS, *_LAYERS_TOO):
        if _is_size(config.get(key)):
            small[key] = min(config[key], num_layers)
    for key in ("first_k_dense_replace", "max_window_layers"):
        if _is_size(config.get(key)):
            small[key] = min(config[key], 1)
