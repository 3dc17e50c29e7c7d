"""A T5 of transformers, with its head tied or not, gives the same scores as a Seq2Seq, or is refused."""

import pytest
import torch

from headwise.convert.seq2seq import seq2seq_from_huggingface
from headwise.errors import UnsupportedError

BATCH, SOURCE, TARGET, VOCAB, EMBED, HIDDEN = 2, 9, 5, 19, 12, 17


def make(scaled=True, **settings):
    import transformers

    torch.manual_seed(0)
    sizes = {"d_model": EMBED, "d_kv": 5, "d_ff": HIDDEN, "num_layers": 2, "num_heads": 3, "vocab_size": VOCAB}
    config = transformers.T5Config(
        feed_forward_proj="gated-gelu",
        relative_attention_num_buckets=6,
        relative_attention_max_distance=7,
        tie_word_embeddings=scaled,
        **{**sizes, **settings},
    )
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def untie(model):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(model.lm_head.weight.shape, generator=generator, dtype=torch.float64)
    model.lm_head.weight = torch.nn.Parameter(weight)


@torch.no_grad()
def assert_same_scores(theirs):
    source, target = torch.randint(2, VOCAB, (BATCH, SOURCE)), torch.randint(2, VOCAB, (BATCH, TARGET))
    ours = seq2seq_from_huggingface(theirs)
    expected = theirs(input_ids=source, decoder_input_ids=target).logits
    # Their softmax is float32 inside: off by some 1e-7 of each weight, through four layers.
    torch.testing.assert_close(ours(source, target), expected, rtol=0, atol=1e-5)
    return ours


@pytest.mark.parametrize("scaled", [True, False])
def test_a_head_of_its_own_is_loaded_and_converted(tmp_path, scaled):
    """As of T5 1.1 and Flan-T5, whose checkpoints hold two tables; whether states are scaled is a setting beside it."""
    import transformers

    model = make(scaled=scaled)
    untie(model)
    model.save_pretrained(tmp_path)
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert theirs.lm_head.weight is not theirs.shared.weight and theirs.config.scale_decoder_outputs is scaled
    ours = assert_same_scores(theirs)
    assert torch.equal(ours.projection.weight, theirs.lm_head.weight)


def test_a_tied_head_is_no_matrix_of_its_own():
    assert assert_same_scores(make()).projection is None


def pruned(model):
    del model.decoder.block[1]
    model.config.num_decoder_layers = 1


@pytest.mark.parametrize(
    "change", [pruned, lambda model: model.resize_token_embeddings(VOCAB + 6, mean_resizing=False)]
)
def test_a_model_that_still_is_itself_is_converted(change):
    theirs = make()
    change(theirs)
    assert_same_scores(theirs)


def test_mode_dtype_gradients_and_random_state_stay():
    theirs = make(dropout_rate=0.3).to(torch.bfloat16).train()
    theirs.encoder.block[1].layer[0].SelfAttention.v.weight.requires_grad_(False)
    theirs.decoder.final_layer_norm.weight.requires_grad_(False)
    before = torch.get_rng_state()
    ours = seq2seq_from_huggingface(theirs)
    assert torch.equal(before, torch.get_rng_state())
    assert all(module.training for module in ours.modules())
    assert not any(module.training for module in seq2seq_from_huggingface(theirs.eval()).modules())
    assert {one.dtype for one in ours.parameters()} == {torch.bfloat16}
    frozen = [name for name, one in ours.named_parameters() if not one.requires_grad]
    assert sorted(frozen) == ["encoder.1.attention.v_proj.weight", "norm.weight"]
    theirs.requires_grad_(False)
    assert not any(one.requires_grad for one in seq2seq_from_huggingface(theirs).parameters())


class Wrapped(torch.nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base


class Louder(torch.nn.Linear):
    def forward(self, tokens):
        return 2 * super().forward(tokens)


FEED_FORWARD = "encoder.block.0.layer.1.DenseReluDense"


def replaced(path, make_part):
    """Put another part, made of the old one, at a path of the model."""

    def change(model):
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, make_part(model.get_submodule(path)))

    return change


def bias(path, size):
    return lambda model: setattr(model.get_submodule(path), "bias", torch.nn.Parameter(torch.ones(size)))


CHANGES = {
    "a subclass": (
        replaced(f"{FEED_FORWARD}.wi_0", lambda _: Louder(EMBED, HIDDEN, bias=False)),
        "DenseReluDense.wi_0 must be a plain Linear, as the config says, to convert a T5ForCond.*; got a Louder",
    ),
    "an adapter": (replaced(f"{FEED_FORWARD}.wo", Wrapped), "wo must be a plain Linear, .*; got a Wrapped"),
    "an adapter in an attention": (
        replaced("decoder.block.1.layer.1.EncDecAttention.q", Wrapped),
        "decoder.block.1.layer.1.EncDecAttention.q must be a plain Linear, .*; got a Wrapped",
    ),
    "a weight norm": (
        lambda model: torch.nn.utils.parametrizations.weight_norm(model.get_submodule(FEED_FORWARD).wo),
        "wo must be a plain Linear, .*; got a ParametrizedLinear",
    ),
    "no norm": (
        replaced("encoder.final_layer_norm", lambda _: torch.nn.Identity()),
        "encoder.final_layer_norm must be a plain T5LayerNorm, .*; got a Identity",
    ),
    "a norm of another kind": (
        replaced("encoder.block.1.layer.0.layer_norm", lambda _: torch.nn.LayerNorm(EMBED)),
        "layer_norm must be a plain T5LayerNorm, .*; got a LayerNorm",
    ),
    "a norm without a bias": (
        replaced("decoder.final_layer_norm", lambda _: torch.nn.LayerNorm(EMBED, bias=False)),
        "layer_norm must be a plain T5LayerNorm, .*; got a LayerNorm",
    ),
    "a table of one stack's own": (
        replaced("encoder.embed_tokens", lambda _: torch.nn.Embedding(VOCAB, EMBED)),
        "encoder.embed_tokens must be the table that both stacks share to convert a T5; got another one",
    ),
    "a bias of the head": (bias("lm_head", VOCAB), "lm_head must have the parameters weight, .*; got weight, bias"),
    "a bias": (bias(f"{FEED_FORWARD}.wi_0", HIDDEN), "wi_0 must have the parameters weight, .*; got weight, bias"),
    "no head": (replaced("lm_head", lambda _: None), "lm_head must be a plain Linear, .*; got None"),
    "no table": (replaced("shared", lambda _: None), "shared must be a plain Embedding, .*; got None"),
    "on meta": (lambda model: model.to("meta"), "must be in memory to be converted; got a tensor on meta"),
    "a layer on meta": (
        lambda model: model.encoder.block[0].to("meta"),
        "must be in memory to be converted; got a tensor on meta",
    ),
    "float32 beside bfloat16": (
        lambda model: model.bfloat16().get_submodule(FEED_FORWARD).wo.float(),
        "weights must have one dtype .* and encoder.0.feed_forward.down_proj.weight in torch.float32",
    ),
    "a layer less": (
        lambda model: model.encoder.block.__delitem__(1),
        "encoder.block.1 must be a plain T5Block, .*; got None",
    ),
    "an activation": (
        replaced(f"{FEED_FORWARD}.act", lambda _: torch.nn.ReLU()),
        "DenseReluDense.act must be a plain NewGELUActivation, .*; got a ReLU",
    ),
    "a hook": (
        lambda model: model.decoder.register_forward_hook(lambda module, args, output: None),
        "decoder must have no hook and no forward of its own",
    ),
}


@pytest.mark.parametrize(("change", "text"), CHANGES.values(), ids=CHANGES)
def test_a_model_that_is_not_what_its_config_says_is_refused(change, text):
    model = make().float()
    change(model)
    with pytest.raises(UnsupportedError, match=text):
        seq2seq_from_huggingface(model)


def test_another_model_is_refused():
    with pytest.raises(UnsupportedError, match="must be a T5 with its head to be converted; got a Linear of None"):
        seq2seq_from_huggingface(torch.nn.Linear(2, 2))


def test_a_conversion_under_another_default_device_is_where_the_model_is():
    theirs = make()
    with torch.device("meta"):
        ours = seq2seq_from_huggingface(theirs)
    assert torch.equal(ours.token_table.weight, theirs.shared.weight)
