"""`torch.nn.TransformerEncoderLayer` <-> Block."""

from functools import partial

import torch
from torch import nn

from headwise.config.model import BlockConfig, FeedForwardConfig
from headwise.convert.plain import require_kind, require_one_dtype, require_plain
from headwise.convert.torch_attention import config_of, from_torch, to_torch
from headwise.convert.weights import fill, parameters_of, require_settings
from headwise.errors import UnsupportedError
from headwise.nn.block import ACTIVATIONS, Block

_PARTS = {  # ours -> theirs, all but the attention
    "feed_forward.up_proj": "linear1",
    "feed_forward.down_proj": "linear2",
    "attention_norm": "norm1",
    "feed_forward_norm": "norm2",
}

_LINEARS, _NORMS, _DROPOUTS = ("linear1", "linear2"), ("norm1", "norm2"), ("dropout", "dropout1", "dropout2")


def block_from_torch(layer: nn.TransformerEncoderLayer) -> Block:
    """Make the block that computes what torch's encoder layer computes, with a copy of its weights.

    Tokens come as (batch, seq_len, embed_dim) whatever the layer's `batch_first`, and masks with the call.

    Args:
        layer: with biases (`bias=True`) and an activation of `headwise.nn.block.ACTIVATIONS`.

    Returns:
        A block in the layer's mode (training or not; the attention in its own), on its device and in its dtype, frozen
        where it is.

    Raises:
        UnsupportedError: another kind of layer (a decoder's, a subclass); the layer has no biases, another activation,
            two norms or dropouts that differ, or another part; weights that are no plain ones: in several dtypes,
            quantised, offloaded, with an adapter, a weight norm or a parametrization.
    """
    _require_known(layer)
    for name in ("norm1", "norm2", "linear1", "linear2"):
        if getattr(layer, name).bias is None:
            raise UnsupportedError(f"{name} must have a bias to convert the layer; got none (bias=False)")
    for name, first, second in (
        ("eps of norm1 and norm2", layer.norm1.eps, layer.norm2.eps),
        ("p of dropout1 and dropout2", layer.dropout1.p, layer.dropout2.p),
        ("modes of dropout and the layer", layer.dropout.training, layer.training),
        ("modes of dropout1 and the layer", layer.dropout1.training, layer.training),
        ("modes of dropout2 and the layer", layer.dropout2.training, layer.training),
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
    block = block.to(layer.linear1.weight).train(layer.training)
    for ours, theirs in _PARTS.items():
        part = block.get_submodule(ours)
        fill(part, parameters_of(layer.get_submodule(theirs)), parameters_of(part))
    block.attention.train(layer.self_attn.training)
    return block


def block_to_torch(block: Block) -> nn.TransformerEncoderLayer:
    """Make the encoder layer of torch's that computes what a block computes, with a copy of its weights.

    Args:
        block: with layer norms before or after, a plain feed-forward network with biases, and an attention that
            `to_torch` can convert.

    Returns:
        A `batch_first` layer in the block's mode (the attention in its own), on its device and in its dtype, frozen
        where it is.

    Raises:
        UnsupportedError: another kind of module (a subclass too); the block has a setting that torch's layer has not,
            parts that are no longer what it was made with, or weights in several dtypes.
    """
    require_kind("block", block, [Block], what="convert it")
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
    _require_plain_block(block)
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
        part = layer.get_submodule(theirs)
        fill(part, parameters_of(block.get_submodule(ours)), parameters_of(part))
    layer.train(block.training).self_attn.train(block.attention.training)
    return layer


def _require_known(layer: nn.TransformerEncoderLayer) -> None:
    """Raise UnsupportedError unless torch's layer is made of what it was made with and of nothing else."""
    require_kind("layer", layer, [nn.TransformerEncoderLayer], what="convert it")
    for names, kind in {_LINEARS: nn.Linear, _NORMS: nn.LayerNorm, _DROPOUTS: nn.Dropout}.items():
        for name in names:
            require_plain(name, getattr(layer, name), [kind], whole=layer)
    others = {name for name, _ in layer.named_children()} - {*_LINEARS, *_NORMS, *_DROPOUTS, "self_attn", "activation"}
    others |= {name for name, _ in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))}
    if others:
        raise UnsupportedError(f"a layer must have torch's own parts alone to be converted; got {sorted(others)}, too")
    require_one_dtype(parameters_of(layer))


def _require_plain_block(block: Block) -> None:
    """Raise UnsupportedError unless a block is made of what it was made with, all of it in one mode and dtype."""
    for ours, theirs in _PARTS.items():
        require_plain(ours, block.get_submodule(ours), [nn.Linear if theirs in _LINEARS else nn.LayerNorm], whole=block)
    for name in ("dropout", "feed_forward.dropout"):
        part = block.get_submodule(name)
        require_plain(name, part, [nn.Dropout], whole=block)
        if part.training != block.training:
            raise UnsupportedError(
                f"modes of {name} and the block must be equal to convert it; got {part.training} and {block.training}"
            )
    require_one_dtype(parameters_of(block))


def _name_of(activation: object) -> str:
    """Return our name of an activation, a function or a module of torch's."""
    function: object = activation
    if type(activation) is nn.GELU:
        function = ACTIVATIONS["gelu" if activation.approximate == "none" else "gelu_pytorch_tanh"]
    elif type(activation) in (nn.ReLU, nn.SiLU) or activation is torch.relu:
        function = ACTIVATIONS["silu" if type(activation) is nn.SiLU else "relu"]
    for name, ours in ACTIVATIONS.items():
        if _is_same(function, ours):
            return name
    got = getattr(activation, "__name__", None) or repr(activation)
    got = f"{activation.__module__}.{got}" if got in ACTIVATIONS else got
    raise UnsupportedError(
        f"activation must be one of {', '.join(ACTIVATIONS)}, of torch's, to convert the layer; got {got}"
    )


def _is_same(function: object, ours: object) -> bool:
    """Whether two activations are one; a copy of a layer has a copy of a partial function."""
    if isinstance(function, partial) and isinstance(ours, partial):
        return function.func is ours.func and function.args == ours.args and function.keywords == ours.keywords
    return function is ours
