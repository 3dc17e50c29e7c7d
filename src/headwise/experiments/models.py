"""Models for a task, described by the few numbers that comparisons change."""

from typing import Literal

from headwise.config.attention import AttentionConfig
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.config.checks import require_choice, require_size
from headwise.config.head import OutputHead
from headwise.config.model import ModelConfig
from headwise.config.position import ALiBi, Rotary, T5Bias
from headwise.errors import ConfigError
from headwise.experiments.examples import TokenTask
from headwise.experiments.recurrent import RecurrentConfig, count_recurrent_parameters
from headwise.masks.patterns import Causal, Mask

POSITIONS = ("learned", "none", "rotary", "alibi", "t5")
Position = Literal["learned", "none", "rotary", "alibi", "t5"]


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
    mask: Mask | None = None,
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
        position: where a token is: a "learned" table, "rotary", "alibi" or "t5" inside attention, or "none".
        mask: of every attention. Default: causal.
        scale: factor on the scores. Default: `1 / sqrt(head_dim)`.
        dropout_p: on attention weights and on what is added to the residual stream.
        norm_placement: "pre" or "post".
        max_positions: longest text, and rows of a learned table. Default: the task's longest.

    Raises:
        ConfigError: a number is out of range, or there is no such position.
    """
    require_choice("position", position, POSITIONS)
    require_size("num_layers", num_layers)
    longest = task.max_len if max_positions is None else max_positions
    inside: dict[str, Rotary | ALiBi | T5Bias] = {"rotary": Rotary(), "alibi": ALiBi(), "t5": T5Bias()}
    attention = AttentionConfig(
        embed_dim=embed_dim,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,  # type: ignore[arg-type]  # None: its own default
        head_dim=head_dim,  # type: ignore[arg-type]
        position=inside.get(position),
        mask=Causal() if mask is None else mask,
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
        blocks=(block,) * num_layers,
        final_norm=norm_placement == "pre",
        head=OutputHead(kind="language_model", num_outputs=task.num_answers * task.num_classes, bias=True, tied=False),
    )


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
