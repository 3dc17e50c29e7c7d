"""`torch.nn.TransformerEncoderLayer` <-> Block."""

from functools import partial

import torch
from torch import nn

from headwise.config.model import BlockConfig, FeedForwardConfig
from headwise.convert.torch_attention import config_of, from_torch, to_torch
from headwise.convert.weights import copy_weights, parameters_of, require_settings
from headwise.errors import UnsupportedError
from headwise.nn.block import ACTIVATIONS, Block

_PARTS = {  # ours -> theirs, all but the attention
    "feed_forward.up_proj": "linear1",
    "feed_forward.down_proj": "linear2",
    "attention_norm": "norm1",
    "feed_forward_norm": "norm2",
}


def block_from_torch(layer: nn.TransformerEncoderLayer) -> Block:
    """Make the block that computes what torch's encoder layer computes, with a copy of its weights.

    Tokens come as (batch, seq_len, embed_dim) whatever the layer's `batch_first`, and masks with the call.

    Args:
        layer: with biases (`bias=True`) and an activation of `headwise.nn.block.ACTIVATIONS`.

    Returns:
        A block in the layer's mode (training or not), on its device and in its dtype.

    Raises:
        UnsupportedError: the layer has no biases, another activation, or two norms or dropouts that differ.
    """
    for name in ("norm1", "norm2", "linear1", "linear2"):
        if getattr(layer, name).bias is None:
            raise UnsupportedError(f"{name} must have a bias to convert the layer; got none (bias=False)")
    for name, first, second in (
        ("eps of norm1 and norm2", layer.norm1.eps, layer.norm2.eps),
        ("p of dropout1 and dropout2", layer.dropout1.p, layer.dropout2.p),
    ):
        if first != second:
            raise UnsupportedError(f"{name} must be equal to convert the layer; got {first} and {second}")
    config = BlockConfig(
        attention=config_of(layer.self_attn),
        feed_forward=FeedForwardConfig(
            embed_dim=layer.linear1.in_features,
            hidden_dim=layer.linear1.out_features,
            activation=_name_of(layer.activation),
            dropout_p=layer.dropout.p,
        ),
        norm_placement="pre" if layer.norm_first else "post",
        norm_eps=layer.norm1.eps,
        dropout_p=layer.dropout1.p,
    )
    with torch.random.fork_rng(devices=[]):  # what the block draws at its start is thrown away
        block = Block(config)
    block.attention = from_torch(layer.self_attn)
    block = block.to(layer.linear1.weight)
    for ours, theirs in _PARTS.items():
        copy_weights(parameters_of(layer.get_submodule(theirs)), parameters_of(block.get_submodule(ours)))
    return block.train(layer.training)


def block_to_torch(block: Block) -> nn.TransformerEncoderLayer:
    """Make the encoder layer of torch's that computes what a block computes, with a copy of its weights.

    Args:
        block: with layer norms before or after, a plain feed-forward network with biases, and an attention that
            `to_torch` can convert.

    Returns:
        A `batch_first` layer in the block's mode, on its device and in its dtype.

    Raises:
        UnsupportedError: the block has a setting that torch's layer has not.
    """
    config, feed_forward = block.config, block.config.feed_forward
    held_feed_forward = FeedForwardConfig(
        embed_dim=feed_forward.embed_dim,
        hidden_dim=feed_forward.hidden_dim,
        activation=feed_forward.activation,
        dropout_p=feed_forward.dropout_p,
    )
    require_settings(feed_forward, held_feed_forward, where="torch's encoder layer")
    held = BlockConfig(
        attention=config.attention,
        feed_forward=feed_forward,
        norm_placement=config.norm_placement,
        norm_eps=config.norm_eps,
        dropout_p=config.dropout_p,
    )
    require_settings(config, held, where="torch's encoder layer")
    weight = block.feed_forward.up_proj.weight
    attention = to_torch(block.attention)
    with torch.random.fork_rng(devices=[]):
        layer = nn.TransformerEncoderLayer(
            config.attention.embed_dim,
            config.attention.num_heads,
            feed_forward.hidden_dim,
            dropout=config.dropout_p,
            activation=ACTIVATIONS[feed_forward.activation],
            layer_norm_eps=config.norm_eps,
            batch_first=True,
            norm_first=config.norm_placement == "pre",
            device=weight.device,
            dtype=weight.dtype,
        )
    layer.self_attn = attention
    layer.dropout.p = feed_forward.dropout_p  # the one inside of the feed-forward
    for ours, theirs in _PARTS.items():
        copy_weights(parameters_of(block.get_submodule(ours)), parameters_of(layer.get_submodule(theirs)))
    return layer.train(block.training)


def _name_of(activation: object) -> str:
    """Return our name of an activation, a function or a module of torch's."""
    function: object = activation
    if isinstance(activation, nn.GELU):
        function = ACTIVATIONS["gelu" if activation.approximate == "none" else "gelu_pytorch_tanh"]
    elif isinstance(activation, nn.ReLU | nn.SiLU):
        function = ACTIVATIONS["relu" if isinstance(activation, nn.ReLU) else "silu"]
    for name, ours in ACTIVATIONS.items():
        if _is_same(function, ours):
            return name
    raise UnsupportedError(
        f"activation must be one of {', '.join(ACTIVATIONS)} to convert the layer; "
        f"got {getattr(activation, '__name__', repr(activation))}"
    )


def _is_same(function: object, ours: object) -> bool:
    """Whether two activations are one; a copy of a layer has a copy of a partial function."""
    if isinstance(function, partial) and isinstance(ours, partial):
        return function.func is ours.func and function.args == ours.args and function.keywords == ours.keywords
    return function is ours
