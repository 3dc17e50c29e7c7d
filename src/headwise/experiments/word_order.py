"""Word order: what a model without positions makes of two sentences with the same words."""

from dataclasses import dataclass

import torch

from headwise.errors import ConfigError
from headwise.experiments.asking import make_model
from headwise.experiments.models import Position, transformer_for
from headwise.experiments.sequence_tasks import MultiOffsetCopy
from headwise.results import Result


@dataclass(frozen=True, kw_only=True)
class WordOrder(Result):
    """How far a model tells two orders of the same words apart.

    Args:
        first, second: the sentences.
        position: how the model knows where a word is.
        size: largest score that it gives to any word of the first sentence.
        difference: largest difference of the scores at a word in the one sentence and at the same word in the other.
    """

    first: str
    second: str
    position: str
    size: float
    difference: float


@torch.no_grad()
def compare_orders(
    first: str = "cat eats fish",
    second: str = "fish eats cat",
    *,
    position: Position = "none",
    embed_dim: int = 64,
    num_heads: int = 8,
    num_layers: int = 2,
    seed: int = 0,
) -> WordOrder:
    """Ask an untrained Transformer, whose words all see one another, of two sentences with the same words.

    Attention is a weighted sum over keys, whatever their order, and all else in a Transformer reads each word by
    itself. Without positions the scores at "cat" are therefore the same in both sentences but for float error, and so
    is any sum over the words: who eats whom is lost.

    Args:
        first, second: sentences of the same words, each once.
        position: as of `transformer_for`.
        embed_dim, num_heads, num_layers: of the model, in float64.
        seed: of its weights.

    Raises:
        ConfigError: the sentences have other words, or a word twice.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
    """
    words, others = first.split(), second.split()
    if len(words) < 2 or sorted(words) != sorted(others) or len(set(words)) < len(words):
        raise ConfigError(f"both sentences must have the same words, two or more, each once; got {first!r}, {second!r}")
    task = MultiOffsetCopy(vocab_size=len(words), seq_len=len(words), offsets=(1,))
    config = transformer_for(
        task, embed_dim=embed_dim, num_heads=num_heads, num_layers=num_layers, position=position, mask="full"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make_model(config).double().eval()
    order = [words.index(word) for word in others]  # of each word of the second sentence its place in the first
    scores, turned = module(torch.arange(len(words))[None])[0], module(torch.tensor([order]))[0]
    return WordOrder(
        first=first,
        second=second,
        position=position,
        size=float(scores.abs().max()),
        difference=float((turned - scores[order]).abs().max()),
    )
