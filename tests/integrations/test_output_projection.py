"""Every projection found must read, to the bit, what transformers' attention function returned for its layer."""

import pytest
import torch
from torch import nn

from headwise.config.attention import AttentionConfig
from headwise.errors import ModelError
from headwise.integrations.head_outputs import edit_heads
from headwise.integrations.output_projection import find_attention_parts, find_output_projections
from headwise.nn.latent import LatentAttention
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.torch_multihead import TorchMultiheadAttention

transformers = pytest.importorskip("transformers")

VOCAB, LENGTH, BATCH = 53, 7, 2
TEXT = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 13}
ENCODER = TEXT | {"num_attention_heads": 3}
DECODER = TEXT | {"num_attention_heads": 6, "num_key_value_heads": 2, "pad_token_id": 0}
SEQ2SEQ = {"vocab_size": VOCAB, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 13} | {
    "decoder_ffn_dim": 11,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
}
LATENT = {"q_lora_rank": 7, "kv_lora_rank": 8, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 7}
IMAGE = {"image_size": 12, "patch_size": 6, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 13}
FAMILIES = {
    "Bert": ENCODER,
    "Roberta": ENCODER,
    "XLMRoberta": ENCODER,
    "Electra": ENCODER | {"embedding_size": 5},
    "Albert": ENCODER | {"embedding_size": 5, "num_hidden_layers": 3, "num_hidden_groups": 2},
    "DistilBert": {"vocab_size": VOCAB, "dim": 24, "n_heads": 3, "n_layers": 2, "hidden_dim": 13},
    "GPT2": {"vocab_size": VOCAB, "n_embd": 24, "n_head": 3, "n_layer": 2},
    "GPTNeoX": ENCODER,
    "OPT": {"vocab_size": VOCAB, "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "ffn_dim": 13},
    "Llama": DECODER | {"head_dim": 6},
    "Mistral": DECODER,
    "Qwen2": DECODER,
    "Qwen3": DECODER | {"head_dim": 4},
    "Gemma": DECODER | {"head_dim": 4},
    "Phi": DECODER,
    "Phi3": DECODER,
    "Starcoder2": DECODER,
    "StableLm": DECODER,
    "DeepseekV3": DECODER | LATENT | {"num_key_value_heads": 6, "first_k_dense_replace": 2},
    "ViT": IMAGE | {"num_attention_heads": 3},
    "CLIPVision": IMAGE | {"num_attention_heads": 3},
    "Bart": SEQ2SEQ,
    "T5": {"vocab_size": VOCAB, "d_model": 24, "d_kv": 5, "d_ff": 13, "num_heads": 3, "num_layers": 2},
}


def tiny(family, **settings):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family], **settings)
    return getattr(transformers, f"{family}Model")(config).eval()


def inputs_of(model):
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.rand(BATCH, 3, 12, 12)}
    ids = torch.randint(3, VOCAB, (BATCH, LENGTH))
    return {"input_ids": ids} | ({"decoder_input_ids": ids[:, :5]} if model.config.is_encoder_decoder else {})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_projection_reads_what_the_attention_of_its_layer_returned(family, monkeypatch):
    functions = transformers.AttentionInterface._global_mapping
    returned, read = [], []

    def attend(module, *args, attend=functions["sdpa"], **keywords):
        output, weights = attend(module, *args, **keywords)
        returned.append((module, output))
        return output, weights

    def look(projection, heads):
        read.append((projection, heads))
        return heads

    model = tiny(family)
    monkeypatch.setitem(functions, "sdpa", attend)
    parts = find_attention_parts(model)
    with torch.no_grad(), edit_heads(model, find_output_projections(model, parts), look) as passes:
        model(**inputs_of(model))
    assert len(read) == len(returned) == len(parts) == len(passes.calls)
    # encoder-decoders list their layers part by part and so call them, each decoder layer with its cross-attention
    assert [projection.layer for projection, _ in read] == list(range(len(read)))
    for (_, heads), (_, output) in zip(read, returned, strict=True):
        assert torch.equal(heads, output.reshape(heads.shape))


@pytest.mark.parametrize(
    ("family", "expected"),
    [("Bart", [False] * 2 + [False, True] * 2), ("T5", [False] * 2 + [False, True] * 2), ("Bert", [False] * 2)],
)
def test_cross_attention_is_told_by_its_name(family, expected):
    assert [part.is_cross for part in find_attention_parts(tiny(family))] == expected


def test_layers_that_share_a_group_of_weights_are_listed_once_each_in_the_order_of_their_calls():
    # 3 layers in 2 groups: layers 0 and 1 read group 0, as int(1 / (3 / 2)) = 0
    paths = [part.path for part in find_attention_parts(tiny("Albert"))]
    assert [path.split(".")[2] for path in paths] == ["0", "0", "1"]


def test_a_module_that_stands_twice_in_a_list_is_two_layers_and_a_second_name_is_none():
    layer = MultiHeadAttention(12, 3)
    layers = nn.ModuleList([layer, layer])
    layers.first = layer
    assert [part.path for part in find_attention_parts(layers)] == ["0", "1"]


def test_the_sizes_of_heads_are_those_of_values():
    model = tiny("DeepseekV3")
    found = find_output_projections(model, find_attention_parts(model))
    assert [(each.num_heads, each.head_dim) for each in found] == [(6, 7)] * 2
    assert found[1].name == "layers.1.self_attn.o_proj"


@pytest.mark.parametrize(
    ("layer", "sizes"),
    [
        (MultiHeadAttention(12, 6, num_kv_heads=2, v_head_dim=3), (6, 3)),
        (MultiHeadAttention(12, 6, fused_qkv=True), (6, 2)),
        (MultiHeadAttention.from_config(AttentionConfig.from_keywords(embed_dim=12, num_heads=3)), (3, 4)),
        (nn.MultiheadAttention(12, 3), (3, 4)),
        (TorchMultiheadAttention(12, 2), (2, 6)),
        *(
            (
                LatentAttention(
                    12, 3, q_lora_rank=rank, kv_lora_rank=7, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=5
                ),
                (3, 5),
            )
            for rank in (None, 5)
        ),
    ],
)
def test_a_layer_of_ours_or_of_torch_is_found_alone(layer, sizes):
    (found,) = find_output_projections(layer, find_attention_parts(layer))
    assert (found.num_heads, found.head_dim) == sizes


class Attention(nn.Module):
    """An attention of nobody's, which has queries."""

    def __init__(self, **children):
        super().__init__()
        self.q_proj = nn.Linear(12, 12)
        for name, child in children.items():
            setattr(self, name, child)


@pytest.mark.parametrize(
    ("children", "fault"),
    [
        ({}, "has none$"),
        ({"feed_forward": nn.Linear(12, 12)}, "has none$"),
        ({"o_proj": nn.Linear(13, 12), "num_heads": 3}, r"has none that reads all its heads .*\(o_proj reads 13\)"),
        ({"o_proj": nn.Linear(12, 12), "num_heads": 3, "head_dim": 5}, r"\(o_proj reads 12\)"),
        ({"o_proj": nn.Linear(12, 12)}, r"\(o_proj reads 12\)"),
    ],
)
def test_an_attention_whose_projection_is_not_found_is_refused_by_name(children, fault):
    model = nn.ModuleList([Attention(**children)])
    parts = find_attention_parts(model)
    with pytest.raises(ModelError, match=rf"0 \(Attention\) of ModuleList .*{fault}") as caught:
        find_output_projections(model, parts)
    assert "\n" not in str(caught.value)


def test_what_a_layer_says_goes_before_what_its_config_says():
    layer = Attention(o_proj=nn.Linear(12, 12), num_heads=3)
    layer.config = transformers.LlamaConfig(hidden_size=12, num_attention_heads=2, head_dim=6)
    (found,) = find_output_projections(layer, find_attention_parts(layer))
    assert (found.num_heads, found.head_dim) == (3, 4)


@pytest.mark.parametrize("kind", ["XLNet", "Mamba", "ResNet"])
def test_a_model_without_such_projections_is_refused(kind):
    config = getattr(transformers, f"{kind}Config")()
    config.num_hidden_layers = config.n_layer = 1
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}Model")(config)
    with pytest.raises(ModelError, match=f"heads are changed where a projection reads them, .*; {kind}Model has none"):
        find_attention_parts(model)
