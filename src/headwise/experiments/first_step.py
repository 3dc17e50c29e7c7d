"""The first step: what scores, weights and gradients of a model look like before it has learned anything."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.config.model import ModelConfig
from headwise.experiments.asking import loss_of, make_model
from headwise.experiments.examples import TokenTask
from headwise.nn.multihead import MultiHeadAttention
from headwise.results import Result


@dataclass(frozen=True, kw_only=True)
class FirstStep(Result):
    """A model at the start, in means over layers, heads, texts and queries.

    Args:
        score_deviation: standard deviation of the scores that a query gives to the keys that it sees.
        entropy: of its weights, in nats; at most the logarithm of the number of keys.
        largest_weight: of a query.
        loss: in nats an answer.
        gradient_norm: 2-norm of all gradients of the mean loss together.
        score_gradient_norm: the same of the query and key projections alone, which the softmax stands before.
    """

    score_deviation: float
    entropy: float
    largest_weight: float
    loss: float
    gradient_norm: float
    score_gradient_norm: float


def first_step(model: ModelConfig, task: TokenTask, *, num_examples: int = 32, seed: int = 0) -> FirstStep:
    """Look at an untrained model on one batch, in float64.

    Queries that see a single key are left out of the first three: their weight is 1 whatever the scores are.

    Args:
        model: whose attentions are of the plain kind.
        task: what it is asked.
        num_examples: texts of the batch.
        seed: of the weights and the texts.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make_model(model).double().eval()
    seen: list[Tensor] = []
    handles = [
        one.register_forward_pre_hook(
            lambda layer, args, own: seen.append(_figures(layer, args[0], own)), with_kwargs=True
        )
        for one in module.modules()
        if isinstance(one, MultiHeadAttention)
    ]
    total, count = loss_of(module, task.draw(num_examples, seed=seed), task)
    for handle in handles:
        handle.remove()
    loss = total / count
    torch.autograd.backward([loss])
    own = {name: one.grad for name, one in module.named_parameters() if one.grad is not None}
    deviation, entropy, largest = torch.stack(seen).mean(dim=0).tolist()
    return FirstStep(
        score_deviation=deviation,
        entropy=entropy,
        largest_weight=largest,
        loss=float(loss.detach()),
        gradient_norm=_norm(list(own.values())),
        score_gradient_norm=_norm([grad for name, grad in own.items() if "q_proj" in name or "k_proj" in name]),
    )


@torch.no_grad()
def _figures(layer: nn.Module, tokens: Tensor, settings: dict[str, object]) -> Tensor:
    """Return mean deviation of scores, entropy and largest weight of a layer's queries."""
    assert isinstance(layer, MultiHeadAttention)
    seen = layer.attend(tokens, **settings, return_weights=True, return_logsumexp=True)  # type: ignore[arg-type]
    assert seen.weights is not None and seen.logsumexp is not None
    weights = seen.weights
    counted = weights > 0
    logs = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()
    scores = torch.where(counted, logs + seen.logsumexp.unsqueeze(-1), 0.0)
    num_keys = counted.sum(dim=-1)
    mean = scores.sum(dim=-1) / num_keys.clamp(min=1)
    squares = torch.where(counted, (scores - mean.unsqueeze(-1)) ** 2, 0.0).sum(dim=-1)
    several = num_keys > 1
    deviation = (squares / num_keys.clamp(min=1)).sqrt()[several].mean()
    entropy = -(weights * logs).sum(dim=-1)[several].mean()
    return torch.stack((deviation, entropy, weights.amax(dim=-1)[several].mean()))


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([tensor.norm() for tensor in tensors]).norm())
