"""verify_changes: what each change of a plan does to a small model of the same build, run here."""

import json
import logging
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


@pytest.mark.parametrize("name", ["llama-2-7b", "mistral-7b"])
def test_changes_of_the_model_are_made_to_the_small_one(name, monkeypatch):
    options = [one for one in headwise.api.fit_verify.CATALOGUE if one.key in ("heads", "kv-heads", "window")]
    monkeypatch.setattr(headwise.api.fit_verify, "CATALOGUE", tuple(options))
    monkeypatch.setattr(headwise.api.fit_verify, "_trials", lambda small, base: iter(()))
    found = verify_changes(name, replace(STEP, attention="eager"))
    assert found.holds, found
    # Of mistral's small copy two heads share a key/value head, of which there is one; llama has no windows.
    assert [row.key for row in found.changes] == ["base", "heads", "window" if name == "mistral-7b" else "kv-heads"]
    assert all(freed(found, row.key) != 0 for row in found.changes[1:] if row.key != "window")


def test_a_change_that_a_config_has_no_key_for_is_named(bert):
    assert any(
        note.startswith("Not run here: 1 key/value head in place of 4: its config has no key") for note in bert.notes
    )
    assert "heads" in [row.key for row in bert.changes] and "kv-heads" not in [row.key for row in bert.changes]


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


NEO = {"model_type": "gpt_neo", "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}
BLOOM = {"model_type": "bloom", "n_layer": 2, "n_head": 4}


@pytest.mark.parametrize(("content", "is_read"), [(NEO, False), (BLOOM, True)], ids=["gpt_neo", "bloom"])
def test_a_family_without_a_closed_form_is_held_against_its_trace(tmp_path, few_changes, content, is_read):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content | {"hidden_size": 64, "vocab_size": 997}))
    verification = verify_changes(path, Workload(batch=2, seq=32, attention="eager"))
    assert verification.holds, verification
    assert {"checkpoint-full", "batch", "seq"} <= {row.key for row in verification.changes}
    assert any("closed form" in note for note in verification.notes) is not is_read


def test_what_transformers_warns_of_at_each_run_is_not_shown(tmp_path, monkeypatch):
    fused = [option for option in headwise.api.fit_verify.CATALOGUE if option.key == "sdpa"]
    monkeypatch.setattr(headwise.api.fit_verify, "CATALOGUE", tuple(fused))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BLOOM | {"hidden_size": 64, "vocab_size": 97}))
    shown = []
    handler = logging.Handler()
    handler.emit = shown.append
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        verify_changes(path, Workload(batch=2, seq=32, attention="eager"))
    finally:
        logger.removeHandler(handler)
    assert shown == []


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
