"""Listening to headwise's own attention: what is heard is what the layers return when they are asked for weights."""

from threading import Event, Thread

import pytest
import torch
import transformers
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headwise.caches.slots import GrowingCache
from headwise.config.attention import ALiBi, Rotary, T5Bias
from headwise.convert.seq2seq import seq2seq_from_huggingface
from headwise.errors import ModelError
from headwise.inspection.capture.own_attention import observe_own_attention
from headwise.inspection.capture.readers import open_reader, open_stacks
from headwise.integrations import layer_weights
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.nn.c3tr import C3TR
from headwise.nn.latent import LatentAttention
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.torch_multihead import TorchMultiheadAttention
from headwise.ops.attention import attention
from headwise.ops.listening import listening

BATCH, TOKENS, KEYS, WIDTH, HEADS = 2, 13, 11, 12, 6
LENGTHS = torch.tensor([13, 5])
# Both sides compute in float64; a weight is off by a few eps (2e-16) of scores below 100.
CLOSE = {"rtol": 0, "atol": 1e-12}


def tokens(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def wide(module):
    """The module in float64 with random parameters, so that nothing that is 0 at first hides."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.6)
    return module.double().eval()


def hear(module, *args, **keywords):
    calls = []
    with torch.no_grad(), observe_own_attention(module, calls.append):
        output = module(*args, **keywords)
    return calls, output


def weights_of(call):
    return torch.cat([block.weights for block in call.weights.blocks()], dim=2)


def visible_of(call):
    blocks = [block.visible.expand(*block.weights.shape) for block in call.weights.blocks()]
    return torch.cat(blocks, dim=2)


LAYERS = {
    "plain": {},
    "window": {"mask": SlidingWindow(3)},
    "grouped, softcap, sink": {"num_kv_heads": 2, "softcap": 1.5, "sink": True, "mask": Causal()},
    "rotary": {"position": Rotary(), "head_dim": 4, "mask": Causal()},
    "alibi": {"position": ALiBi(), "mask": Causal()},
    "t5": {"position": T5Bias(num_buckets=6, max_distance=7), "scale": 1.0},
}


@pytest.mark.parametrize("rows", [TOKENS, 3])
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_what_is_heard_is_what_the_layer_returns_in_blocks_of_any_size(kind, is_padded, rows, monkeypatch):
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", rows * BATCH * HEADS * TOKENS)
    layer = wide(MultiHeadAttention(WIDTH, HEADS, **LAYERS[kind]))
    x = tokens(BATCH, TOKENS, WIDTH)
    mask = KeyPadding(LENGTHS) if is_padded else None
    (call,), output = hear(layer, x, mask=mask)
    with torch.no_grad():
        asked = layer.attend(x, mask=mask, return_weights=True)
        assert torch.equal(output, layer(x, mask=mask))
    assert call.module is layer
    assert not call.is_cross
    torch.testing.assert_close(weights_of(call), asked.weights, **CLOSE)
    assert torch.equal(visible_of(call), asked.weights > 0)
    real = torch.arange(TOKENS) < LENGTHS[:, None]
    assert (torch.equal(call.weights.real_tokens, real)) if is_padded else (call.weights.real_tokens is None)


def test_cross_attention_is_told_also_where_the_lengths_are_equal():
    layer = wide(MultiHeadAttention(WIDTH, HEADS, key_dim=7))
    x = tokens(BATCH, TOKENS, WIDTH)
    for key in (tokens(BATCH, KEYS, 7), tokens(BATCH, TOKENS, 7)):
        (call,), _ = hear(layer, x, key)
        assert call.is_cross
        torch.testing.assert_close(weights_of(call), layer.attend(x, key, return_weights=True).weights, **CLOSE)


@torch.no_grad()
def test_a_token_read_with_a_cache_sees_what_it_saw_in_the_whole_text():
    layer = wide(MultiHeadAttention(WIDTH, HEADS, position=ALiBi(), mask=SlidingWindow(4)))
    x, cache = tokens(BATCH, TOKENS, WIDTH), GrowingCache()
    layer(x[:, :9], cache=cache)
    (call,), _ = hear(layer, x[:, 9:10], cache=cache)
    assert not call.is_cross
    whole = layer.attend(x, return_weights=True).weights
    torch.testing.assert_close(weights_of(call)[..., :10], whole[:, :, 9:10, :10], **CLOSE)
    assert not weights_of(call)[..., 10:].any()


@pytest.mark.parametrize("keywords", [{}, {"add_bias_kv": True, "add_zero_attn": True}])
def test_the_drop_in_for_torchs_layer_is_heard_once(keywords):
    layer = wide(TorchMultiheadAttention(WIDTH, HEADS, batch_first=True, **keywords))
    x = tokens(BATCH, TOKENS, WIDTH)
    padding = torch.arange(TOKENS) >= LENGTHS[:, None]
    (call,), _ = hear(layer, x, x, x, key_padding_mask=padding, need_weights=False)
    with torch.no_grad():
        _, expected = layer(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    torch.testing.assert_close(weights_of(call), expected, **CLOSE)
    shown = []
    inputs = {"query": x, "key": x, "value": x}
    open_reader(layer, inputs).read(inputs, lambda number, weights: shown.append(weights.shape))
    assert shown == [(BATCH, HEADS, TOKENS, TOKENS + len(keywords))]


def test_a_bias_that_is_a_tensor_is_read_in_blocks(monkeypatch):
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 3 * BATCH * HEADS * TOKENS)
    layer = wide(TorchMultiheadAttention(WIDTH, HEADS, batch_first=True))
    x, bias = tokens(BATCH, TOKENS, WIDTH), tokens(BATCH * HEADS, TOKENS, TOKENS, seed=2)
    (call,), _ = hear(layer, x, x, x, attn_mask=bias, need_weights=False)
    with torch.no_grad():
        _, expected = layer(x, x, x, attn_mask=bias, average_attn_weights=False)
    torch.testing.assert_close(weights_of(call), expected, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("by_latents", [False, True])
def test_latent_attention_shows_the_weights_that_its_equation_has(by_latents, monkeypatch):
    nope, rope, rank, value = 5, 4, 17, 7
    sizes = {"kv_lora_rank": rank, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": value}
    layer = wide(LatentAttention(WIDTH, HEADS, q_lora_rank=None, **sizes))
    monkeypatch.setattr(layer, "_is_less_by_latents", lambda *_: by_latents)
    x = tokens(BATCH, TOKENS, WIDTH)
    (call,), _ = hear(layer, x)
    down, places = layer.kv_down_proj(x), torch.arange(TOKENS)
    query = layer.q_proj(x).unflatten(-1, (HEADS, nope + rope)).transpose(1, 2)
    up = layer.kv_up_proj(layer.kv_norm(down[..., :rank])).unflatten(-1, (HEADS, nope + value)).transpose(1, 2)
    turned_q = layer.rotary(query[..., nope:], places)
    turned_k = layer.rotary(down[..., rank:].unsqueeze(1), places)
    scores = query[..., :nope] @ up[..., :nope].mT + turned_q @ turned_k.mT
    hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    expected = (scores * (nope + rope) ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    torch.testing.assert_close(weights_of(call), expected, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("compatible", [False, True])
def test_the_heads_of_a_c3tr_show_what_its_layer_attends_with(compatible):
    block = wide(C3TR(5, 16, 2, num_heads=4, compatible=compatible))
    for part in block.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_var.fill_(1.0)
    x = tokens(BATCH, 5, 3, 2)
    shown, expected = [], []

    def keep(layer, args, keywords, output):
        if compatible:
            with torch.no_grad():
                expected.append(torch_weights(layer, *args))
        else:
            with listening(None):
                expected.append(layer.attend(*args, **keywords, return_weights=True).weights)

    kind = nn.MultiheadAttention if compatible else MultiHeadAttention
    layers = [part for part in block.modules() if isinstance(part, kind)]
    reader = open_reader(block, (x,))
    handles = [layer.register_forward_hook(keep, with_kwargs=True) for layer in layers]
    reader.read((x,), lambda number, weights: shown.append(torch.cat([b.weights for b in weights.blocks()], dim=2)))
    for handle in handles:
        handle.remove()
    assert len(shown) == 2
    assert reader.notes == ()
    torch.testing.assert_close(shown, expected, **CLOSE)


def torch_weights(layer, query, key, value):
    """What torch's layer attends with, by its function, which passes hooks by."""
    return nn.functional.multi_head_attention_forward(
        query,
        key,
        value,
        layer.embed_dim,
        layer.num_heads,
        layer.in_proj_weight,
        layer.in_proj_bias,
        None,
        None,
        False,
        0.0,
        layer.out_proj.weight,
        layer.out_proj.bias,
        average_attn_weights=False,
    )[1]


def test_an_encoder_decoder_of_ours_shows_what_t5_does():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=19,
        d_model=12,
        d_kv=5,
        d_ff=17,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=3,
        relative_attention_num_buckets=6,
        relative_attention_max_distance=7,
        feed_forward_proj="gated-gelu",
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    theirs = transformers.T5ForConditionalGeneration(config).double().eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)
    ours = seq2seq_from_huggingface(theirs)
    ids = torch.randint(2, 19, (BATCH, TOKENS), generator=torch.Generator().manual_seed(4))
    real = torch.arange(TOKENS) < LENGTHS[:, None]
    inputs = {"source_ids": ids, "target_ids": ids[:, :7], "real_source": real}
    reader = open_stacks(ours, inputs)
    assert [(stack.name, stack.num_layers) for stack in reader.stacks] == [("encoder", 2), ("decoder", 3), ("cross", 3)]
    shown = {stack.name: [] for stack in reader.stacks}

    def keep(stack, number, weights):
        shown[stack].append(torch.cat([block.weights for block in weights.blocks()], dim=2))

    reader.read(inputs, keep)
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        output = theirs(input_ids=ids, attention_mask=real.long(), decoder_input_ids=ids[:, :7], output_attentions=True)
    rows = real[:, None, :].expand(BATCH, 3, TOKENS)
    # transformers takes the mean square of its norms in float32 (6e-8), of states that give scores of some tens
    close = {"rtol": 0, "atol": 1e-5}
    for got, want in zip(shown["encoder"], output.encoder_attentions, strict=True):
        torch.testing.assert_close(got[rows], want[rows], **close)
    torch.testing.assert_close(shown["decoder"], list(output.decoder_attentions), **close)
    torch.testing.assert_close(shown["cross"], list(output.cross_attentions), **close)


class Bare(nn.Module):
    """A module of a user's that calls the operation itself."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return attention(q, k, v, mask=Causal()).output.transpose(1, 2).flatten(2)


def test_a_module_that_calls_the_operation_itself_is_read():
    module, x = Bare(), torch.randn(BATCH, TOKENS, WIDTH)
    shown = []
    open_reader(module, (x,)).read((x,), lambda number, weights: shown.append(weights))
    q, k, v = module.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    expected = attention(q, k, v, mask=Causal(), return_weights=True).weights
    (layer,) = shown
    torch.testing.assert_close(torch.cat([block.weights for block in layer.blocks()], dim=2), expected)


def test_layers_of_several_kinds_in_one_model_are_numbered_together():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.ours = MultiHeadAttention(WIDTH, HEADS)
            self.theirs = nn.MultiheadAttention(WIDTH, 3, batch_first=True)
            self.bare = Bare()

        def forward(self, x):
            x = self.ours(x)
            x = self.theirs(x, x, x)[0]
            return self.bare(x)

    x = torch.randn(BATCH, TOKENS, WIDTH)
    shapes = []
    open_reader(Mixed(), (x,)).read((x,), lambda number, weights: shapes.append((number, weights.shape[1])))
    assert shapes == [(0, HEADS), (1, 3), (2, HEADS)]


class Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that an operation returned."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self.elements = max(self.elements, each.numel())
        return result


def test_nobody_makes_a_table_of_all_pairs(monkeypatch):
    long, block = 257, 2**13
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", block)
    layer = MultiHeadAttention(WIDTH, HEADS, position=ALiBi(), mask=SlidingWindow(9), impl="blocked").eval()
    x = torch.randn(1, long, WIDTH)
    inputs = {"query": x, "mask": KeyPadding(torch.tensor([long]))}
    reader = open_reader(layer, inputs)
    with torch.no_grad(), Largest() as plain:
        layer(**inputs)
    with Largest() as listening:
        reader.read(inputs, lambda number, weights: [None for _ in weights.blocks()])
    assert listening.elements == max(plain.elements, block // (HEADS * long) * HEADS * long)
    assert listening.elements < long * long


@pytest.mark.parametrize("when", ["listener", "model"])
def test_hooks_and_listeners_are_gone_after_a_failure(when):
    layer = MultiHeadAttention(WIDTH, HEADS)
    x = torch.randn(BATCH, TOKENS, WIDTH)
    calls = []

    def fail(call):
        calls.append(call)
        raise RuntimeError("listener")

    with pytest.raises((RuntimeError, ValueError)), observe_own_attention(layer, fail):
        layer(x if when == "listener" else x[..., :3])
    assert len(calls) == (when == "listener")
    assert not layer._forward_hooks
    assert not layer._forward_pre_hooks
    layer(x)
    assert len(calls) == (when == "listener")
    # the stack of running layers is empty again: the next call is told apart as ever
    (call,), _ = hear(layer, x)
    assert call.module is layer


def test_a_module_of_cross_attention_alone_says_by_which_name_it_is_read():
    layer = MultiHeadAttention(WIDTH, HEADS)
    inputs = (torch.randn(BATCH, TOKENS, WIDTH), torch.randn(BATCH, KEYS, WIDTH))
    with pytest.raises(ModelError, match=r"none did: give stack, one of 'cross' \(1 layer\)"):
        open_reader(layer, inputs)
    shapes = []
    open_reader(layer, inputs, stack="cross").read(inputs, lambda number, weights: shapes.append(weights.shape))
    assert shapes == [(BATCH, HEADS, TOKENS, KEYS)]


def test_a_layer_that_another_thread_runs_meanwhile_is_not_told_as_the_one_that_calls():
    torch.manual_seed(0)
    layer = MultiHeadAttention(embed_dim=WIDTH, num_heads=HEADS)
    is_inside, may_end = Event(), Event()
    calls = []

    def wait(*_):
        is_inside.set()
        assert may_end.wait(30)

    with observe_own_attention(layer, calls.append):
        layer.register_forward_pre_hook(wait)
        other = Thread(target=layer, args=(torch.randn(1, TOKENS, WIDTH),))
        other.start()
        assert is_inside.wait(30)
        q = torch.randn(1, HEADS, TOKENS, 2)
        attention(q, q, q)  # of no layer
        may_end.set()
        other.join()
    assert [call.module for call in calls] == [None]
