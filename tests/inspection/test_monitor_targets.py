"""The training monitor of an encoder-decoder: whose padding is whose."""

import pytest
import torch
import transformers

from headwise.inspection.inspect import inspect_stacks_of_inputs
from headwise.inspection.monitoring.monitor import AttentionMonitor
from headwise.inspection.monitoring.real_tokens import real_targets_of

VOCAB, SOURCE, TARGET = 53, 7, 5
GENERATOR = torch.Generator().manual_seed(3)
IDS = torch.randint(4, VOCAB, (3, SOURCE), generator=GENERATOR)
LABELS = torch.randint(4, VOCAB, (3, TARGET), generator=GENERATOR)
REAL = torch.arange(SOURCE) < torch.tensor([[3], [7], [6]])
REAL_TARGET = torch.arange(TARGET) < torch.tensor([[5], [2], [4]])
MASKS = {"attention_mask": REAL.long(), "decoder_attention_mask": REAL_TARGET.long()}
FIGURES = ("entropy", "normalized_entropy", "sparsity", "sink_mass", "padding_mass")


def t5():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=12,
        d_kv=4,
        d_ff=7,
        num_layers=1,
        num_heads=3,
        dropout_rate=0.0,
        initializer_factor=3.0,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


@pytest.mark.parametrize("told", ["masks", "ids", "labels"])
def test_queries_of_the_decoder_are_those_of_its_own_text_and_keys_those_of_the_source(told):
    model = t5()
    labels = LABELS.masked_fill(~REAL_TARGET.roll(-1, 1), -100)  # the last real token has nothing to predict
    labels[:, -1] = -100
    ids = torch.cat([torch.zeros(3, 1).long(), LABELS[:, :-1]], dim=1).masked_fill(~REAL_TARGET, 0)
    inputs = {"input_ids": IDS, "decoder_input_ids": ids, **MASKS}
    expected = inspect_stacks_of_inputs(model.eval(), inputs)
    given = dict(inputs)
    if told != "masks":
        del given["decoder_attention_mask"]
    if told == "labels":
        del given["decoder_input_ids"]
        given["labels"] = labels
    monitor = AttentionMonitor(model.train(), num_rows=1000)
    with monitor.step(0):
        model(**given).logits.square().mean().backward()
    assert monitor.error is None
    found = {(head.stack, head.head): head for head in monitor.sample.heads}
    assert len(found) == 9
    for (stack, number), head in found.items():
        for figure in FIGURES:
            # the monitor counts in float32: some eps of each of at most 7 terms, in numbers up to log 7
            want = getattr(expected[stack].heads[number], figure)
            assert getattr(head, figure) == pytest.approx(want, abs=1e-5), (stack, figure)


def test_what_is_no_target_is_unknown():
    assert real_targets_of(t5(), (), {"input_ids": IDS}, padding_id=None) is None
    ends = torch.tensor([[0, 5, 6, 0, 0], [0, 0, 0, 0, 0]])  # T5 starts with its padding
    real = real_targets_of(t5(), (), {"decoder_input_ids": ends}, padding_id=None)
    assert real.int().tolist() == [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]
