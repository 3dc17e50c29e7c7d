"""Models for a task, described by the few numbers that comparisons change."""

import math
from typing import Literal

from headwise.config.attention import AttentionConfig
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.config.checks import require_choice, require_size
from headwise.config.head import OutputHead
from headwise.config.mask_text import read_mask
from headwise.config.model import ModelConfig
from headwise.config.position import ALiBi, Rotary, T5Bias
from headwise.config.vision import C3TRConfig, PatchEncoderConfig
from headwise.errors import ConfigError
from headwise.experiments.digits import GREYS, SIDE, Digits
from headwise.experiments.examples import TokenTask
from headwise.experiments.image_classifier import ImageClassifierConfig
from headwise.experiments.recurrent import RecurrentConfig, count_recurrent_parameters
from headwise.masks.patterns import Causal, Mask

POSITIONS = ("learned", "none", "sinusoidal", "rotary", "alibi", "t5")
Position = Literal["learned", "none", "sinusoidal", "rotary", "alibi", "t5"]

TABLE_DEVIATION = 0.02  # of the numbers of token tables and learned positions as training starts
SINUSOID_SCALE = TABLE_DEVIATION * math.sqrt(2)  # half the mean square of a sine is lost: as strong as a learned table


def transformer_for(
    task: TokenTask,
    *,
    embed_dim: int = 64,
    num_heads: int = 8,
    num_layers: int = 1,
    head_dim: int | None = None,
    num_kv_heads: int | None = None,
    hidden_dim: int | None = None,
    position: Position = "learned",
    mask: Mask | str | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    norm_placement: Literal["pre", "post"] = "pre",
    max_positions: int | None = None,
) -> ModelConfig:
    """Return a Transformer that answers a task at every token.

    Args:
        task: decides its vocabulary, its length and what it puts out.
        embed_dim, num_heads, num_layers: of the model.
        head_dim: width of a head. Default: `embed_dim / num_heads`.
        num_kv_heads: key/value heads. Default: `num_heads`.
        hidden_dim: width inside the feed-forward layer. Default: `4 * embed_dim`.
        position: where a token is: a "learned" table or "sinusoidal" vectors added to the tokens, "rotary", "alibi" or
            "t5" inside attention, or "none". Sinusoids are as strong as a learned table is as training starts, a root
            mean square of 0.02. T5's table has 32 rows for distances, up to a quarter of `max_positions` and at least
            32: near ones have a row each, farther ones share them, and all beyond are alike; half of them are for later
            tokens, where the mask lets those be read.
        mask: of every attention, as a mask or as text: "full", "causal", "window:16", "longformer:16:2 & causal" and
            others, made for texts of `max_positions` tokens. Default: causal.
        scale: factor on the scores. Default: `1 / sqrt(head_dim)`.
        dropout_p: on attention weights and on what is added to the residual stream.
        norm_placement: "pre" or "post".
        max_positions: longest text, and rows of a learned table. Default: the task's longest.

    Raises:
        ConfigError: a number is out of range, or there is no such position or mask.
    """
    require_choice("position", position, POSITIONS)
    require_size("num_layers", num_layers)
    longest = task.max_len if max_positions is None else max_positions
    require_size("max_positions", longest)
    whole_mask = Causal() if mask is None else read_mask(mask)(longest) if isinstance(mask, str) else mask
    inside: dict[str, Rotary | ALiBi | T5Bias] = {"rotary": Rotary(), "alibi": ALiBi()}
    if position == "t5":
        inside["t5"] = T5Bias(max_distance=max(32, longest // 4), is_bidirectional=reads_later(whole_mask, longest))
    attention = AttentionConfig(
        embed_dim=embed_dim,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,  # type: ignore[arg-type]  # None: its own default
        head_dim=head_dim,  # type: ignore[arg-type]
        position=inside.get(position),
        mask=whole_mask,
        scale=scale,  # type: ignore[arg-type]
        dropout_p=dropout_p,
    )
    block = BlockConfig(
        attention=attention,
        feed_forward=FeedForwardConfig(embed_dim=embed_dim, hidden_dim=hidden_dim or 4 * embed_dim),
        norm_placement=norm_placement,
        dropout_p=dropout_p,
    )
    return ModelConfig(
        name=f"{num_heads} heads",
        model_type="headwise",
        kind="decoder",
        embed_dim=embed_dim,
        vocab_size=task.vocab_size,
        max_positions=longest,
        position_table_size=longest if position == "learned" else 0,
        sinusoid_scale=SINUSOID_SCALE if position == "sinusoidal" else 0.0,
        blocks=(block,) * num_layers,
        final_norm=norm_placement == "pre",
        head=OutputHead(kind="language_model", num_outputs=task.num_answers * task.num_classes, bias=True, tied=False),
    )


def reads_later(mask: Mask, seq_len: int) -> bool:
    """Tell whether a token of a text may read a later one."""
    return (mask & Causal()).count_pairs(seq_len, seq_len) < mask.count_pairs(seq_len, seq_len)


def recurrent_for(
    task: TokenTask,
    cell: Literal["gru", "lstm"],
    *,
    embed_dim: int | None = None,
    num_parameters: int | None = None,
    num_layers: int = 1,
    attends: bool = False,
    dropout_p: float = 0.0,
) -> RecurrentConfig:
    """Return a recurrent model that answers a task at every token.

    Args:
        task: decides its vocabulary and what it puts out.
        cell: "gru" or "lstm".
        embed_dim: its width, or else
        num_parameters: as many parameters as it may have: the width that comes closest is taken.
        num_layers, attends, dropout_p: as of `RecurrentConfig`.

    Raises:
        ConfigError: a number is out of range, or both width and parameters are given, or neither.
    """
    if (embed_dim is None) == (num_parameters is None):
        raise ConfigError("a recurrent model takes embed_dim or num_parameters, one of them; got both or none")

    def of_width(width: int) -> RecurrentConfig:
        return RecurrentConfig(
            cell=cell,
            vocab_size=task.vocab_size,
            embed_dim=width,
            num_outputs=task.num_answers * task.num_classes,
            num_layers=num_layers,
            attends=attends,
            dropout_p=dropout_p,
        )

    if embed_dim is not None:
        return of_width(embed_dim)
    assert num_parameters is not None
    require_size("num_parameters", num_parameters)
    width = 1
    while count_recurrent_parameters(of_width(width)) < num_parameters:
        width += 1
    nearest = min((max(1, width - 1), width), key=lambda one: _distance(of_width(one), num_parameters))
    return of_width(nearest)


def _distance(config: RecurrentConfig, num_parameters: int) -> int:
    return abs(count_recurrent_parameters(config) - num_parameters)


def patch_encoder_for(
    task: TokenTask,
    *,
    patch_size: int = 2,
    embed_dim: int = 64,
    num_heads: int = 8,
    num_layers: int = 1,
    hidden_dim: int | None = None,
    dropout_p: float = 0.0,
) -> ImageClassifierConfig:
    """Return a small Vision Transformer that says which numeral a picture shows.

    Args:
        task: `Digits(patch_size=1, levels=17)`, whose tokens are the pixels.
        patch_size, embed_dim, num_heads, num_layers, hidden_dim, dropout_p: as of `headwise.PatchEncoder`.

    Raises:
        ConfigError: the task is another, or a number is out of range.
    """
    body = PatchEncoderConfig.from_keywords(
        patch_size=patch_size,
        embed_dim=embed_dim,
        num_heads=num_heads,
        num_layers=num_layers,
        num_channels=1,
        hidden_dim=hidden_dim,
        dropout_p=dropout_p,
    )
    return _image_classifier(task, body)


def c3tr_for(
    task: TokenTask,
    *,
    in_channels: int = 64,
    out_channels: int = 64,
    num_heads: int = 4,
    num_layers: int = 1,
    expansion: float = 0.5,
    hidden_dim: int | None = None,
    compatible: bool = False,
) -> ImageClassifierConfig:
    """Return a C3TR behind a convolution of 3 x 3 pixels, which says which numeral a picture shows.

    Args:
        task: `Digits(patch_size=1, levels=17)`, whose tokens are the pixels.
        in_channels: channels between the convolution and the C3TR.
        out_channels, num_heads, num_layers, expansion, hidden_dim, compatible: as of `headwise.C3TR`.

    Raises:
        ConfigError: the task is another, or a number is out of range.
    """
    body = C3TRConfig.from_keywords(
        in_channels=in_channels,
        out_channels=out_channels,
        num_layers=num_layers,
        num_heads=num_heads,
        expansion=expansion,
        hidden_dim=hidden_dim,
        compatible=compatible,
    )
    return _image_classifier(task, body)


def _image_classifier(task: TokenTask, body: PatchEncoderConfig | C3TRConfig) -> ImageClassifierConfig:
    if not isinstance(task, Digits) or (task.patch_size, task.levels) != (1, GREYS):
        raise ConfigError(f"a model of images reads pixels: its task must be digits of patch_size 1 and levels {GREYS}")
    return ImageClassifierConfig(body=body, image_size=SIDE, num_greys=GREYS, num_outputs=task.num_classes)
