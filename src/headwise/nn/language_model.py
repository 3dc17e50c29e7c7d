"""LanguageModel: token ids -> scores of the next token; training loss and the probability of a text."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from headwise.caches.model import ModelCache
from headwise.config.checks import require_instance
from headwise.config.head import OutputHead
from headwise.config.model import ModelConfig
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.combined import And, Or
from headwise.masks.distances import INFINITY, Distances
from headwise.masks.patterns import Mask, require_mask
from headwise.nn.checks import explain_ids, require_ids
from headwise.nn.projection import project
from headwise.nn.transformer import INITIAL_DEVIATION, Transformer
from headwise.ops.products import linear

FEW_TOKENS = 32  # among them a mask that lets tokens read later ones shows it: global tokens, prefixes, blocks
IGNORED = -100  # a label that counts for nothing, as in torch's cross-entropy


class LanguageModel(nn.Module):
    """A Transformer and a projection to the vocabulary.

    `logits = body(ids) W^T (+ b)`, capped to `softcap * tanh(logits / softcap)` where the config says so; W is the
    token table's own where the head is tied.

    Args:
        config: of the model; its head must be a language model's.
        checkpoint: of every block (see `Block`).
        impl: which implementation computes the attentions.

    Raises:
        ConfigError: the config has no head, or another one.
        UnsupportedError: a part that is not built here.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2; tied: Press and Wolf
    2017, "Using the Output Embedding to Improve Language Models".
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
        reading = (index for index, block in enumerate(config.blocks) if _reads_later_keys(block.attention.mask))
        self._layer_that_reads_later = next(reading, None)
        self.projection: nn.Linear | None = None
        if not self.head.tied:
            self.projection = nn.Linear(config.embed_dim, self.head.num_outputs, bias=self.head.bias)
            nn.init.normal_(self.projection.weight, std=INITIAL_DEVIATION)
            if self.head.bias:
                nn.init.zeros_(self.projection.bias)

    def forward(
        self,
        ids: Int[Tensor, "batch seq_len"],
        *,
        mask: Mask | None = None,
        positions: Int[Tensor, "batch seq_len"] | Int[Tensor, " seq_len"] | None = None,
        cache: ModelCache | None = None,
        real_tokens: Bool[Tensor, "batch seq_len"] | None = None,
    ) -> Float[Tensor, "batch seq_len vocab_size"]:
        """Return the score of each token of the vocabulary at each place: of the next one, where masks are causal.

        Args:
            ids, mask, positions, cache, real_tokens: as of `Transformer`.
        """
        hidden = self.body(ids, mask=mask, positions=positions, cache=cache, real_tokens=real_tokens)
        return self.project(hidden)

    def make_cache(self, *, spare: int = 0) -> ModelCache:
        """Return an empty cache for this model, as of `Transformer.make_cache`."""
        return self.body.make_cache(spare=spare)

    def require_causal(self) -> None:
        """Raise ConfigError where a layer lets a token read later ones, which are not there yet as a text goes on."""
        index = self._layer_that_reads_later
        if index is not None:
            raise ConfigError(
                f"no token may read later ones, where texts are continued; layer {index} has the mask "
                f"{self.config.blocks[index].attention.mask!r}: build layers with mask=Causal()"
            )

    def project(self, hidden: Float[Tensor, "*batch embed_dim"]) -> Float[Tensor, "*batch vocab_size"]:
        """Return the scores of the vocabulary for last hidden states."""
        if self.projection is None:
            logits = linear(hidden, self.body.token_table.weight)
        else:
            logits = project(self.projection, hidden)
        cap = self.head.softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def loss(
        self,
        ids: Int[Tensor, "batch seq_len"],
        *,
        labels: Int[Tensor, "batch seq_len"] | None = None,
        mask: Mask | None = None,
        positions: Int[Tensor, "batch seq_len"] | Int[Tensor, " seq_len"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the mean cross-entropy, in nats a token, of each next token given those before it, in float32.

        Args:
            ids, mask, positions: as of `Transformer`.
            labels: (batch, seq_len) the tokens to foretell, each at its own place, as `ids`, and each from the state of
                the place before; -100 counts for nothing (padding, another document's first token). Default: `ids`.
                Where none counts the mean is NaN, as of torch's cross-entropy.

        Raises:
            ConfigError: as `Transformer`; texts of less than two tokens, in which nothing is foretold; labels that are
                not like `ids`, or none that the head has a score of, wherever numbers can be looked at; no labels where
                a token may read later ones, and so the one that it shall foretell.
        """
        if labels is None:
            self._require_causal(mask, "; or give labels, of tokens that ids hide")
            labels = ids
        require_ids("ids", ids)
        require_ids("labels", labels)
        if ids.shape[1] < 2:
            raise ConfigError(
                f"ids must hold at least 2 tokens a text, of which the last is foretold; got {ids.shape[1]}"
            )
        if labels.shape != ids.shape or labels.device != ids.device:
            raise ConfigError(
                f"labels must have the shape and device of ids, {tuple(ids.shape)} on {ids.device}; "
                f"got {tuple(labels.shape)} on {labels.device}"
            )
        logits = self(ids, mask=mask, positions=positions)[:, :-1]
        targets = labels[:, 1:].flatten().long()
        try:
            return functional.cross_entropy(logits.flatten(0, 1).float(), targets, ignore_index=IGNORED)
        except IndexError:
            explain_ids("labels", targets[targets != IGNORED], "num_outputs", self.head.num_outputs)
            raise

    @torch.no_grad()
    def score(
        self,
        ids: Int[Tensor, "batch seq_len"],
        *,
        mask: Mask | None = None,
        positions: Int[Tensor, "batch seq_len"] | Int[Tensor, " seq_len"] | None = None,
    ) -> Float[Tensor, "batch seq_len_less_one"]:
        """Return the logarithm of the probability of each token but the first, given those before it, in float32.

        Their sum is that of the text, and `exp(-mean)` the perplexity.

        Args:
            ids, mask, positions: as of `Transformer`.

        Raises:
            ConfigError: as `Transformer`; a token that the head has no score of, wherever numbers can be looked at; a
                token may read later ones, and so the one that it shall foretell.
        """
        self._require_causal(mask)
        log_probs = self(ids, mask=mask, positions=positions)[:, :-1].float().log_softmax(-1)
        targets = ids[:, 1:].long()
        try:
            return torch.gather(log_probs, -1, targets.unsqueeze(-1)).squeeze(-1)
        except RuntimeError:
            explain_ids("ids", targets, "num_outputs", self.head.num_outputs)
            raise

    def _require_causal(self, mask: Mask | None, way_out: str = "") -> None:
        """Raise ConfigError if, by the layers' masks and the call's, a token may read later ones."""
        index = self._layer_that_reads_later
        if index is None:
            return
        if mask is not None:
            require_mask(mask)
            if not _reads_later_keys(mask):
                return
        raise ConfigError(
            "no token may read later ones, where each is foretold from those before it; layer "
            f"{index} has the mask {self.config.blocks[index].attention.mask!r}: build layers with mask=Causal(), or "
            f"give it to the call{way_out}"
        )


def _reads_later_keys(mask: Mask) -> bool:
    """Tell whether some query may read a later key; of tensors in masks, which are not looked at, it is assumed."""
    distances = mask.distances()
    if distances is not None:
        return bool((distances & Distances(((-INFINITY, 0),))).intervals)
    if isinstance(mask, Or):
        return _reads_later_keys(mask.left) or _reads_later_keys(mask.right)
    if isinstance(mask, And) and not (_reads_later_keys(mask.left) and _reads_later_keys(mask.right)):
        return False
    pairs = [(query, key) for key in range(FEW_TOKENS) for query in range(key)]
    return not mask.is_structural or any(mask.allows(0, 0, query, key) for query, key in pairs)


def _require_head(config: ModelConfig) -> OutputHead:
    require_instance("config", config, ModelConfig)
    head = config.head
    if head is None or head.kind != "language_model":
        raise ConfigError(f"a language model needs a head of kind 'language_model'; got {head}")
    if head.transform or (head.tied and head.bias):
        raise UnsupportedError(
            f"the head must be one projection, without a bias where it is tied, to be built here; got {head}; run the "
            "model through transformers"
        )
    return head
