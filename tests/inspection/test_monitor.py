import contextlib
import pickle

import pytest
import torch
import transformers
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from headwise.errors import ConfigError, UnsupportedError
from headwise.inspection.inspect import inspect_inputs
from headwise.inspection.monitoring.monitor import AttentionMonitor
from headwise.inspection.monitoring.results import WEIGHT_EDGES
from headwise.integrations import told_mask
from headwise.integrations.transformers_backend import register
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.nn.multihead import MultiHeadAttention

VOCAB, TOKENS = 53, 11
IDS = torch.randint(1, VOCAB, (3, TOKENS), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1] * 11, [1] * 5 + [0] * 6, [1] * 8 + [0] * 3])
PADDED = {"input_ids": IDS, "attention_mask": MASK}


def bert(cls=transformers.BertModel, **settings):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=15,
        num_attention_heads=3,
        num_hidden_layers=2,
        intermediate_size=7,
        initializer_range=0.5,
    )
    return cls._from_config(config, **settings)


def llama(**settings):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=12,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=4,
        num_hidden_layers=2,
        intermediate_size=7,
        initializer_range=0.5,
    )
    return transformers.LlamaModel._from_config(config, **settings)


def torch_encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(15, 3, dim_feedforward=7, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Own(nn.Module):
    """Two of headwise's layers with dropout, padding hidden by a mask of the call."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            MultiHeadAttention(12, 6, num_kv_heads=3, head_dim=4, mask=Causal(), dropout_p=0.1) for _ in range(2)
        )

    def forward(self, x, lengths):
        for layer in self.layers:
            x = x + layer(x, mask=KeyPadding(lengths))
        return x


def tokens(width):
    return torch.randn(3, TOKENS, width, generator=torch.Generator().manual_seed(1))


CASES = {
    "bert": (bert, PADDED),
    "llama": (llama, PADDED),
    "torch": (torch_encoder, {"src": tokens(15), "src_key_padding_mask": ~MASK.bool()}),
    "own": (Own, {"x": tokens(12), "lengths": MASK.sum(1)}),
}


def train(model, inputs, monitor=None, *, autocast=False, training=True):
    """Run one training step; return the loss, the gradients, and the random state behind it."""
    torch.manual_seed(7)
    model.train(training)
    model.zero_grad()
    with monitor.step() if monitor is not None else contextlib.nullcontext():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = model(**inputs)
        output = output if isinstance(output, torch.Tensor) else output[0]
        loss = output.float().square().mean()
        loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return loss.detach(), {name: grad.clone() for name, grad in gradients.items()}, torch.get_rng_state()


def assert_same(one, other):
    assert torch.equal(one[0], other[0])
    assert one[1].keys() == other[1].keys()
    assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])
    assert torch.equal(one[2], other[2])


@pytest.mark.parametrize("case", CASES)
def test_figures_are_those_of_inspect_where_all_rows_are_taken(case):
    make, inputs = CASES[case]
    model = make()
    monitor = AttentionMonitor(model, num_rows=3 * TOKENS)
    train(model, inputs, monitor, training=False)
    assert monitor.error is None
    expected = inspect_inputs(model, inputs, real_tokens=MASK.bool()).heads
    for got, head in zip(monitor.sample.heads, expected, strict=True):
        assert (got.layer, got.head) == (head.layer, head.head)
        for name in (
            *("entropy", "normalized_entropy", "sparsity", "sink_mass", "padding_mass"),
            *("mean_abs_score", "max_abs_score"),
        ):
            # float32 here, float64 there: sums of up to 11 terms and 33 queries, each off by a few of 2^-24
            assert getattr(got, name) == pytest.approx(getattr(head, name), rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("case", CASES)
def test_nothing_of_the_training_changes_by_a_bit(case):
    make, inputs = CASES[case]
    model = make()
    monitor = AttentionMonitor(model, num_rows=5)
    plain = train(model, inputs)
    assert_same(train(model, inputs, monitor), plain)
    assert monitor.error is None
    assert monitor.sample.num_queries <= 5


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_nothing_changes_under_any_implementation_or_precision(implementation, autocast):
    model = bert(attn_implementation=implementation)
    monitor = AttentionMonitor(model)
    plain = train(model, PADDED, autocast=autocast)
    assert_same(train(model, PADDED, monitor, autocast=autocast), plain)
    assert monitor.error is None
    assert model.config._attn_implementation == implementation


def test_a_mask_on_paper_stays_on_paper(monkeypatch):
    register()
    model = llama(attn_implementation="headwise")
    plain = train(model, PADDED)
    expected = inspect_inputs(llama().eval(), PADDED).heads
    monkeypatch.setattr(told_mask, "_table_of", None)  # calling it would fail
    monitor = AttentionMonitor(model, num_rows=3 * TOKENS)
    assert_same(train(model, PADDED, monitor), plain)
    assert monitor.error is None
    for got, head in zip(monitor.sample.heads, expected, strict=True):
        assert got.entropy == pytest.approx(head.entropy, rel=1e-5, abs=1e-6)


def test_a_model_that_is_compiled_later_is_told_and_trains_as_it_does_without():
    model = bert()
    said = []
    monitor = AttentionMonitor(model, every=1, warn=said.append)
    compiled = torch.compile(model, backend="eager")
    plain = train(compiled, PADDED)
    for _ in range(2):
        assert_same(train(compiled, PADDED, monitor), plain)
    assert len(said) == 1
    assert "none was heard in step 0 (attention of its own, or a graph of torch.compile)" in said[0]


def test_figures_are_of_float32_under_autocast():
    model, other = bert(), bert()
    for each, autocast in ((model, False), (other, True)):
        each.monitor = AttentionMonitor(each, num_rows=3 * TOKENS)
        train(each, PADDED, each.monitor, autocast=autocast)
    for plain, rounded in zip(model.monitor.sample.heads[:3], other.monitor.sample.heads[:3], strict=True):
        counts = sum(rounded.weight_counts)
        assert counts == pytest.approx(sum(plain.weight_counts))
        # queries and keys are off by 2^-9 of themselves each, scores of up to 12 so by 0.05, weights by 5 %
        assert rounded.entropy == pytest.approx(plain.entropy, rel=0.05)
    scores = torch.tensor([head.max_abs_score for head in other.monitor.sample.heads])
    assert not torch.equal(scores, scores.bfloat16().float())


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_gradient_checkpointing_runs_again_are_heard_once(reentrant):
    model = bert()
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    monitor = AttentionMonitor(model)
    plain = train(model, PADDED)
    assert_same(train(model, PADDED, monitor), plain)
    assert [(head.layer, head.head) for head in monitor.sample.heads] == [(n, h) for n in range(2) for h in range(3)]
    assert all(head.gradient_norm > 0 for head in monitor.sample.heads)


def test_parts_that_are_checkpointed_by_hand_are_heard_once():
    model = torch_encoder()

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = model.layers

        def forward(self, src, src_key_padding_mask):
            for layer in self.layers:
                src = checkpoint(layer, src, None, src_key_padding_mask, use_reentrant=False)
            return src

    whole = Checkpointed()
    monitor = AttentionMonitor(whole)
    train(whole, CASES["torch"][1], monitor)
    assert len(monitor.sample.heads) == 6


def test_of_several_micro_batches_the_first_is_looked_at_and_gradients_are_those_of_all():
    model = bert()
    monitor = AttentionMonitor(model, every=1, num_rows=3 * TOKENS)
    train(model, PADDED, monitor, training=False)
    first = monitor.sample
    with monitor.step():  # on top of the gradients that are there
        model(**PADDED)[0].square().mean().backward()
        model(input_ids=IDS.flip(1))[0].square().mean().backward()
    rows = slice(5, 10)
    block = model.encoder.layer[0].attention
    parts = [
        getattr(part, kind).grad[rows]
        for part in (block.self.query, block.self.key, block.self.value)
        for kind in ("weight", "bias")
    ]
    parts.append(block.output.dense.weight.grad[:, rows])
    expected = torch.cat([part.flatten() for part in parts]).norm().item()
    for both, one in zip(monitor.sample.heads, first.heads, strict=True):
        assert both.entropy == pytest.approx(one.entropy, rel=1e-5)  # rows drawn in another order: a few of 2^-24
    # sums of 300 squares in float32, in another order
    assert monitor.sample.heads[1].gradient_norm == pytest.approx(expected, rel=2e-5)
    assert monitor.sample.heads[1].gradient_norm != first.heads[1].gradient_norm


def test_a_module_whose_parts_are_called_one_by_one_is_heard_whole():
    model = Own()
    monitor = AttentionMonitor(model)
    x = tokens(12)
    with monitor.step():
        for layer in model.layers:
            x = x + layer(x)
        x.square().mean().backward()
    assert [(head.layer, head.head) for head in monitor.sample.heads] == [(n, h) for n in range(2) for h in range(6)]


def test_a_hugging_face_model_is_heard_inside_of_another_module():
    model = nn.ModuleDict({"one": bert(), "other": llama()})
    monitor = AttentionMonitor(model)
    with monitor.step():
        (model["one"](**PADDED)[0].mean() + model["other"](**PADDED)[0].mean()).backward()
    assert len(monitor.sample.heads) == 6 + 12
    assert {head.stack for head in monitor.sample.heads} == {"self"}


@pytest.mark.parametrize("decoder_len", [7, TOKENS])
def test_encoder_decoder_and_cross_attention_are_told_apart(decoder_len):
    config = transformers.BartConfig(
        vocab_size=VOCAB,
        d_model=12,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=3,
        encoder_ffn_dim=7,
        decoder_ffn_dim=7,
    )
    model = transformers.BartModel(config)
    monitor = AttentionMonitor(model, num_rows=3 * TOKENS)
    train(model, {**PADDED, "decoder_input_ids": IDS[:, :decoder_len]}, monitor)
    assert monitor.error is None
    assert [head.stack for head in monitor.sample.heads] == ["encoder"] * 2 + ["decoder"] * 3 + ["cross"] * 3
    assert monitor.alarms == []
    # the attention_mask is of the encoder's tokens: in the decoder all of three texts count
    pairs = [sum(monitor.sample.heads[head].weight_counts) for head in (0, 2)]
    assert pairs == pytest.approx([int((MASK.sum(1) ** 2).sum()), 3 * decoder_len * (decoder_len + 1) // 2])


def test_steps_between_samples_leave_no_trace():
    model = bert()
    monitor = AttentionMonitor(model, every=3)
    seen = []
    for _ in range(7):
        with monitor.step():
            hooks = sum(len(part._forward_pre_hooks) for part in model.modules())
            model(**PADDED)[0].mean().backward()
        seen.append((monitor.sample.step, hooks > 0))
    assert seen == [(0, True), (0, False), (0, False), (3, True), (3, False), (3, False), (6, True)]


def test_the_model_is_as_it_was_after_close():
    model = bert()
    before = pickle.dumps(model)
    names = list(model.state_dict())
    monitor = AttentionMonitor(model)
    monitor.before_step()
    model(**PADDED)[0].mean().backward()
    monitor.close()
    model.zero_grad()
    assert pickle.dumps(model) == before
    assert list(model.state_dict()) == names
    assert torch.backends.mha.get_fastpath_enabled()


def test_an_error_in_the_body_reaches_the_caller_and_the_hooks_go():
    model = bert()
    before = pickle.dumps(model)
    monitor = AttentionMonitor(model, every=1)
    with pytest.raises(KeyError, match="mine"), monitor.step():
        raise KeyError("mine")
    assert pickle.dumps(model) == before
    assert monitor.error is None
    train(model, PADDED, monitor)
    assert monitor.sample is not None


def broken_log(values):
    raise OSError("disk full")


def test_an_error_inside_of_the_monitor_is_said_once_and_the_training_goes_on():
    model = bert()
    said = []
    monitor = AttentionMonitor(model, every=1, log=broken_log, warn=said.append)
    plain = train(model, PADDED)
    for _ in range(3):
        assert_same(train(model, PADDED, monitor), plain)
    assert said == ["the attention monitor stopped, training goes on without it: OSError: disk full"]
    assert isinstance(monitor.error, OSError)


def test_a_layer_that_cannot_be_read_stops_the_monitor_and_not_the_training():
    model = torch_encoder()
    for layer in model.layers:
        layer.self_attn.add_zero_attn = True
    said = []
    monitor = AttentionMonitor(model, every=1, warn=said.append)
    inputs = {"src": tokens(15)}
    plain = train(model, inputs)
    for _ in range(2):
        assert_same(train(model, inputs, monitor), plain)
    assert len(said) == 1
    assert "add_zero_attn" in said[0]
    assert not model.layers[0].self_attn._forward_pre_hooks


def test_a_warning_that_cannot_be_given_does_not_stop_the_training():
    model = bert()
    monitor = AttentionMonitor(model, log=broken_log, warn=broken_log)
    train(model, PADDED, monitor)
    assert isinstance(monitor.error, OSError)


def test_a_step_without_attention_is_said():
    said = []
    monitor = AttentionMonitor(bert(), warn=said.append)
    with monitor.step():
        pass
    assert "none was heard in step 0" in said[0]


def test_an_implementation_whose_masks_cannot_be_read_is_refused_and_kept():
    model = bert()
    model.config._attn_implementation_internal = "flash_attention_2"
    said = []
    monitor = AttentionMonitor(model, warn=said.append)
    with monitor.step():
        assert model.config._attn_implementation == "flash_attention_2"
    assert 'got flash_attention_2: train with attn_implementation="sdpa"' in said[0]


def test_a_compiled_model_is_refused():
    model = bert()
    with pytest.raises(UnsupportedError, match=r"not inside a graph of torch\.compile; got a compiled BertModel"):
        AttentionMonitor(torch.compile(model, backend="eager"))
    model.encoder.compile(backend="eager")
    with pytest.raises(UnsupportedError, match="got a compiled BertEncoder"):
        AttentionMonitor(model)


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"every": 0}, "every must be between 1"), ({"num_rows": 0}, "num_rows must be"), ({"log": 3}, "log must be")],
)
def test_wrong_settings_are_refused(settings, text):
    with pytest.raises(ConfigError, match=text):
        AttentionMonitor(bert(), **settings)


def test_the_histogram_counts_the_weights_of_every_real_query():
    model = bert(attn_implementation="eager").eval()
    monitor = AttentionMonitor(model, num_rows=3 * TOKENS)
    with monitor.step():
        weights = model(**PADDED, output_attentions=True).attentions[0]
        weights.mean().backward()
    pairs = (MASK[:, :, None] * MASK[:, None, :]).bool()
    for head in monitor.sample.heads[:3]:
        counts, _ = torch.histogram(weights[:, head.head][pairs].detach(), torch.tensor(WEIGHT_EDGES))
        assert list(head.weight_counts) == counts.tolist()


def test_the_histogram_of_drawn_queries_stands_for_all():
    model = bert()
    monitor = AttentionMonitor(model, num_rows=6)
    train(model, PADDED, monitor)
    # every real query of these texts sees as many keys as any other: the number of pairs is exact
    assert sum(monitor.sample.heads[0].weight_counts) == pytest.approx(int((MASK.sum(1) ** 2).sum()))


class Products(TorchDispatchMode):
    """Adds up the bytes that operations write and notes the largest result."""

    def __init__(self):
        super().__init__()
        self.num_bytes = self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor) and not func.is_view:
                self.num_bytes += tensor.numel() * tensor.element_size()
                self.largest = max(self.largest, tensor.numel())
        return result


def count(model, ids, monitor):
    """Return the FLOPs and the bytes written of a step."""
    with FlopCounterMode(display=False) as flops, Products() as products:
        train(model, {"input_ids": ids}, monitor)
    return flops.get_total_flops(), products.num_bytes


@pytest.mark.parametrize("seq_len", [64, 128, 256])
def test_a_sample_adds_the_scores_of_the_drawn_queries_and_no_square_of_the_length(seq_len):
    num_rows, width, heads, layers = 16, 15, 3, 2
    ids = torch.randint(1, VOCAB, (2, seq_len), generator=torch.Generator().manual_seed(0))
    model = bert()
    flops, num_bytes = count(model, ids, None)
    sampled_flops, sampled_bytes = count(model, ids, AttentionMonitor(model, num_rows=num_rows))
    assert sampled_flops - flops == layers * 2 * num_rows * seq_len * width
    # 24 numbers of 4 bytes for each head, drawn query and key at most, and what does not depend on the length
    assert sampled_bytes - num_bytes < layers * (24 * 4 * num_rows * heads * seq_len + 100_000)


def test_a_sample_is_a_small_part_of_a_step_so_that_one_in_fifty_costs_below_one_percent():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=768, num_attention_heads=12, num_hidden_layers=1, intermediate_size=3072
    )
    model = transformers.BertModel(config)
    ids = torch.randint(1, VOCAB, (1, 256), generator=torch.Generator().manual_seed(0))
    flops, num_bytes = count(model, ids, None)
    sampled_flops, sampled_bytes = count(model, ids, AttentionMonitor(model))
    # one layer of BERT-base: of the FLOPs of a step under 1 %, of the bytes that it writes under a quarter
    assert (sampled_flops - flops) / flops < 0.01
    assert (sampled_bytes - num_bytes) / num_bytes < 0.25


def heads_of(model, inputs, **settings):
    monitor = AttentionMonitor(model, **settings)
    train(model, inputs, monitor)
    assert monitor.error is None
    return monitor


def scale_head(layer, head, factor):
    """Multiply the queries of one head of a BERT layer."""
    rows = slice(head * 5, head * 5 + 5)
    with torch.no_grad():
        layer.attention.self.query.weight[rows] *= factor
        layer.attention.self.query.bias[rows] *= factor


def test_a_healthy_model_gives_no_alarm():
    assert heads_of(bert(), PADDED).alarms == []
    assert heads_of(llama(), PADDED).alarms == []
    assert not any(head.is_dead for head in heads_of(bert(), PADDED).sample.heads)


def test_a_collapsed_head_is_told_once():
    model = bert()
    scale_head(model.encoder.layer[1], 2, 1e4)
    said = []
    monitor = AttentionMonitor(model, every=1, warn=said.append)
    for _ in range(3):
        train(model, PADDED, monitor)
    collapsed = [(head.layer, head.head) for head in monitor.sample.heads if head.is_collapsed]
    assert collapsed == [(1, 2)]
    assert len(said) == len(monitor.alarms) == 1
    alarm = monitor.alarms[0]
    assert (alarm.step, alarm.layer, alarm.head, alarm.kind) == (0, 1, 2, "entropy collapse")
    assert alarm.figure == pytest.approx(monitor.sample.heads[5].normalized_entropy, abs=0.01)
    assert said[0].startswith("step 0, layer 1, head 2: entropy collapse: the entropy is ")
    assert "lower the learning rate" in said[0]


def test_texts_of_one_token_leave_no_choice_and_are_no_collapse():
    assert heads_of(bert(), {"input_ids": IDS[:, :1]}).alarms == []


def test_queries_that_see_themselves_alone_are_no_collapse():
    layer = MultiHeadAttention(12, 3, mask=SlidingWindow(1))
    monitor = AttentionMonitor(layer)
    with monitor.step():
        layer(tokens(12)).square().mean().backward()
    assert [head.entropy for head in monitor.sample.heads] == [0.0] * 3
    assert monitor.alarms == []


@pytest.mark.parametrize("memory_len", [5, TOKENS])
def test_the_keys_of_cross_attention_are_other_tokens_than_those_that_are_told_of(memory_len):
    torch.manual_seed(0)
    model = nn.TransformerDecoderLayer(15, 3, dim_feedforward=7, batch_first=True)
    monitor = AttentionMonitor(model)
    with monitor.step(real_tokens=MASK.bool()):
        memory = tokens(15)[:, :memory_len].flip(2)
        model(tokens(15), memory, tgt_key_padding_mask=~MASK.bool()).square().mean().backward()
    assert [head.stack for head in monitor.sample.heads] == ["self"] * 3 + ["cross"] * 3
    assert [head.padding_mass for head in monitor.sample.heads] == [0.0] * 6


def test_attention_to_padding_is_told_where_the_mask_was_forgotten():
    ids = IDS.masked_fill(MASK == 0, 0)
    monitor = heads_of(bert(), {"input_ids": ids})
    assert {alarm.kind for alarm in monitor.alarms} == {"attention to padding"}
    assert "attention_mask=" in monitor.alarms[0].to_text()
    assert heads_of(bert(), {"input_ids": ids, "attention_mask": MASK}).alarms == []


def test_causal_models_do_not_read_the_padding_behind_a_text():
    model = llama()
    ids = IDS.masked_fill(MASK == 0, 0)
    assert heads_of(model, {"input_ids": ids}, padding_id=0).alarms == []
    monitor = heads_of(model, {"input_ids": ids.flip(1)}, padding_id=0)
    assert {alarm.kind for alarm in monitor.alarms} == {"attention to padding"}


def test_padding_can_be_told_to_the_monitor():
    model = torch_encoder()
    monitor = AttentionMonitor(model)
    with monitor.step(real_tokens=MASK.bool()):
        model(tokens(15)).mean().backward()
    assert {alarm.kind for alarm in monitor.alarms} == {"attention to padding"}
    assert monitor.alarms[0].figure == pytest.approx(monitor.sample.heads[0].padding_mass)


@pytest.mark.parametrize(("factor", "is_told"), [(1.0, False), (300.0, True)])
def test_scores_near_the_end_of_half_precision_are_told(factor, is_told):
    layer = MultiHeadAttention(12, 3).half()
    with torch.no_grad():
        layer.q_proj.weight[:4] *= factor
        layer.k_proj.weight[:4] *= factor
    model = nn.ModuleList([layer])
    monitor = AttentionMonitor(model)
    with monitor.step():
        layer(tokens(12).half()).float().mean().backward()
    overflows = [(each.head, each.kind) for each in monitor.alarms if each.kind == "score overflow"]
    assert overflows == ([(0, "score overflow")] if is_told else [])
    if is_told:
        assert "float16 ends at 6.55e+04" in monitor.alarms[-1].text
        # the scale is 1/2: the product, before it is scaled, is what float16 must hold
        assert monitor.alarms[-1].figure == pytest.approx(2 * monitor.sample.heads[0].max_abs_score)


def test_a_head_that_gets_no_gradient_is_dead():
    model = bert()
    block, rows = model.encoder.layer[0].attention, slice(5, 10)
    with torch.no_grad():
        for part in (block.self.query, block.self.key, block.self.value):
            part.weight[rows], part.bias[rows] = 0.0, 0.0
        block.output.dense.weight[:, rows] = 0.0
    monitor = heads_of(model, PADDED)
    assert [(head.layer, head.head) for head in monitor.sample.heads if head.is_dead] == [(0, 1)]


def test_without_gradients_nothing_is_said_of_them():
    model = bert().requires_grad_(False)
    model.embeddings.requires_grad_(True)
    monitor = heads_of(model, PADDED)
    assert all(head.gradient_norm is None and not head.is_dead for head in monitor.sample.heads)
