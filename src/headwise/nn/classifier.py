"""Classifier: token ids -> scores of classes, of a whole text or of each token."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.config.checks import require_instance
from headwise.config.head import OutputHead
from headwise.config.model import ModelConfig
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.data import KeyPadding
from headwise.nn.checks import require_ids
from headwise.nn.transformer import Transformer


class Classifier(nn.Module):
    """A Transformer and a projection to the classes.

    `scores = W pooled + b`: `pooled` is the mean of the last hidden states of a text's real tokens; or of each token,
    where the head reads every one, its own state.

    Args:
        config: of the model; its head must be a classifier's.
        checkpoint: of every block (see `Block`).
        impl: which implementation computes the attentions.

    Raises:
        ConfigError: the config has no head, or another one.
        UnsupportedError: a part that is not built here.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        checkpoint: Literal["none", "selective", "full"] = "none",
        impl: str = "auto",
    ):
        super().__init__()
        self.config = config
        self.head = _require_head(config)
        self.body = Transformer(config, checkpoint=checkpoint, impl=impl)
        self.dropout = nn.Dropout(self.head.dropout_p)
        self.projection = nn.Linear(config.embed_dim, self.head.num_outputs, bias=self.head.bias)

    def forward(
        self,
        ids: Int[Tensor, "batch seq_len"],
        *,
        lengths: Int[Tensor, " batch"] | None = None,
        positions: Int[Tensor, "batch seq_len"] | Int[Tensor, " seq_len"] | None = None,
    ) -> Float[Tensor, "batch num_outputs"] | Float[Tensor, "batch seq_len num_outputs"]:
        """Return the score of each class.

        Args:
            ids: (batch, seq_len) token ids, padded after the text.
            lengths: (batch,) number of real tokens of each text, at most seq_len. Default: all. A text of none has the
                pooled state 0.
            positions: as of `Transformer`.

        Raises:
            ConfigError: as `Transformer`; lengths that `KeyPadding` refuses.

        Returns:
            (batch, num_outputs), or (batch, seq_len, num_outputs) where the head reads every token.
        """
        require_ids("ids", ids)
        mask = None if lengths is None else KeyPadding(lengths, padded_len=ids.shape[1])
        hidden = self.body(ids, mask=mask, positions=positions)
        if not self.head.per_token:
            hidden = _mean(hidden, lengths)
        scores: Tensor = self.projection(self.dropout(hidden))
        return scores


def _mean(hidden: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the mean state of each text's real tokens, in the dtype that came."""
    dtype = torch.promote_types(hidden.dtype, torch.float32)  # float16 ends at 65504, which the sum of a text may pass
    if lengths is None:
        return (hidden.sum(1, dtype=dtype) / max(hidden.shape[1], 1)).to(hidden.dtype)
    is_real = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
    total = hidden.masked_fill(~is_real.unsqueeze(-1), 0.0).sum(1, dtype=dtype)
    return (total / is_real.sum(1, keepdim=True).clamp(min=1)).to(hidden.dtype)


def _require_head(config: ModelConfig) -> OutputHead:
    require_instance("config", config, ModelConfig)
    head = config.head
    if head is None or head.kind != "classifier":
        raise ConfigError(f"a classifier needs a head of kind 'classifier'; got {head}")
    if head.transform or head.tied or head.softcap is not None:
        raise UnsupportedError(
            f"the head must be one projection to be built here; got {head}; run the model through transformers"
        )
    return head
