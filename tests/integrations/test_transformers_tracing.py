"""Models of transformers on fake tensors: they take the branches that real texts without padding take."""

import threading

import pytest
import torch
import transformers
from torch._subclasses import FakeTensorMode
from transformers import masking_utils
from transformers.models.qwen3_next import modeling_qwen3_next

from headwise.cost.running.measure import measure_training_step
from headwise.cost.tracing.trace import step_memory, trace_step
from headwise.cost.workload import Workload
from headwise.integrations.transformers_tracing import whole_texts

SHARED = {"vocab_size": 97, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER = SHARED | {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
}
ENCODER_DECODER = SHARED | {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 41,
    "decoder_start_token_id": 2,
    "max_position_embeddings": 53,
}
MODELS = {
    "llama": DECODER,
    "bert": SHARED | {"hidden_size": 21, "num_attention_heads": 3, "intermediate_size": 37, "num_hidden_layers": 2},
    "bart": ENCODER_DECODER,
    "mbart": ENCODER_DECODER,
    "marian": ENCODER_DECODER,
    "pegasus": ENCODER_DECODER,
    "blenderbot": ENCODER_DECODER,
}
PACKED = torch.tensor([[0, 1, 2, 0, 1]])
DECISIONS = (
    "find_packed_sequence_indices",
    "_ignore_causal_mask_sdpa",
    "_ignore_bidirectional_mask_sdpa",
    "create_recurrent_attention_mask",
)


def build(family):
    config = transformers.AutoConfig.for_model(family, **MODELS[family])
    return transformers.AutoModel.from_config(config)


def make_inputs(model, *, with_mask):
    ids = torch.randint(3, 97, (5, 13))
    inputs = {"input_ids": ids}
    if with_mask:
        inputs["attention_mask"] = torch.ones_like(ids)
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids.clone()
    return inputs


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("family", MODELS)
def test_a_padding_mask_without_padding_is_skipped_as_in_a_real_step(family, with_mask):
    model = build(family)
    inputs = make_inputs(model, with_mask=with_mask)
    workload = Workload(batch=5, seq=13, device="cpu", dropout=False)
    traced = step_memory(trace_step(model, inputs, workload))
    measured = measure_training_step(model, inputs, workload=workload)
    assert traced.saved_bytes == measured.saved_bytes
    assert traced.peak_bytes == pytest.approx(measured.peak_bytes, rel=0.001)  # single numbers


def test_on_cuda_a_padding_mask_without_padding_leaves_the_flash_kernel():
    model = build("llama")
    workload = Workload(batch=5, seq=13, precision="bf16", dropout=False)
    without, with_mask = (
        step_memory(trace_step(model, make_inputs(model, with_mask=given), workload)) for given in (False, True)
    )
    assert with_mask.saved_bytes == without.saved_bytes


def test_only_fake_tensors_in_this_thread_are_taken_for_whole():
    found = {}

    def find(name, positions):
        found[name] = masking_utils.find_packed_sequence_indices(positions)

    with whole_texts():
        find("real", PACKED)
        with FakeTensorMode() as mode:
            fake = mode.from_tensor(PACKED)
            find("fake", fake)
            thread = threading.Thread(target=find, args=("elsewhere", fake))
            thread.start()
            thread.join()
    assert found["real"].tolist() == [[0, 0, 0, 1, 1]]
    assert found["fake"] is None
    assert found["elsewhere"].shape == (1, 5)


def test_a_real_mask_keeps_its_padding_while_another_is_traced():
    padded = torch.tensor([[True, True, False]])
    with whole_texts():
        assert not masking_utils._ignore_causal_mask_sdpa(padded, 3, 3, 0, 0)
        assert not masking_utils._ignore_bidirectional_mask_sdpa(padded, 3)


def test_models_that_import_a_decision_by_name_get_it_too():
    """The mask of recurrent layers, which a real step without padding has none of."""
    config = transformers.Qwen3NextConfig(hidden_size=24)
    with FakeTensorMode():
        arguments = {"config": config, "inputs_embeds": torch.ones(2, 5, 24), "attention_mask": torch.ones(2, 5)}
        with whole_texts():
            assert modeling_qwen3_next.create_recurrent_attention_mask(**arguments) is None
        assert modeling_qwen3_next.create_recurrent_attention_mask(**arguments) is not None


def test_uses_that_overlap_leave_transformers_as_it_was():
    before = [getattr(masking_utils, name) for name in DECISIONS]
    inside, may_leave = threading.Event(), threading.Event()

    def trace():
        with whole_texts():
            inside.set()
            may_leave.wait()

    thread = threading.Thread(target=trace)
    thread.start()
    inside.wait()
    with whole_texts():
        may_leave.set()
        thread.join()
        with FakeTensorMode() as mode:
            assert masking_utils.find_packed_sequence_indices(mode.from_tensor(PACKED)) is None
    assert [getattr(masking_utils, name) for name in DECISIONS] == before
    assert modeling_qwen3_next.create_recurrent_attention_mask is before[3]
