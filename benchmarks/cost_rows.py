"""The questions that `benchmarks.cost` asks of every tool: inputs with their right answers, worked out by hand."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "train": nullcontext,
    "eval": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}
# Batch 2, length 128, 4 heads of 32. Multiply-adds: four projections of 2 x 128 x 128 x 128; scores and output of
# 2 x 4 x 128 x 128 x 32 each; with 2 kv heads two of the projections are half as wide; feed-forward of 512.
BATCH, LENGTH, HEADS, HEAD_DIM, HIDDEN = 2, 128, 4, 32, 512
EMBED = HEADS * HEAD_DIM
LAYER = 4 * BATCH * LENGTH * EMBED**2 + 2 * BATCH * LENGTH**2 * EMBED
GROUPED_LAYER = 3 * BATCH * LENGTH * EMBED**2 + 2 * BATCH * LENGTH**2 * EMBED
ENCODER_LAYER = LAYER + 2 * BATCH * LENGTH * EMBED * HIDDEN
BARE_LINEAR = BATCH * LENGTH * EMBED * HIDDEN


@dataclass(frozen=True)
class Question:
    """One thing to ask.

    `kind`: "flops" (multiply-adds of one call), "parameters", "step bytes" (of training) or "cache bytes" (of a
    config). `make`: builds what is asked about: a module and its inputs, a module, a module and its config, a config.
    `truth`: the right answer; for a step it is measured when asked. `mode`: of the module and of gradients.
    """

    name: str
    kind: str
    make: Callable[[], Any]
    truth: int | None
    mode: str = "eval"


class Written(nn.Module):
    """An attention layer around a core that is written in one of many ways."""

    def __init__(self, core: Callable[[Tensor, Tensor, Tensor], Tensor], num_kv_heads: int = HEADS):
        super().__init__()
        self.core = core
        self.query, self.out = nn.Linear(EMBED, EMBED), nn.Linear(EMBED, EMBED)
        self.key, self.value = (nn.Linear(EMBED, num_kv_heads * HEAD_DIM) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        heads = (
            part(x).view(BATCH, LENGTH, -1, HEAD_DIM).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        return self.out(self.core(*heads).transpose(1, 2).reshape(BATCH, LENGTH, EMBED))


class SelfAttention(nn.Module):
    """torch's layer on one input."""

    def __init__(self, embed_dim: int, num_heads: int, need_weights: bool = False):
        super().__init__()
        self.layer = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x, x, need_weights=self.need_weights)[0]


class BareLinear(nn.Module):
    """`F.linear` on a parameter of its own, without a module that hooks could stand on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HIDDEN, EMBED))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class BareAttention(nn.Module):
    """The fused call alone."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


class TiedModel(nn.Module):
    """A table of 1000 words of 64 numbers that is also the output head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 64)
        self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.words(tokens))


def by_bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (heads.flatten(0, 1) for heads in (q, k, v))
    return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v).unflatten(0, (BATCH, HEADS))


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhqk,bhkd->bhqd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v)


WAYS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "torch.matmul": (
        lambda: Written(lambda q, k, v: torch.matmul(torch.softmax(torch.matmul(q, k.mT), -1), v)),
        LAYER,
    ),
    "@": (lambda: Written(lambda q, k, v: (q @ k.mT).softmax(-1) @ v), LAYER),
    "einsum": (lambda: Written(by_einsum), LAYER),
    "bmm": (lambda: Written(by_bmm), LAYER),
    "F.sdpa": (lambda: Written(functional.scaled_dot_product_attention), LAYER),
    "F.sdpa, keywords": (
        lambda: Written(lambda q, k, v: functional.scaled_dot_product_attention(query=q, key=k, value=v)),
        LAYER,
    ),
    "F.sdpa, grouped": (
        lambda: Written(
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True), num_kv_heads=2
        ),
        GROUPED_LAYER,
    ),
    "nn.MultiheadAttention": (lambda: SelfAttention(EMBED, HEADS), LAYER),
    "nn.MultiheadAttention, weights": (lambda: SelfAttention(EMBED, HEADS, need_weights=True), LAYER),
    "nn.TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(EMBED, HEADS, HIDDEN, batch_first=True),
        ENCODER_LAYER,
    ),
    "F.linear on a parameter": (BareLinear, BARE_LINEAR),
}


def questions(*, quick: bool = False) -> list[Question]:
    """List all questions; the quick ones are each way of writing attention in one mode, and what is small."""
    found = [*_flops(), *_parameters(), *_step_bytes(), *_cache_bytes()]
    if not quick:
        return found
    return [one for one in found if one.mode == "no_grad" or one.kind != "flops" if "ViT" not in one.name]


def _flops() -> list[Question]:
    ways = [
        Question(f"{name}, {mode}", "flops", lambda make=make: (make(), torch.randn(BATCH, LENGTH, EMBED)), truth, mode)
        for name, (make, truth) in WAYS.items()
        for mode in MODES
    ]
    reported = [
        ("pytorch#195460: attention (1, 12, 64, 64)", BareAttention, (1, 12, 64, 64), 2 * 12 * 64 * 64 * 64),
        ("fvcore#153: width 448, 4 heads", lambda: SelfAttention(448, 4), (1, 300, 448), 321_484_800),
        ("fvcore#153: width 448, 8 heads", lambda: SelfAttention(448, 8), (1, 300, 448), 321_484_800),
        ("pytorch-OpCounter#197: width 100", lambda: SelfAttention(100, 1), (1, 1000, 100), 240_000_000),
        ("ptflops#101: a frozen encoder layer", _frozen, (BATCH, LENGTH, EMBED), ENCODER_LAYER),
        ("torchinfo#226: ViT-B/16", _vision_transformer, (1, 3, 224, 224), 17_563_828_224),
    ]
    return ways + [
        Question(name, "flops", lambda make=make, shape=shape: (make(), torch.randn(shape)), truth, "no_grad")
        for name, make, shape, truth in reported
    ]


def _frozen() -> nn.Module:
    return nn.TransformerEncoderLayer(EMBED, HEADS, HIDDEN, batch_first=True).requires_grad_(False)


def _vision_transformer() -> nn.Module:
    import transformers

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))

        def forward(self, image: Tensor) -> Tensor:
            return self.model(image).logits

    return Scores()


def _parameters() -> list[Question]:
    def on_meta(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            with torch.device("meta"):
                return make()

        return build

    rows: list[tuple[str, Callable[[], nn.Module], int]] = [
        ("pytorch-OpCounter#197: attention of width 100", lambda: nn.MultiheadAttention(100, 1), 40_400),
        ("encoder layer", lambda: nn.TransformerEncoderLayer(512, 8, 2048), 3_152_384),
        ("encoder layer, on meta", on_meta(lambda: nn.TransformerEncoderLayer(512, 8, 2048)), 3_152_384),
        ("torchinfo#322: a tied head", TiedModel, 64_000),
        ("BERT-base", on_meta(lambda: hugging_face("BertModel", "BertConfig")), 109_482_240),
        ("GPT-2, tied head", on_meta(lambda: hugging_face("GPT2LMHeadModel", "GPT2Config")), 124_439_808),
        ("accelerate#3379's cause: Llama-3-8B, untied head", on_meta(llama_3_8b), 8_030_261_248),
    ]
    return [Question(name, "parameters", make, truth) for name, make, truth in rows]


def hugging_face(class_name: str, config_name: str, **options: Any) -> nn.Module:
    """Build a model of transformers from its config's defaults and options."""
    import transformers

    return getattr(transformers, class_name)(getattr(transformers, config_name)(**options))


def llama_3_8b() -> nn.Module:
    """Build Llama-3-8B with its head."""
    sizes = {"vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32}
    return hugging_face("LlamaForCausalLM", "LlamaConfig", **sizes, num_attention_heads=32, num_key_value_heads=8)


def _step_bytes() -> list[Question]:
    def small(class_name: str, config_name: str, **options: Any) -> Callable[[], tuple[nn.Module, int, int]]:
        return lambda: (hugging_face(class_name, config_name, **options), 4, 64)

    gpt2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000, "n_positions": 64}
    llama = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return [
        Question("peak of a step, small GPT-2", "step bytes", small("GPT2LMHeadModel", "GPT2Config", **gpt2), None),
        Question(
            "peak of a step, small Llama",
            "step bytes",
            small("LlamaForCausalLM", "LlamaConfig", **llama, vocab_size=1000),
            None,
        ),
    ]


def _cache_bytes() -> list[Question]:
    gib = 2**30
    rows = [("llama-2-7b", 4096, 2 * gib), ("llama-3-8b", 8192, gib), ("qwen3-4b", 32_768, 9 * gib // 2)]
    return [
        Question(f"cache of {name} at {seq}, bfloat16", "cache bytes", lambda name=name, seq=seq: (name, seq), truth)
        for name, seq, truth in rows
    ]
