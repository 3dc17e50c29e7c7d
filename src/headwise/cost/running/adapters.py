"""Low-rank adapters beside a module's frozen projections: what `Workload.lora` means in torch."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from headwise.cost.workload import Lora
from headwise.errors import ConfigError

SCALE = 2.0  # what an adapter says is multiplied by: alpha / rank with the usual alpha of twice the rank

# The end of a projection's path in the models of transformers -> what it is; the first that matches counts. A fused
# projection serves several targets.
PROJECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"(q_proj|query|q_lin|SelfAttention\.q|EncDecAttention\.q)", ("q_proj",)),
    (r"(k_proj|key|k_lin|SelfAttention\.k|EncDecAttention\.k)", ("k_proj",)),
    (r"(v_proj|value|v_lin|SelfAttention\.v|EncDecAttention\.v)", ("v_proj",)),
    (r"(qkv_proj|c_attn|query_key_value|Wqkv|qkv|in_proj)", ("q_proj", "k_proj", "v_proj")),
    (r"(o_proj|attn\.c_proj|out_lin|attention\.output\.dense|attention\.dense)", ("out_proj",)),
    (r"(attn|linear_attn|attention|SelfAttention|EncDecAttention)\.(out_proj|o)", ("out_proj",)),
    (r"(gate_up_proj)", ("gate_proj", "up_proj")),
    (r"(gate_proj|wi_0)", ("gate_proj",)),
    (r"(up_proj|c_fc|fc1|lin1|intermediate\.dense|dense_h_to_4h|wi_1|wi)", ("up_proj",)),
    (r"(down_proj|mlp\.c_proj|fc2|lin2|output\.dense|dense_4h_to_h|wo)", ("down_proj",)),
)


class AdaptedProjection(nn.Module):
    """`W x + b + scale * B (A x)`, where only A (rank, inputs) and B (outputs, rank) are trained.

    B starts at zero, so that the module computes what it did.

    Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
    """

    def __init__(self, projection: nn.Module, rank: int):
        super().__init__()
        weight: Any = projection.weight
        # transformers' Conv1D holds the transpose of what a Linear does
        outputs, inputs = weight.shape if isinstance(projection, nn.Linear) else reversed(weight.shape)
        like = {"dtype": weight.dtype, "device": weight.device, "bias": False}
        self.projection = projection
        self.A = nn.Linear(inputs, rank, **like)
        self.B = nn.Linear(rank, outputs, **like)
        nn.init.zeros_(self.B.weight)

    @property
    def weight(self) -> Tensor:
        """The frozen weight, for models that ask its dtype (T5)."""
        weight: Any = self.projection.weight
        return weight  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Project x (..., inputs) to (..., outputs)."""
        result: Tensor = self.projection(x)
        change: Tensor = self.B(self.A(x))
        return result + SCALE * change


def add_adapters(module: nn.Module, lora: Lora) -> None:
    """Freeze a module's parameters, and put an adapter beside every projection that is a target, in place.

    Raises:
        ConfigError: a target names no projection of the module.
    """
    module.requires_grad_(False)
    found: set[str] = set()
    chosen = []
    for path, part in module.named_modules():
        weight = getattr(part, "weight", None)
        targets = targets_of(path)
        if isinstance(weight, torch.Tensor) and weight.dim() == 2:
            found.update(targets)
            if set(targets) & set(lora.targets):
                chosen.append((path, part))
    missing = [target for target in lora.targets if target not in found]
    if missing or not chosen:
        raise ConfigError(
            f"targets of lora must be projections of the module, which has {', '.join(sorted(found)) or 'none'}; "
            f"got {', '.join(lora.targets) or 'none'}"
        )
    for path, part in chosen:
        module.set_submodule(path, AdaptedProjection(part, lora.rank))


def targets_of(path: str) -> tuple[str, ...]:
    """Return the names of design of the projection at a module's path; none if it is no projection."""
    for pattern, targets in PROJECTIONS:
        if re.search(rf"(^|\.){pattern}$", path):
            return targets
    return ()
