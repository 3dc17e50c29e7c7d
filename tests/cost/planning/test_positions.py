from dataclasses import replace

import pytest

from headwise.config.huggingface import read_config
from headwise.config.presets import preset
from headwise.cost.devices import DEVICES
from headwise.cost.memory import predict_step
from headwise.cost.parameters import count_parameters
from headwise.cost.planner import judge
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.plan import plan
from headwise.cost.planning.positions import with_positions
from headwise.cost.planning.setup import Setup
from headwise.cost.workload import Workload


def test_a_length_within_the_table_changes_nothing():
    bert = preset("bert-base")
    assert with_positions(bert, 512) is bert


def test_a_longer_table_has_a_row_for_each_token_more():
    bert = preset("bert-base")
    longer = with_positions(bert, 2048)
    assert longer == replace(bert, max_positions=2048, position_table_size=2048)
    assert count_parameters(longer).total - count_parameters(bert).total == (2048 - 512) * 768


def test_a_model_without_a_table_gets_none():
    llama = preset("llama-2-7b")
    assert with_positions(llama, 9999) == replace(llama, max_positions=9999)
    assert with_positions(llama, 9999).position_table_size == 0


def test_rows_that_no_token_reads_stay():
    roberta = read_config(
        {
            "model_type": "roberta",
            "hidden_size": 12,
            "num_hidden_layers": 1,
            "num_attention_heads": 3,
            "intermediate_size": 7,
            "vocab_size": 11,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "pad_token_id": 1,
        },
        name="tiny",
    )
    idle = roberta.position_table_size - roberta.max_positions
    longer = with_positions(roberta, 600)
    assert idle == 2
    assert (longer.max_positions, longer.position_table_size) == (600, 602)


@pytest.mark.parametrize("seq", [1025, 5000])
def test_the_table_of_an_encoder_grows_with_that_of_its_decoder(seq):
    t5 = preset("t5-small")
    bart = replace(
        t5, max_positions=1024, position_table_size=1026, encoder=replace(t5.encoder, position_table_size=1026)
    )
    longer = with_positions(bart, seq)
    assert (longer.position_table_size, longer.encoder.position_table_size) == (seq + 2, seq + 2)


@pytest.mark.parametrize("seq", [2, 512, 2048, 65536])
def test_what_is_said_of_a_size_does_not_depend_on_the_length_asked_for(seq):
    """BERT has 512 positions: sweeps and the largest length are of a table as long as they need, and no longer."""
    bert = preset("bert-base")
    config = replace(bert, blocks=bert.blocks[:2])
    setup = Setup(config=config, workload=Workload(batch=1, seq=seq, device="cpu"))
    device = replace(DEVICES["t4"], kind="cpu")
    planned = plan(ClosedForm(), setup, device, axes=((1, 3), (64, 1024)))
    by_hand = [
        predict_step(with_positions(config, length), Workload(batch=batch, seq=length, device="cpu")).peak_bytes
        for batch in (1, 3)
        for length in (64, 1024)
    ]
    assert [point.peak_bytes for point in planned.sweep.points] == by_hand
    longest = planned.largest_seq
    verdicts = [
        judge(predict_step(with_positions(config, length), replace(setup.workload, seq=length)).peak_bytes, device).fits
        for length in (longest, longest + 1)
    ]
    assert verdicts == ["yes", "tight"]
