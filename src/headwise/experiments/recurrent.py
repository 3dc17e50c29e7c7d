"""Recurrent rivals of attention: GRU and LSTM, alone or with attention over their own earlier states."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.config.checks import require_choice, require_flag, require_probability, require_size
from headwise.masks.patterns import Causal
from headwise.ops.attention import attention


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """A recurrent model on paper.

    Args:
        cell: "gru" or "lstm".
        vocab_size: rows of the token table.
        embed_dim: width of tokens and states.
        num_layers: layers of cells.
        num_outputs: numbers put out for each token.
        attends: whether each state also reads the states before it and itself: one head of dot-product attention, whose
            result joins the state as `tanh(W [context; state])`.
        dropout_p: on tokens, between layers and before the output.

    Raises:
        ConfigError: a number is out of range.

    Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder" (GRU); Hochreiter and
    Schmidhuber 1997, "Long Short-Term Memory"; Luong et al. 2015, "Effective Approaches to Attention-based Neural
    Machine Translation", section 3.1 (dot score; there over the states of an encoder).
    """

    cell: Literal["gru", "lstm"]
    vocab_size: int
    embed_dim: int
    num_outputs: int
    num_layers: int = 1
    attends: bool = False
    dropout_p: float = 0.0

    def __post_init__(self) -> None:
        require_choice("cell", self.cell, ("gru", "lstm"))
        for name in ("vocab_size", "embed_dim", "num_outputs", "num_layers"):
            require_size(name, getattr(self, name))
        require_flag("attends", self.attends)
        require_probability("dropout_p", self.dropout_p)


class RecurrentModel(nn.Module):
    """Tokens to scores, state after state: each token's scores depend on it and those before it.

    `h = cell(table[ids])`; with attention `h = tanh(W [softmax(h h^T / sqrt(E)) h; h])`, causal; `scores = out(h)`.

    Args:
        config: of the model.
    """

    def __init__(self, config: RecurrentConfig):
        super().__init__()
        self.config = config
        width = config.embed_dim
        self.table = nn.Embedding(config.vocab_size, width)
        self.dropout = nn.Dropout(config.dropout_p)
        kind = nn.GRU if config.cell == "gru" else nn.LSTM
        between = config.dropout_p if config.num_layers > 1 else 0.0  # torch warns of dropout after a single layer
        self.cells = kind(width, width, config.num_layers, batch_first=True, dropout=between)
        self.join = nn.Linear(2 * width, width) if config.attends else None
        self.out = nn.Linear(width, config.num_outputs)

    def forward(self, ids: Int[Tensor, "batch seq_len"]) -> Float[Tensor, "batch seq_len num_outputs"]:
        """Return the scores of each token."""
        states, _ = self.cells(self.dropout(self.table(ids)))
        if self.join is not None:
            head = states.unsqueeze(1)
            context = attention(head, head, head, mask=Causal()).output.squeeze(1)
            states = torch.tanh(self.join(torch.cat([context, states], dim=-1)))
        scores: Tensor = self.out(self.dropout(states))
        return scores


def count_recurrent_parameters(config: RecurrentConfig) -> int:
    """Return the number of parameters: with E = embed_dim and g = 3 (GRU) or 4 (LSTM) gates

    `vocab_size E + num_layers g (2 E^2 + 2 E) + [attends] (2 E^2 + E) + num_outputs (E + 1)`.
    """
    width, gates = config.embed_dim, 3 if config.cell == "gru" else 4
    cells = config.num_layers * gates * (2 * width**2 + 2 * width)
    joined = 2 * width**2 + width if config.attends else 0
    return config.vocab_size * width + cells + joined + config.num_outputs * (width + 1)


def recurrent_forward_flops(config: RecurrentConfig, seq: int) -> int:
    """Return the FLOPs of matrix products of a text of T = `seq` tokens, one multiply-add = 2: with E and g as above

    `2 T (2 num_layers g E^2 + [attends] 2 E^2 + num_outputs E) + [attends] 4 E T (T + 1) / 2`, where each state reads
    those up to its own.
    """
    width, gates = config.embed_dim, 3 if config.cell == "gru" else 4
    per_token = 2 * config.num_layers * gates * width**2 + config.num_outputs * width
    if not config.attends:
        return 2 * seq * per_token
    return 2 * seq * (per_token + 2 * width**2) + 2 * width * seq * (seq + 1)
