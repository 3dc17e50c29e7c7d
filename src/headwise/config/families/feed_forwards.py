"""The feed-forward of every layer, plain or a mixture of experts, as config.json files of the families say it."""

from headwise.config.checks import MAX_SIZE
from headwise.config.keys import Keys
from headwise.config.model import FeedForwardConfig


def same_everywhere(keys: Keys, num_layers: int) -> list[FeedForwardConfig]:
    """One kind for all layers: gated, and with experts where the family has `num_local_experts` (Llama, Mixtral)."""
    return [_mixture(keys) if keys.has("num_local_experts") else _dense(keys)] * num_layers


def plain_everywhere(keys: Keys, num_layers: int) -> list[FeedForwardConfig]:
    """One kind for all layers, without a gate (StarCoder2)."""
    dense = FeedForwardConfig(
        embed_dim=keys.size("hidden_size"),
        hidden_dim=keys.size("intermediate_size"),
        activation=keys.text("hidden_act"),
        bias=keys.flag("use_bias"),
    )
    return [dense] * num_layers


def biased_experts(keys: Keys, num_layers: int) -> list[FeedForwardConfig]:
    """Experts and their router all with biases, in every layer (gpt-oss)."""
    num_experts = _num_experts(keys, "num_local_experts")
    mixture = FeedForwardConfig(
        embed_dim=keys.size("hidden_size"),
        hidden_dim=keys.size("intermediate_size"),
        activation=keys.text("hidden_act"),
        gated=True,
        bias=True,
        num_experts=num_experts,
        num_active_experts=keys.size("num_experts_per_tok", maximum=num_experts),
        router_bias=True,
    )
    return [mixture] * num_layers


def sparse_by_step(keys: Keys, num_layers: int) -> list[FeedForwardConfig]:
    """Experts in every `decoder_sparse_step`-th layer but `mlp_only_layers`, with or without a shared one (Qwen)."""
    step = keys.size("decoder_sparse_step")
    dense_layers = set(keys.whole_numbers("mlp_only_layers"))
    has_experts = keys.size("num_experts", minimum=0) > 0
    is_sparse = [has_experts and index not in dense_layers and (index + 1) % step == 0 for index in range(num_layers)]
    dense = _dense(keys)
    sparse = _qwen_mixture(keys) if any(is_sparse) else dense
    return [sparse if flag else dense for flag in is_sparse]


def dense_first(keys: Keys, num_layers: int) -> list[FeedForwardConfig]:
    """`first_k_dense_replace` layers without experts, then layers with routed and shared ones (DeepSeek)."""
    num_dense = keys.size("first_k_dense_replace", minimum=0)
    dense = _dense(keys)
    if num_dense >= num_layers:
        return [dense] * num_layers
    num_experts, hidden_dim = _num_experts(keys, "n_routed_experts"), keys.size("moe_intermediate_size")
    num_shared = keys.size("n_shared_experts", minimum=0, maximum=MAX_SIZE // hidden_dim)
    mixture = FeedForwardConfig(
        embed_dim=keys.size("hidden_size"),
        hidden_dim=hidden_dim,
        activation=keys.text("hidden_act"),
        gated=True,
        bias=False,
        num_experts=num_experts,
        num_active_experts=keys.size("num_experts_per_tok", maximum=num_experts),
        scaled_shares=keys.flag("norm_topk_prob"),
        shared_hidden_dim=hidden_dim * num_shared,
        shared_bias=num_shared > 0 and keys.has("mlp_bias") and keys.flag("mlp_bias"),
    )
    return [dense] * num_dense + [mixture] * (num_layers - num_dense)


def _dense(keys: Keys) -> FeedForwardConfig:
    return FeedForwardConfig(
        embed_dim=keys.size("hidden_size"),
        hidden_dim=keys.size("intermediate_size"),
        activation=_activation(keys),
        gated=True,
        bias=keys.has("mlp_bias") and keys.flag("mlp_bias"),
    )


def _mixture(keys: Keys) -> FeedForwardConfig:
    num_experts = _num_experts(keys, "num_local_experts")
    return FeedForwardConfig(
        embed_dim=keys.size("hidden_size"),
        hidden_dim=keys.size("intermediate_size"),
        activation=_activation(keys),
        gated=True,
        bias=False,
        num_experts=num_experts,
        num_active_experts=keys.size("num_experts_per_tok", maximum=num_experts),
    )


def _qwen_mixture(keys: Keys) -> FeedForwardConfig:
    num_experts = _num_experts(keys, "num_experts")
    has_shared = keys.has("shared_expert_intermediate_size")
    return FeedForwardConfig(
        embed_dim=keys.size("hidden_size"),
        hidden_dim=keys.size("moe_intermediate_size"),
        activation=keys.text("hidden_act"),
        gated=True,
        bias=False,
        num_experts=num_experts,
        num_active_experts=keys.size("num_experts_per_tok", maximum=num_experts),
        scaled_shares=keys.flag("norm_topk_prob"),
        shared_hidden_dim=keys.size("shared_expert_intermediate_size") if has_shared else 0,
        shared_gate=has_shared,
    )


def _num_experts(keys: Keys, key: str) -> int:
    return keys.size(key, minimum=2)


def _activation(keys: Keys) -> str:
    key = "hidden_activation" if keys.has("hidden_activation") else "hidden_act"
    activation = keys.text(key)
    # Gemma's first files name the exact form and mean this one.
    means_tanh = key == "hidden_act" and keys.default(key) == "gelu_pytorch_tanh"
    return "gelu_pytorch_tanh" if means_tanh and activation == "gelu" else activation
