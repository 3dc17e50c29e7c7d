"""Closed form, trace and measurement of a scaled-down model, side by side."""

import json
from dataclasses import replace

import pytest

import headwise
from headwise.api.verify import verify
from headwise.cli.main import main
from headwise.errors import ModelError


@pytest.mark.parametrize("name", ["bert-base", "llama-3-8b", "deepseek-v3"])
def test_the_paths_agree_on_a_small_model_of_the_same_build(name):
    verification = verify(name)
    assert verification.holds
    parameters, flops, saved, peak = verification.figures
    assert parameters.closed_form == parameters.measured
    assert flops.closed_form == flops.traced == flops.measured
    assert saved.closed_form == saved.traced == saved.measured
    assert None not in (peak.closed_form, peak.traced) and peak.tolerance == 0.01
    assert all(figure.measured > 0 for figure in verification.figures)


def test_a_model_without_a_closed_form_is_compared_by_trace_and_measurement(tmp_path):
    path = tmp_path / "config.json"
    content = {"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 4, "num_heads": 4, "vocab_size": 997}
    path.write_text(json.dumps(content | {"attention_types": [[["global", "local"], 1]]}))
    verification = verify(path)
    parameters, flops, saved, peak = verification.figures
    assert verification.holds
    assert (parameters.closed_form, flops.closed_form, saved.closed_form, peak.closed_form) == (None,) * 4
    assert saved.traced == saved.measured
    assert any("closed form" in note for note in verification.notes)


def test_a_wrong_closed_form_is_found_out_and_exits_with_1(monkeypatch, capsys):
    import headwise.api.verify as module

    right = module.count_parameters
    monkeypatch.setattr(module, "count_parameters", lambda config: right(replace(config, pooler=False)))
    assert main(["count", "bert-base", "--verify", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["verification"]["holds"] is False
    assert [figure["holds"] for figure in answer["verification"]["figures"]] == [False, True, True, True]


def test_a_config_in_hand_cannot_be_scaled_down():
    with pytest.raises(ModelError, match="so MODEL must be a preset"):
        headwise.count(headwise.preset("gpt2"), verify=True)


def test_a_setting_of_the_step_is_compared_too():
    verification = verify("gpt2", attention="eager", optimizer="sgd", checkpoint="full")
    assert verification.holds
    assert verification.workload.checkpoint == "full"
    assert verify("gpt2", attention="eager", optimizer="sgd").figures[2].measured > verification.figures[2].measured
