"""With all heads of a layer but one at 0, whatever its projections get for a gradient belongs to that one."""

import pytest
import torch
from benchmarks.inspect_families import build

from headwise.inspection.capture.listening import listen
from headwise.inspection.monitoring.head_gradients import find_head_slices, head_gradient_norms
from headwise.integrations.head_outputs import edit_heads
from headwise.integrations.output_projection import find_attention_parts, find_output_projections

pytest.importorskip("transformers")

IDS = torch.randint(5, 97, (2, 11), generator=torch.Generator().manual_seed(1))
SEPARATE = ("bert", "distilbert", "electra", "opt", "llama", "qwen3", "gemma2", "stablelm", "gptj", "cohere", "gpt_oss")
FUSED = ("gpt2", "gpt_bigcode", "gpt_bigcode with all keys", "gpt_neox", "persimmon", "phi3", "modernbert")
GROUPED = {"num_key_value_heads": 2}
SETTINGS = {"llama": GROUPED, "qwen3": GROUPED, "phi3": GROUPED, "gpt_oss": GROUPED, "gemma2": GROUPED} | {
    "gpt_bigcode with all keys": {"multi_query": False}
}
HEAD = 1


def without_the_others(projection, heads):
    kept = torch.zeros_like(heads)
    kept[:, :, HEAD] = heads[:, :, HEAD]
    return kept


@pytest.mark.parametrize("family", SEPARATE + FUSED)
def test_a_head_alone_has_all_the_gradient_of_its_layers_projections(family):
    model = build(family.partition(" ")[0], **SETTINGS.get(family, {}))
    calls = []
    with torch.no_grad(), listen(model, calls.append):
        model(input_ids=IDS)
    module, weights, _ = calls[0]
    num_heads, num_kv_heads = weights.shape[1], weights.key.shape[1]
    slices = find_head_slices(model, module, (num_heads, num_kv_heads, weights.query.shape[-1]))
    projection = find_output_projections(model, find_attention_parts(model))[0]
    with edit_heads(model, [projection], without_the_others):
        model(input_ids=IDS)[0].square().sum().backward()
    gradients = {id(each.parameter): each.parameter.grad for each in slices}.values()
    assert any(each.parameter is projection.module.weight for each in slices)
    norms = head_gradient_norms(slices).tolist()
    whole = torch.stack([gradient.double().norm() for gradient in gradients]).norm()
    # some thousand squares are summed in float32: the sum is off by no more than so many eps, the root by half of it
    assert norms[HEAD] == pytest.approx(float(whole), rel=5e-4)
    group = num_heads // num_kv_heads
    for head, norm in enumerate(norms):
        if head // group != HEAD // group:
            assert norm == 0.0
        elif head != HEAD:  # it has its part of the keys and values that it shares, and none of its own
            assert 0 < norm < norms[HEAD]


def test_rows_in_an_order_of_their_own_are_not_guessed():
    model = build("codegen")
    assert find_head_slices(model, model.h[0].attn, (4, 4, 16)) == ()
