import pytest
import torch
import transformers
from torch import nn

from headwise.inspection.monitoring.head_gradients import find_head_slices, head_gradient_norms
from headwise.nn.multihead import MultiHeadAttention

EMBED, HEADS, KV_HEADS, DIM = 14, 6, 3, 5


def fill(model):
    """Give every parameter a gradient of its own."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


def norm(*parts):
    return torch.cat([part.flatten() for part in parts]).norm()


def own_layer(fused):
    return fill(
        MultiHeadAttention(
            EMBED, HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, v_head_dim=7, projection_bias="qkv", fused_qkv=fused
        )
    )


def test_the_norm_of_a_head_is_that_of_its_rows_and_columns():
    layer = own_layer(fused=False)
    norms = head_gradient_norms(find_head_slices(layer, layer, (HEADS, KV_HEADS, DIM)))
    for head in range(HEADS):
        group = head // 2
        q, k, v = slice(head * 5, head * 5 + 5), slice(group * 5, group * 5 + 5), slice(group * 7, group * 7 + 7)
        rows = ((layer.q_proj, q), (layer.k_proj, k), (layer.v_proj, v))
        expected = norm(
            *(projection.weight.grad[part] for projection, part in rows),
            *(projection.bias.grad[part] for projection, part in rows),
            layer.out_proj.weight.grad[:, head * 7 : head * 7 + 7],
        )
        # about 300 squares summed in float32 in another order: each sum within 300 eps, the root within half of it
        torch.testing.assert_close(norms[head], expected, rtol=2e-5, atol=0)


def test_fused_projections_of_our_own_give_what_separate_ones_do():
    separate, fused = own_layer(fused=False), own_layer(fused=True)
    names = ("q_proj", "k_proj", "v_proj")
    for kind in ("weight", "bias"):
        stacked = torch.cat([getattr(getattr(separate, name), kind).grad for name in names])
        getattr(fused.qkv_proj, kind).grad = stacked
    fused.out_proj.weight.grad = separate.out_proj.weight.grad
    expected, got = (
        head_gradient_norms(find_head_slices(layer, layer, (HEADS, KV_HEADS, DIM))) for layer in (separate, fused)
    )
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=0)


@pytest.mark.parametrize("widths", [{}, {"kdim": 11, "vdim": 13}], ids=["fused", "separate"])
def test_torchs_layer(widths):
    layer = fill(nn.MultiheadAttention(15, 3, **widths))
    if widths:
        weights = [layer.q_proj_weight.grad, layer.k_proj_weight.grad, layer.v_proj_weight.grad]
    else:
        weights = layer.in_proj_weight.grad.chunk(3)
    norms = head_gradient_norms(find_head_slices(layer, layer, (3, 3, 5)))
    for head in range(3):
        rows = slice(head * 5, head * 5 + 5)
        biases = [bias[rows] for bias in layer.in_proj_bias.grad.chunk(3)]
        expected = norm(*(weight[rows] for weight in weights), *biases, layer.out_proj.weight.grad[:, rows])
        torch.testing.assert_close(norms[head], expected, rtol=2e-5, atol=0)


def test_bert_keeps_its_output_projection_beside_the_layer_that_attends():
    config = transformers.BertConfig(
        vocab_size=5, hidden_size=15, num_attention_heads=3, num_hidden_layers=1, intermediate_size=7
    )
    model = fill(transformers.BertModel(config))
    block = model.encoder.layer[0].attention
    norms = head_gradient_norms(find_head_slices(model, block.self, (3, 3, 5)))
    parts = (block.self.query, block.self.key, block.self.value)
    rows = slice(10, 15)
    expected = norm(
        *(part.weight.grad[rows] for part in parts),
        *(part.bias.grad[rows] for part in parts),
        block.output.dense.weight.grad[:, rows],
    )
    torch.testing.assert_close(norms[2], expected, rtol=2e-5, atol=0)


def test_gpt2_multiplies_from_the_other_side():
    model = fill(transformers.GPT2Model(transformers.GPT2Config(vocab_size=5, n_embd=15, n_head=3, n_layer=1)))
    layer = model.h[0].attn
    norms = head_gradient_norms(find_head_slices(model, layer, (3, 3, 5)))
    weight, bias = layer.c_attn.weight.grad.view(15, 3, 3, 5), layer.c_attn.bias.grad.view(3, 3, 5)
    expected = norm(weight[:, :, 1], bias[:, 1], layer.c_proj.weight.grad[5:10])
    torch.testing.assert_close(norms[1], expected, rtol=2e-5, atol=0)


def test_gpt_neox_stacks_query_key_and_value_of_each_head():
    config = transformers.GPTNeoXConfig(
        vocab_size=5, hidden_size=15, num_attention_heads=3, num_hidden_layers=1, intermediate_size=7
    )
    model = fill(transformers.GPTNeoXModel(config))
    layer = model.layers[0].attention
    norms = head_gradient_norms(find_head_slices(model, layer, (3, 3, 5)))
    fused = layer.query_key_value
    expected = norm(fused.weight.grad[15:30], fused.bias.grad[15:30], layer.dense.weight.grad[:, 5:10])
    torch.testing.assert_close(norms[1], expected, rtol=2e-5, atol=0)


def test_albert_holds_all_its_projections_itself():
    config = transformers.AlbertConfig(
        vocab_size=5, embedding_size=4, hidden_size=15, num_attention_heads=3, num_hidden_layers=2, intermediate_size=7
    )
    model = fill(transformers.AlbertModel(config))
    layer = model.encoder.albert_layer_groups[0].albert_layers[0].attention
    norms = head_gradient_norms(find_head_slices(model, layer, (3, 3, 5)))
    parts, rows = (layer.query, layer.key, layer.value), slice(5, 10)
    expected = norm(
        *(part.weight.grad[rows] for part in parts),
        *(part.bias.grad[rows] for part in parts),
        layer.dense.weight.grad[:, rows],
    )
    torch.testing.assert_close(norms[1], expected, rtol=2e-5, atol=0)


def test_modernbert_stacks_all_queries_first():
    config = transformers.ModernBertConfig(
        vocab_size=5,
        hidden_size=12,
        num_attention_heads=3,
        num_hidden_layers=1,
        intermediate_size=7,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    )
    model = fill(transformers.ModernBertModel(config))
    layer = model.layers[0].attn
    norms = head_gradient_norms(find_head_slices(model, layer, (3, 3, 4)))
    expected = norm(layer.Wqkv.weight.grad.view(3, 3, 4, 12)[:, 1], layer.Wo.weight.grad[:, 4:8])
    torch.testing.assert_close(norms[1], expected, rtol=2e-5, atol=0)


def test_a_scaled_gradient_is_scaled_back():
    layer = own_layer(fused=False)
    slices = find_head_slices(layer, layer, (HEADS, KV_HEADS, DIM))
    assert torch.equal(head_gradient_norms(slices, grad_scale=8.0) * 8, head_gradient_norms(slices))


def test_frozen_projections_count_as_nothing_and_without_any_gradient_nothing_is_known():
    layer = own_layer(fused=False)
    slices = find_head_slices(layer, layer, (HEADS, KV_HEADS, DIM))
    for parameter in layer.parameters():
        if parameter is not layer.q_proj.weight:
            parameter.grad = None
    expected = layer.q_proj.weight.grad.view(HEADS, -1).norm(dim=1)
    torch.testing.assert_close(head_gradient_norms(slices), expected, rtol=2e-5, atol=0)
    layer.q_proj.weight.grad = None
    assert head_gradient_norms(slices) is None


class Strange(nn.Module):
    def __init__(self, **sizes):
        super().__init__()
        for name, rows in sizes.items():
            setattr(self, name, nn.Linear(rows, rows))


@pytest.mark.parametrize(
    "attention",
    [nn.Identity(), Strange(query=15, key=15), Strange(q_proj=15, k_proj=15, v_proj=15, o_proj=17), None],
    ids=["no projections", "some missing", "another width", "a plain call"],
)
def test_projections_that_are_not_known_have_no_slices(attention):
    assert find_head_slices(nn.Sequential(), attention, (3, 3, 5)) == ()


def test_a_family_that_is_not_known_is_read_by_the_names_of_its_separate_projections():
    layer = fill(Strange(q_proj=15, k_proj=15, v_proj=15, out_proj=15))
    norms = head_gradient_norms(find_head_slices(nn.Sequential(layer), layer, (3, 3, 5)))
    rows = slice(0, 5)
    parts = (layer.q_proj, layer.k_proj, layer.v_proj)
    expected = norm(
        *(part.weight.grad[rows] for part in parts),
        *(part.bias.grad[rows] for part in parts),
        layer.out_proj.weight.grad[:, rows],
    )
    torch.testing.assert_close(norms[0], expected, rtol=2e-5, atol=0)
