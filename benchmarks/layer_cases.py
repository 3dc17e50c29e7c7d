"""The cases of `benchmarks.layer`: what is timed beside what, and which figure is to be reached."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import headwise
from headwise.integrations.transformers_backend import register
from headwise.masks.patterns import Causal, Mask, SlidingWindow
from headwise.masks.tables import Documents

WIDTH, NUM_HEADS, NUM_KV_HEADS = 512, 8, 2
LENGTHS = (128, 512, 1024, 2048, 4096)
SHORT = 16  # tokens: the arithmetic is little there, so that what a call costs besides shows
WINDOW = 256
OURS, OURS_SEPARATE, TORCH, TORCH_WEIGHTS = "ours", "ours, separate projections", "torch", "torch, its default"
LAYER_SDPA, BARE, BARE_SDPA = "ours by sdpa", "bare", "bare by sdpa"
MODEL, MODEL_SDPA = 'model, "headwise"', 'model, its own "sdpa"'

Took = dict[str, float]
"""Seconds of each contestant."""


class Check(NamedTuple):
    """A figure that is to be at least its target; one without a target is only told."""

    what: str
    value_of: Callable[[Took], float]
    target: float | None


class Case(NamedTuple):
    """What is timed in turns, and the figures of it. Nothing is made before `make` is called.

    `flops` are those of our step: the products of four projections forward and twice that backward, the two of
    attention forward and the five that a fused kernel makes backward.
    """

    name: str
    seq: int
    make: Callable[[], dict[str, Callable[[], object]]]
    checks: tuple[Check, ...]
    flops: int | None = None


def cases() -> Iterator[Case]:
    """Yield all cases of speed, the shortest first."""
    yield overhead_case()
    for seq in LENGTHS:
        yield full_case(seq)
    for seq in (2048, 4096):
        yield causal_case(seq)
        yield masked_case("window", seq, SlidingWindow(WINDOW))
        yield masked_case("packed", seq, Causal() & Documents(torch.full((seq // WINDOW,), WINDOW)))
    for phase in ("forward", "training step"):
        yield model_case(f"Llama, {phase}", 512, phase, target=0.97)
        yield model_case(f"Llama, {phase}", 1024, phase, target=0.97)
        yield model_case(f"Mistral, window, {phase}", 4096, phase, target=2.0, sliding_window=WINDOW)


def times_faster(peer: str, ours: str, target: float | None, what: str | None = None) -> Check:
    """How many times longer the peer takes."""
    return Check(what or f"time of {peer} / {ours}", lambda took: took[peer] / took[ours], target)


def overhead_case() -> Case:
    """Like beside like: torch's layer projects queries, keys and values at once, and so does ours with `fused_qkv`."""

    def make() -> dict[str, Callable[[], object]]:
        ours, twin = make_layer(), make_twin()
        fused = make_layer(fused_qkv=True)
        return {
            OURS: step_of(fused, fused, SHORT),
            OURS_SEPARATE: step_of(ours, ours, SHORT),
            TORCH: step_of(lambda x: twin(x, x, x, need_weights=False)[0], twin, SHORT),
        }

    return Case(
        "overhead, fused_qkv",
        SHORT,
        make,
        (times_faster(TORCH, OURS, 1.0), times_faster(TORCH, OURS_SEPARATE, None)),
    )


def full_case(seq: int) -> Case:
    """Every token reads every other."""
    default_target = {2048: 1.4, 4096: 2.2}.get(seq)

    def make() -> dict[str, Callable[[], object]]:
        ours, twin = make_layer(), make_twin()
        calls = {
            OURS: step_of(ours, ours, seq),
            TORCH: step_of(lambda x: twin(x, x, x, need_weights=False)[0], twin, seq),
        }
        if default_target is not None:
            calls[TORCH_WEIGHTS] = step_of(lambda x: twin(x, x, x)[0], twin, seq)
        return calls

    checks = [times_faster(TORCH, OURS, 1.0)]
    if default_target is not None:
        checks.append(times_faster(TORCH_WEIGHTS, OURS, default_target))
    flops = 3 * 4 * 2 * seq * WIDTH**2 + 7 * 2 * seq**2 * WIDTH
    return Case("all pairs", seq, make, tuple(checks), flops)


def causal_case(seq: int) -> Case:
    """No token reads a later one: torch's layer is told so, which is what it needs to leave out half of the pairs."""

    def make() -> dict[str, Callable[[], object]]:
        ours, twin, later = make_layer(mask=Causal()), make_twin(), nn.Transformer.generate_square_subsequent_mask(seq)
        return {
            OURS: step_of(ours, ours, seq),
            TORCH: step_of(lambda x: twin(x, x, x, need_weights=False, attn_mask=later, is_causal=True)[0], twin, seq),
        }

    return Case("causal", seq, make, (times_faster(TORCH, OURS, 1.0),))


def masked_case(name: str, seq: int, mask: Mask) -> Case:
    """A mask that leaves out most pairs: the layer is to gain what the bare operation gains."""

    def layer_step(impl: str) -> Callable[[], object]:
        if mask.is_structural:
            layer = make_layer(mask=mask, impl=impl)
            return step_of(layer, layer, seq)
        layer = make_layer(impl=impl)
        return step_of(lambda x: layer(x, mask=mask), layer, seq)

    def make() -> dict[str, Callable[[], object]]:
        return {
            OURS: layer_step("auto"),
            LAYER_SDPA: layer_step("sdpa"),
            BARE: bare_step(mask, "auto", seq),
            BARE_SDPA: bare_step(mask, "sdpa", seq),
        }

    def share_of_gain(took: Took) -> float:
        return (took[LAYER_SDPA] - took[OURS]) / (took[BARE_SDPA] - took[BARE])

    return Case(
        name,
        seq,
        make,
        (
            Check("seconds gained by the layer / by the operation", share_of_gain, 0.9),
            times_faster(LAYER_SDPA, OURS, None),
        ),
    )


def model_case(name: str, seq: int, phase: str, *, target: float, sliding_window: int | None = None) -> Case:
    """A model of transformers with grouped heads, by our attention and by its own."""

    def make() -> dict[str, Callable[[], object]]:
        return {
            word: model_call(seq, phase, implementation, sliding_window)
            for word, implementation in ((MODEL, "headwise"), (MODEL_SDPA, "sdpa"))
        }

    return Case(name, seq, make, (times_faster(MODEL_SDPA, MODEL, target),))


def make_layer(**settings: Any) -> headwise.MultiHeadAttention:
    """Return our layer, with the same weights each time."""
    torch.manual_seed(0)
    return headwise.MultiHeadAttention(WIDTH, NUM_HEADS, **settings)


def make_twin() -> nn.MultiheadAttention:
    """Return torch's layer with the same weights."""
    return headwise.to_torch(make_layer())


def step_of(forward: Callable[[Tensor], Tensor], module: nn.Module, seq: int) -> Callable[[], object]:
    """Return a forward and a backward pass of the sum of the output, of one text and all weights."""
    x = torch.randn(1, seq, WIDTH, requires_grad=True)
    learned = [x, *module.parameters()]
    return lambda: torch.autograd.grad(forward(x).sum(), learned)


def bare_step(mask: Mask, impl: str, seq: int) -> Callable[[], object]:
    """Return the same of the operation alone, on heads as a layer cuts them."""
    heads = [torch.randn(1, seq, NUM_HEADS, WIDTH // NUM_HEADS).transpose(1, 2).requires_grad_() for _ in range(3)]
    return lambda: torch.autograd.grad(headwise.attention(*heads, mask=mask, impl=impl).output.sum(), heads)


def model_call(seq: int, phase: str, implementation: str, sliding_window: int | None) -> Callable[[], object]:
    """Return a pass of a model of two layers with random weights."""
    import transformers

    register()
    settings = {
        "hidden_size": WIDTH,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "num_hidden_layers": 2,
        "intermediate_size": 2 * WIDTH,
        "vocab_size": 97,
        "max_position_embeddings": seq,
        "attn_implementation": implementation,
    }
    torch.manual_seed(0)
    model: nn.Module
    if sliding_window is None:
        model = transformers.LlamaModel(transformers.LlamaConfig(**settings))
    else:
        model = transformers.MistralModel(transformers.MistralConfig(**settings, sliding_window=sliding_window))
    ids = torch.randint(97, (1, seq))
    if phase == "training step":
        learned = list(model.train().parameters())
        return lambda: torch.autograd.grad(model(ids, use_cache=False).last_hidden_state.sum(), learned)

    def forward() -> object:
        with torch.no_grad():
            return model(ids, use_cache=False)

    model.eval()
    return forward


def memory_rows(seq: int) -> Iterator[dict[str, Any]]:
    """Yield the peak of a step as predicted and as tracked: within 1 %, so that grouped heads are never expanded."""
    settings: dict[str, dict[str, Any]] = {
        "all pairs": {},
        "window": {"mask": SlidingWindow(WINDOW)},
        "grouped": {"num_kv_heads": NUM_KV_HEADS, "mask": Causal()},
    }
    for name, chosen in settings.items():
        yield measure_memory(name, seq, **chosen)


def measure_memory(name: str, seq: int, **settings: Any) -> dict[str, Any]:
    """Compare the tracked peak of a step of a block with the one that its config foretells."""
    attention = headwise.AttentionConfig(embed_dim=WIDTH, num_heads=NUM_HEADS, **settings)
    feed_forward = headwise.FeedForwardConfig(embed_dim=WIDTH, hidden_dim=WIDTH)
    config = headwise.ModelConfig(
        name=name,
        model_type="headwise",
        kind="decoder",
        embed_dim=WIDTH,
        vocab_size=97,
        max_positions=seq,
        blocks=(headwise.BlockConfig(attention=attention, feed_forward=feed_forward),),
    )
    model, ids = headwise.build(config), torch.randint(97, (1, seq))
    model(ids).sum().backward()
    model.zero_grad(set_to_none=True)
    with headwise.track(model) as ledger:
        model(ids).sum().backward()
    tracked = ledger.bytes_at(ledger.peak)
    workload = headwise.Workload(batch=1, seq=seq, device="cpu", optimizer="sgd")
    predicted = headwise.predict_step(config, workload).peak_bytes
    value = predicted / tracked
    return {
        "case": f"memory, {name}",
        "seq": seq,
        "bytes": {"tracked": tracked, "predicted": predicted},
        "checks": [
            {
                "what": "predicted peak / tracked, 1 % off at most",
                "value": value,
                "target": 1,
                "holds": abs(value - 1) <= 0.01,
            }
        ],
    }
