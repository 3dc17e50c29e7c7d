"""`headwise.count`: one answer from a config or from a module as it stands."""

import sys

import pytest
import torch

import headwise
from headwise.errors import HeadwiseError, ModelError


@pytest.fixture
def users_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "counted_models.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "import headwise\n"
        "from transformers import GPT2Config, GPT2Model\n"
        "def torch_layer():\n    return nn.MultiheadAttention(22, 2, batch_first=True)\n"
        "def our_layer():\n    return headwise.MultiHeadAttention(22, 2, num_kv_heads=1, mask=headwise.Causal())\n"
        "def encoder():\n"
        "    layer = nn.TransformerEncoderLayer(14, 2, dim_feedforward=13, batch_first=True)\n"
        "    return nn.Sequential(nn.Embedding(17, 14), layer)\n"
        "def gpt2():\n    return GPT2Model(GPT2Config(vocab_size=23, n_positions=19, n_embd=10, n_layer=2, n_head=2))\n"
        "def linear():\n    return nn.Linear(3, 2)\n"
        "class Custom(nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(3, 2, bias=False)\n"
        "    def example_inputs(self, batch, seq):\n        return {'input': torch.zeros(batch, seq, 3)}\n"
        "class Raises(nn.MultiheadAttention):\n"
        "    def __init__(self):\n        super().__init__(4, 2)\n"
        "    def forward(self, query):\n        raise KeyError('no\\nluck')\n",
        encoding="utf-8",
    )
    yield tmp_path
    sys.modules.pop("counted_models", None)


BATCH, SEQ = 3, 7


def attention_flops(width: int, kv_width: int) -> int:
    projections = 2 * BATCH * SEQ * (2 * width * width + 2 * width * kv_width)
    return projections + 2 * 2 * BATCH * SEQ * SEQ * width


def test_a_torch_layer_is_counted_as_it_stands(users_folder):
    count = headwise.count("counted_models:torch_layer", batch=BATCH, seq=SEQ)
    assert count.parameters.attention == count.parameters.total == 4 * 22 * 22 + 4 * 22
    assert count.flops.forward.dense == attention_flops(22, 22)
    assert count.flops.train.dense == 3 * count.flops.forward.dense
    assert count.kv_cache_bytes is None


def test_a_layer_of_ours_attends_its_own_mask(users_folder):
    count = headwise.count("counted_models:our_layer", batch=BATCH, seq=SEQ)
    dense = attention_flops(22, 11)
    masked_pairs = SEQ * (SEQ - 1) // 2
    assert count.parameters.attention == 2 * (22 * 22 + 22) + 2 * (22 * 11 + 11)
    assert count.flops.forward.dense == dense
    assert count.flops.forward.attended == dense - 2 * 2 * BATCH * masked_pairs * 22


def test_a_module_that_embeds_tokens_is_fed_token_ids(users_folder):
    count = headwise.count("counted_models:encoder", batch=BATCH, seq=SEQ)
    assert count.parameters.embedding == 17 * 14
    assert count.parameters.feed_forward == 2 * 13 * 14 + 13 + 14
    assert count.flops.forward.dense == attention_flops(14, 14) + 2 * 2 * BATCH * SEQ * 13 * 14


def test_a_hugging_face_model_from_a_factory_is_counted_from_its_config(users_folder):
    count = headwise.count("counted_models:gpt2", batch=BATCH, seq=SEQ)
    assert count.model.model_type == "gpt2"
    assert count.model.source == "counted_models:gpt2"
    assert count.kv_cache_bytes_per_token == 2 * 2 * 10 * 2  # layers, K and V, width, bfloat16


def test_a_module_may_bring_its_own_example_inputs(users_folder):
    count = headwise.count("counted_models:Custom", batch=BATCH, seq=SEQ)
    assert count.flops.forward.dense == 2 * BATCH * SEQ * 3 * 2
    assert count.flops.forward.attended is None
    assert count.flops.train.attended is None


def test_a_module_that_nobody_can_feed_is_refused_with_what_to_add(users_folder):
    with pytest.raises(ModelError, match=r"define example_inputs\(batch, seq\)"):
        headwise.count("counted_models:linear")


def test_what_a_module_raises_is_one_line_that_names_it(users_folder):
    with pytest.raises(ModelError, match="running Raises raised KeyError") as caught:
        headwise.count("counted_models:Raises")
    assert "\n" not in str(caught.value)


def test_the_default_length_is_512_or_the_models_positions():
    assert headwise.count("llama-3-8b").seq == 512
    assert headwise.count("bert-base").seq == 512


def test_a_length_beyond_a_learned_position_table_is_refused_and_one_beyond_rotary_is_not():
    with pytest.raises(HeadwiseError, match="at most 1024, the rows of gpt2's position table; got 1025"):
        headwise.count("gpt2", seq=1025)
    assert headwise.count("llama-2-7b", seq=5003).kv_cache_bytes == 5003 * 32 * 2 * 32 * 128 * 2


def test_the_dtype_is_the_configs_own_unless_told():
    default = headwise.count("llama-3-8b")
    told = headwise.count("llama-3-8b", dtype="float32")
    assert (default.dtype, told.dtype) == ("bfloat16", "float32")
    assert told.kv_cache_bytes == 2 * default.kv_cache_bytes


def test_a_config_and_a_module_in_hand_are_counted_as_their_names_are():
    config = headwise.preset("gpt2")
    assert headwise.count(config, seq=7).flops == headwise.count("gpt2", seq=7).flops
    layer = headwise.MultiHeadAttention(22, 2)
    assert headwise.count(layer, batch=BATCH, seq=SEQ).flops.forward.dense == attention_flops(22, 22)
    assert layer.training


def test_a_module_in_half_precision_is_counted_in_float32_and_stays_as_it_is():
    layer = headwise.MultiHeadAttention(22, 2).to(torch.bfloat16)
    count = headwise.count(layer, batch=BATCH, seq=SEQ)
    assert count.flops.forward.dense == attention_flops(22, 22)
    assert any("bfloat16 weights were cast" in note for note in count.notes)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("model", [3, [], object()])
def test_what_is_no_model_is_refused_by_its_type(model):
    with pytest.raises(ModelError, match=f"got {type(model).__name__}"):
        headwise.count(model)


@pytest.mark.parametrize("seq", [True, 0, -1])
def test_a_length_that_is_none_is_refused(seq):
    with pytest.raises(HeadwiseError, match="seq must be"):
        headwise.count("gpt2", seq=seq)


def make_users_modules():
    from torch import nn

    class Exits(nn.MultiheadAttention):
        def forward(self, query):
            raise SystemExit(0)

    class BadExample(nn.Linear):
        def example_inputs(self, batch, seq):
            raise KeyError("none")

    class BadEmbedding(nn.Linear):
        def get_input_embeddings(self):
            raise NotImplementedError

    class BadConfig(nn.Linear):
        @property
        def config(self):
            raise RuntimeError("not ready")

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.positions = nn.Parameter(torch.zeros(7, 14))
            self.tokens = nn.Embedding(17, 14)

        def forward(self, ids):
            return self.tokens(ids) + self.positions[: ids.shape[1]]

    return {
        "exits": Exits(4, 2),
        "example": BadExample(3, 2),
        "embedding": BadEmbedding(3, 2),
        "config": BadConfig(3, 2),
        "lazy": nn.Sequential(nn.LazyLinear(3)),
        "gpt": Gpt(),
    }


@pytest.mark.parametrize("name", ["exits", "example", "embedding", "config", "lazy"])
def test_whatever_a_users_module_raises_is_one_line(name):
    module = make_users_modules()[name]
    for verb in (headwise.count, headwise.make_report):
        with pytest.raises(ModelError) as caught:
            verb(module, batch=2, seq=3)
        assert "\n" not in str(caught.value)


def test_a_position_table_of_the_module_itself_does_not_hide_its_embedding():
    assert headwise.count(make_users_modules()["gpt"], batch=2, seq=3).parameters.embedding == 17 * 14


def test_a_batch_that_no_memory_holds_is_refused_or_left_out():
    with pytest.raises(ModelError, match="more memory than this machine gives"):
        headwise.count(make_users_modules()["gpt"], batch=2**31 - 1, seq=512)
