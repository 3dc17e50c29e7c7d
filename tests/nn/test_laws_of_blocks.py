"""Blocks and language models of any drawn kind: one meaning in every mode, each row by itself, padded or not."""

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

import headwise
from headwise.config.attention import ALiBi, AttentionConfig, Rotary, T5Bias
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.masks.patterns import Causal, SlidingWindow

EMBED, VOCAB = 12, 17
# float64: what rounds is the order of sums, and angles and slopes, which are float32 on both sides alike
EXACT = {"rtol": 1e-9, "atol": 1e-9}


# What is drawn are plain values: as configs are made, the type checks draw numbers of their own.
drawn_blocks = st.fixed_dictionaries(
    {
        "heads": st.sampled_from([(3, 1), (3, 3), (6, 2), (6, 3)]),
        "head_dim": st.sampled_from([2, 4, 6]),
        "qk_norm": st.booleans(),
        "sink": st.booleans(),
        "softcap": st.sampled_from([None, 3.0]),
        "projection_bias": st.sampled_from([True, False, "qkv"]),
        "position": st.sampled_from([None, Rotary(), Rotary(pairing="interleaved"), ALiBi(), T5Bias()]),
        "mask": st.sampled_from([Causal(), SlidingWindow(3)]),
        "hidden_dim": st.sampled_from([5, 19]),
        "gated": st.booleans(),
        "activation": st.sampled_from(["gelu", "silu", "relu", "gelu_new"]),
        "bias": st.booleans(),
        "norm": st.sampled_from(["layernorm", "rmsnorm"]),
        "placement": st.sampled_from(["pre", "post", "both", "output", "parallel", "parallel, one norm"]),
    }
)


def describe(drawn):
    """Return the config of a drawn block."""
    num_heads, num_kv_heads = drawn["heads"]
    names = ("head_dim", "qk_norm", "sink", "softcap", "projection_bias", "position", "mask")
    attention = AttentionConfig.from_keywords(
        embed_dim=EMBED, num_heads=num_heads, num_kv_heads=num_kv_heads, **{name: drawn[name] for name in names}
    )
    names = ("hidden_dim", "gated", "activation", "bias")
    is_parallel = drawn["placement"].startswith("parallel")
    return BlockConfig(
        attention=attention,
        feed_forward=FeedForwardConfig(embed_dim=EMBED, **{name: drawn[name] for name in names}),
        norm=drawn["norm"],
        norm_placement="pre" if is_parallel else drawn["placement"],
        parallel=is_parallel,
        shared_norm=drawn["placement"] == "parallel, one norm",
    )


def randomise(module):
    torch.manual_seed(1)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return module.double()


def equation(block, x):
    """The block as its docstring writes it."""
    kind, attend, think = block.config.norm_placement, block.attention, block.feed_forward
    norms = (block.attention_norm, block.attention_output_norm, block.feed_forward_norm, block.feed_forward_output_norm)
    before, after, before_thought, after_thought = norms
    if block.config.parallel:
        return x + attend(before(x)) + think(before_thought(x))
    if kind == "post":
        x = before(x + attend(x))
        return before_thought(x + think(x))
    x = x + (
        after(attend(before(x))) if kind == "both" else after(attend(x)) if kind == "output" else attend(before(x))
    )
    if kind == "pre":
        return x + think(before_thought(x))
    return x + after_thought(think(before_thought(x) if kind == "both" else x))


@settings(max_examples=40, deadline=None)
@given(drawn=drawn_blocks, batch=st.integers(1, 3), seq_len=st.integers(1, 9))
def test_a_block_is_its_equation_in_every_mode_and_row_by_row(drawn, batch, seq_len):
    config = describe(drawn)
    x = torch.randn(batch, seq_len, EMBED, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found = []
    for checkpoint in ("none", "selective", "full"):
        block, leaf = randomise(headwise.Block(config, checkpoint=checkpoint)), x.clone().requires_grad_()
        output = block.train()(leaf)
        gradients = torch.autograd.grad(output.square().sum(), [leaf, *block.parameters()])
        found.append((output.detach(), *gradients))
        torch.testing.assert_close(block.eval()(x), output, **EXACT)
    expected = equation(block, x)
    torch.testing.assert_close(found[0][0], expected, **EXACT)
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, same, **EXACT)
    for row in range(batch):
        torch.testing.assert_close(block(x[row : row + 1])[0], expected[row], **EXACT)
    if seq_len > 1:  # no token reads a later one
        changed = x.clone()
        changed[:, -1] += 1
        assert torch.equal(block(changed)[:, :-1], block(x)[:, :-1])


@settings(max_examples=25, deadline=None)
@given(
    blocks=st.lists(drawn_blocks, min_size=1, max_size=2),
    has_table=st.booleans(),
    tied=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_language_model_means_the_same_padded_scored_and_cached(blocks, has_table, tied, seed):
    blocks = [describe(drawn) for drawn in blocks]
    config = headwise.ModelConfig(
        name="drawn",
        model_type="headwise",
        kind="decoder",
        embed_dim=EMBED,
        vocab_size=VOCAB,
        max_positions=16,
        position_table_size=16 if has_table else 0,
        blocks=tuple(blocks),
        final_norm=True,
        head=headwise.OutputHead(kind="language_model", num_outputs=VOCAB, tied=tied),
    )
    model = randomise(headwise.build(config)).eval()
    generator = torch.Generator().manual_seed(seed)
    ids, lengths = torch.randint(VOCAB, (2, 7), generator=generator), torch.tensor([7, 4])
    alone = [model(ids[row : row + 1, 7 - length :])[0] for row, length in enumerate(lengths.tolist())]
    keep = torch.arange(7) >= 7 - lengths.unsqueeze(1)
    reads = has_table or any(block.attention.position is not None for block in blocks)
    positions = (keep.long().cumsum(1) - 1).clamp(min=0) if reads else None
    padded = model(ids, mask=headwise.KeyPadding(lengths, side="left", padded_len=7), positions=positions)
    with torch.no_grad():
        cached = model(ids, cache=model.make_cache(), real_tokens=keep)
    for row, expected in enumerate(alone):
        torch.testing.assert_close(padded[row, keep[row]], expected, **EXACT)
        torch.testing.assert_close(cached[row, keep[row]], expected, **EXACT)
    log_probs = alone[0][:-1].float().log_softmax(-1)[torch.arange(6), ids[0, 1:]]
    # float32, of scores up to some hundreds: a logarithm is off by some 1e-5
    torch.testing.assert_close(model.score(ids[:1])[0], log_probs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.loss(ids[:1]), -log_probs.mean(), rtol=1e-4, atol=1e-4)
