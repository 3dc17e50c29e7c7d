"""verify_changes: what each change of a plan does to a small model of the same build, run here."""

import json
from dataclasses import replace

import pytest
import torch

import headwise.api.fit_verify
from headwise.api.fit_verify import verify_changes
from headwise.cost.workload import Workload
from headwise.errors import ModelError, UnsupportedError

STEP = Workload(batch=32, seq=1024, loss="cross_entropy")


def freed(verification, key):
    """Bytes that a change frees, as measured."""
    base, changed = (row for row in verification.changes if row.key in ("base", key))
    return base.measured_peak_bytes - changed.measured_peak_bytes


@pytest.fixture
def few_changes(monkeypatch):
    """Leave the changes of the plan out, but for one, where what is proved is the same for all."""
    full = [option for option in headwise.api.fit_verify.CATALOGUE if option.key == "checkpoint-full"]
    monkeypatch.setattr(headwise.api.fit_verify, "CATALOGUE", tuple(full))


@pytest.fixture(scope="module")
def bert():
    return verify_changes("bert-base", STEP, head=True)


def test_every_change_that_runs_here_does_what_is_predicted(bert):
    assert bert.holds, bert
    keys = [row.key for row in bert.changes]
    assert len(set(keys)) == len(keys) and keys[0] == "base"
    assert {"checkpoint-selective", "checkpoint-full", "chunked-cross-entropy", "amp-bf16", "bf16"} <= set(keys)
    assert {"fused-step", "freeze", "lora", "eager", "sgd", "accumulate", "batch", "seq"} <= set(keys)
    for row in bert.changes:
        assert row.predicted_saved_bytes == row.measured_saved_bytes > 0
        assert abs(row.predicted_peak_bytes - row.measured_peak_bytes) <= 0.01 * row.measured_peak_bytes
        assert row.tolerance == 0.01


def test_the_small_step_moves_as_the_large_one_does(bert):
    # 12 layers at batch 32, length 1024: scores dominate, so what is done about them frees much
    assert freed(bert, "checkpoint-selective") > freed(bert, "amp-bf16") > 0
    assert freed(bert, "seq") > freed(bert, "batch") > freed(bert, "accumulate") > 0
    assert freed(bert, "fused-step") == 0


def test_where_logits_dominate_the_small_step_says_so_too():
    llama = verify_changes("llama-3.2-1b", replace(STEP, batch=4, seq=4096, checkpoint="full"))
    assert llama.holds, llama
    assert freed(llama, "chunked-cross-entropy") > 0.2 * llama.changes[0].measured_peak_bytes


def test_a_change_that_cannot_be_made_here_is_named(bert):
    assert any(note.startswith("Not run here: 8-bit AdamW") for note in bert.notes)
    assert "adamw8bit" not in [row.key for row in bert.changes]


def test_an_optimizer_that_torch_lacks_is_replaced_and_said_so(few_changes):
    verification = verify_changes("gpt2", Workload(batch=2, seq=16, optimizer="lion"))
    assert verification.workload.optimizer == "adamw"
    assert any(note.startswith("AdamW runs in place of lion") for note in verification.notes)
    assert verification.holds


def test_a_family_without_a_closed_form_is_held_against_its_trace(tmp_path, few_changes):
    path = tmp_path / "config.json"
    content = {"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 4, "num_heads": 4, "vocab_size": 997}
    path.write_text(json.dumps(content | {"attention_types": [[["global", "local"], 1]]}))
    verification = verify_changes(path, Workload(batch=2, seq=32, attention="eager"))
    assert verification.holds, verification
    assert {"checkpoint-full", "batch", "seq"} <= {row.key for row in verification.changes}
    assert any("closed form" in note for note in verification.notes)


def test_a_wrong_prediction_is_found_out(monkeypatch, few_changes):
    right = headwise.api.fit_verify.predict

    def wrong(config, workload):
        found = right(config, workload)
        return replace(found, saved_bytes=found.saved_bytes + 1) if workload.checkpoint == "full" else found

    monkeypatch.setattr(headwise.api.fit_verify, "predict", wrong)
    verification = verify_changes("gpt2", Workload(batch=2, seq=64))
    assert not verification.holds
    assert [row.key for row in verification.changes if not row.holds] == ["checkpoint-full"]
    assert verification.to_dict()["holds"] is False


def test_a_peak_beyond_one_percent_is_found_out(monkeypatch, few_changes):
    right = headwise.api.fit_verify.predict
    monkeypatch.setattr(
        headwise.api.fit_verify,
        "predict",
        lambda config, workload: replace(
            right(config, workload), peak_bytes=right(config, workload).peak_bytes * 985 // 1000
        ),
    )
    verification = verify_changes("gpt2", Workload(batch=2, seq=64))
    assert not any(row.holds for row in verification.changes)
    assert headwise.api.fit_verify.NARROW in verification.notes


def test_the_callers_state_is_left_as_it_was(few_changes):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    num_threads, is_onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.set_num_threads(2)
    try:
        with torch.no_grad():
            verify_changes("gpt2", Workload(batch=2, seq=16))
            assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(num_threads)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.backends.mkldnn.enabled == is_onednn


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_only_a_training_step_is_verified(phase):
    with pytest.raises(UnsupportedError, match="phase"):
        verify_changes("gpt2", Workload(batch=2, seq=16, phase=phase))


def test_what_cannot_be_scaled_down_is_told():
    with pytest.raises(ModelError, match="so MODEL must be a preset"):
        verify_changes(headwise.preset("gpt2"), STEP)
    with pytest.raises(UnsupportedError, match="GptOssForCausalLM has no 'sdpa'"):
        verify_changes("gpt-oss-20b", replace(STEP, attention="sdpa"))
