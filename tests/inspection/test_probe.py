import json

import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors
from torch import nn

import headwise
from headwise.errors import HeadwiseError, ModelError
from headwise.inspection.roles.probe import ROLES, probe_roles
from headwise.inspection.roles.texts import draw_repeats
from headwise.inspection.roles.untrained import untrained_twin
from headwise.integrations import layer_weights

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz", ".", ","]
TEXTS = ["a b . c d e a f , g h a", "i j .", "k l m n o p q k"]


def tokenizer():
    backend = tokenizers.Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    special = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)


SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 12,
    "intermediate_size": 7,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "max_position_embeddings": 31,
    "initializer_range": 0.5,
}


def bert():
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**SIZES)).eval()


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, num_key_value_heads=1, bos_token_id=1)
    ).eval()


def eager_attentions(model, ids):
    """(L, B, H, T, T) weights that the model returns itself."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(input_ids=ids, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    return torch.stack(attentions).double()


def test_scores_and_nulls_are_those_of_the_models_own_eager_attention_on_the_random_texts():
    model = llama()
    probe = probe_roles(model, len(WORDS), num_repeats=3, num_random=11, seed=5)
    vocabulary = torch.tensor([token for token in range(len(WORDS)) if token not in (1, 2)])  # bos 1, eos 2
    texts = draw_repeats(vocabulary, num_texts=3, num_random=11, first_id=1, seed=5)
    attentions = eager_attentions(model, texts.ids)
    untrained = eager_attentions(untrained_twin(model, seed=5), texts.ids)
    shuffled = eager_attentions(model, texts.shuffled(torch.Generator().manual_seed(5)).read_ids())

    def induction(weights):
        return torch.stack([weights[..., 12 + t, 2 + t] for t in range(11)]).mean(dim=(0, 2))

    def previous(weights):
        return torch.stack([weights[..., i, i - 1] for i in range(1, 23)]).mean(dim=(0, 2))

    def first(weights):
        return weights[..., 1:, 0].mean(dim=(1, 3))

    for name, measure in (("induction", induction), ("previous token", previous), ("first token", first)):
        expected, null = measure(attentions), measure(untrained).max().item()
        for head in probe.heads:
            role = head[name]
            assert role.score == pytest.approx(expected[head.layer, head.head].item(), abs=1e-5)
            assert role.untrained_null == pytest.approx(null, abs=1e-5)
    # in shuffled texts, induction is what lies where the keys were before
    expected = induction(shuffled)
    for head in probe.heads:
        assert head["induction"].shuffled_null == pytest.approx(expected[head.layer, head.head].item(), abs=1e-5)
    assert [(head.layer, head.head) for head in probe.heads] == [(n, h) for n in range(2) for h in range(3)]


class Constructed(nn.Module):
    """A layer with two heads of known roles: one reads the place before, one the token 2 wherever it stands.

    A token's first half is its place, one-hot, its second half its id; each head reads one half.
    """

    def __init__(self, size=31, sharpness=30.0):
        super().__init__()
        self.size = size
        self.attention = nn.MultiheadAttention(2 * size, 2, bias=True, batch_first=True)
        place_before = torch.zeros(size, size)
        place_before[range(size - 1), range(1, size)] = 1.0  # from a query's place p to the key's, p - 1
        with torch.no_grad():
            for parameter in self.attention.parameters():
                parameter.zero_()
            query, key, _ = self.attention.in_proj_weight.view(3, 2 * size, 2 * size)
            scale = size**0.5  # undoes the layer's own
            query[:size, :size] = sharpness * scale * place_before
            key[:size, :size] = torch.eye(size)
            self.attention.in_proj_bias[size + 2] = sharpness * scale
            key[size:, size:] = torch.eye(size)

    def forward(self, ids):
        places = torch.eye(self.size)[: ids.shape[1]].expand(len(ids), -1, -1)
        tokens = torch.cat([places, nn.functional.one_hot(ids, self.size).float()], dim=-1)
        return self.attention(tokens, tokens, tokens)[0]


def test_heads_made_to_play_a_role_are_found_and_one_that_only_seems_to_is_not():
    torch.manual_seed(0)
    ids_only = {"num_random": 11, "first_id": 2, "num_repeats": 5}
    untrained = Constructed()
    for parameter in untrained.attention.parameters():
        nn.init.normal_(parameter, std=0.02)
    probe = probe_roles(Constructed(), 31, untrained=untrained, **ids_only)
    previous = probe.head(0, 0)["previous token"]
    assert previous.score == pytest.approx(1.0, abs=1e-6)
    assert (previous.num_queries, previous.largest_share, previous.holds) == (5 * 22, 1.0, True)
    seeming = probe.head(0, 1)["first token"]
    assert seeming.score == pytest.approx(1.0, abs=1e-6)
    assert seeming.shuffled_null == pytest.approx(1.0, abs=1e-6)
    assert not seeming.holds
    assert [(head.head, role.name) for head, role in probe.held()] == [(0, "previous token")]


def test_where_no_untrained_model_can_be_built_the_result_says_so_and_holds_against_the_shuffle():
    probe = probe_roles(Constructed(), 31, num_random=11, first_id=2)
    assert probe.head(0, 0)["previous token"].untrained_null is None
    assert probe.head(0, 0)["previous token"].holds
    assert "Roles are held against shuffled texts alone, and self against nothing: " in probe.notes[0]
    assert "Constructed has none that is known" in str(probe)


def where(example):
    return None if example is None else (example.text, example.query_index, example.key_index, example.key)


def test_a_padded_batch_of_texts_equals_each_text_alone():
    for model in (bert(), llama()):
        together = probe_roles(model, tokenizer(), TEXTS, batch_size=3, num_random=5, num_repeats=2)
        alone = probe_roles(model, tokenizer(), TEXTS, batch_size=1, num_random=5, num_repeats=2)
        for head, other in zip(together.heads, alone.heads, strict=True):
            for role, other_role in zip(head.roles, other.roles, strict=True):
                assert role.num_queries == other_role.num_queries
                assert where(role.example) == where(other_role.example)
                for name in ("score", "shuffled_null", "untrained_null"):
                    value, other_value = getattr(role, name), getattr(other_role, name)
                    assert value == (None if value is None else pytest.approx(other_value, abs=1e-5)), role.label


def test_blocks_of_a_few_queries_give_the_same_roles(monkeypatch):
    model = bert()
    whole = probe_roles(model, tokenizer(), TEXTS, num_random=5, num_repeats=1)
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 3 * 3 * 14 * 5)  # 5 queries of 3 texts in 3 heads
    in_blocks = probe_roles(model, tokenizer(), TEXTS, num_random=5, num_repeats=1)
    for head, other in zip(whole.heads, in_blocks.heads, strict=True):
        for role, other_role in zip(head.roles, other.roles, strict=True):
            assert role.score == (None if role.score is None else pytest.approx(other_role.score, abs=1e-6))
            assert role.largest_share == other_role.largest_share


def test_every_head_has_every_role_with_its_evidence_in_words():
    probe = probe_roles(bert(), tokenizer(), TEXTS, num_random=5, num_repeats=2)
    assert (probe.num_windows, probe.num_tokens, probe.num_repeats, probe.num_random) == (3, 12 + 3 + 8 + 6, 2, 5)
    for head in probe.heads:
        assert tuple(role.name for role in head.roles) == ROLES
        for role in head.roles:
            assert 0 <= role.score <= 1
            assert role.null is not None
            assert (role.offset is not None) == (role.name == "fixed offset")
            assert (role.example is None) == (role.largest_share is None) == (role.name == "uniform")
        assert head["separator"].example.key == "[SEP]"
        assert head["punctuation"].example.key in (".", ",")
        assert head["first token"].example.key == "[CLS]"
        same, copied = head["same token"].example, head["duplicate"].example
        assert (same.query, copied.query) == (same.key, copied.key)
        assert same.key_index < same.query_index
        assert copied.query_index - copied.key_index == 5
        assert head["self"].shuffled_null is None
    assert json.loads(json.dumps(probe.to_dict()))["heads"][0]["roles"][0]["name"] == "previous token"


def test_with_a_number_of_ids_alone_roles_are_read_on_the_random_texts_and_tokens_go_by_number():
    probe = probe_roles(llama(), len(WORDS), num_random=7)
    assert (probe.num_windows, probe.num_tokens) == (0, 0)
    head = probe.head(1, 2)
    assert [role.name for role in head.roles if role.score is None] == [
        "next token",
        "separator",
        "punctuation",
        "rare word",
    ]
    assert head["first token"].example.key == "1"
    assert not head["next token"].holds


def test_own_modules_are_read_text_by_text_and_compared_with_an_untrained_one_of_their_own():
    model = llama()
    theirs = probe_roles(model, tokenizer(), TEXTS[:2], num_random=7, first_id=1)
    ours = probe_roles(
        headwise.language_model_from_huggingface(model), tokenizer(), TEXTS[:2], num_random=7, first_id=1
    )
    assert ours.notes == ()
    for head, other in zip(ours.heads, theirs.heads, strict=True):
        for name in ("previous token", "first token", "same token", "induction"):
            assert head[name].score == pytest.approx(other[name].score, abs=1e-5), name


def test_the_model_is_left_as_it_was_and_the_random_numbers_too():
    model = bert().train()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    probe_roles(model, tokenizer(), TEXTS, num_random=5)
    assert torch.equal(torch.rand(2), expected)
    assert model.training
    assert model.config._attn_implementation == "sdpa"


def test_a_probe_repeats_itself():
    probes = [probe_roles(bert(), 29, num_random=5, num_repeats=1, seed=seed) for seed in (1, 1, 2)]
    assert probes[0] == probes[1]
    assert probes[0] != probes[2]


def test_progress_counts_forward_passes():
    seen = []
    probe_roles(
        bert(), tokenizer(), TEXTS, num_random=5, batch_size=2, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(done, 12) for done in range(1, 13)]  # 2 batches of random texts and 2 of prose, each three times


def test_random_texts_are_as_long_as_there_is_room_and_there_are_tokens_for():
    assert probe_roles(bert(), tokenizer(), TEXTS).num_random == 15  # [CLS] and twice 15 are 31 tokens
    assert probe_roles(bert(), 9).num_random == 8  # no token 0, the config's padding


def test_texts_longer_than_the_window_are_read_in_windows_and_the_result_says_so():
    probe = probe_roles(bert(), tokenizer(), TEXTS, window=9, num_random=5)
    assert (probe.num_windows, probe.window) == (5, 9)
    assert "Read in 5 windows of up to 9 tokens: roles depend on the window." in probe.notes
    assert probe_roles(bert(), tokenizer(), TEXTS, num_random=5).window == 14


def test_how_a_model_had_to_be_read_is_told():
    config = transformers.BloomConfig(vocab_size=29, hidden_size=12, n_layer=2, n_head=3)
    assert any("eager" in note for note in probe_roles(transformers.BloomModel(config), 29, num_random=5).notes)
    assert probe_roles(bert(), 29, num_random=5).notes == ()


def test_held_roles_are_written_one_a_line():
    text = str(probe_roles(Constructed(), 31, num_random=11, first_id=2))
    assert text.startswith("1 role holds among 2 heads, read on 4 texts of 11 random tokens that come twice\n")
    assert "layer 0 head 0: previous token 1.00 (shuffled " in text
    assert "largest weight there in 100 % of 88 queries" in text


def test_an_unknown_head_or_role_is_a_key_error_that_says_what_there_is():
    probe = probe_roles(bert(), 20, num_random=5)
    with pytest.raises(KeyError, match="no head 3 in layer 0 of 6 heads"):
        probe.head(0, 3)
    with pytest.raises(KeyError, match="no role 'sink'; there are previous token, next token"):
        probe.head(0, 0)["sink"]


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((20, TEXTS), {}, "texts are read with a tokenizer; got 3 texts and a vocabulary of 20 ids"),
        ((33,), {}, "a vocabulary must be a tokenizer or a number of ids from 1 to 32; got 33"),
        ((0,), {}, "from 1 to 32; got 0"),
        ((None,), {}, "a vocabulary must be a tokenizer or a number of ids; got None"),
        ((20,), {"first_id": 32}, "first_id must be a token of the vocabulary, from 0 to 31; got 32"),
        ((20,), {"num_repeats": 0}, "num_repeats must be between 1 and 2147483647; got 0"),
        ((20,), {"num_random": 1}, "num_random must be from 2 to 15: 19 different tokens can be drawn, and two "),
        ((20,), {"num_random": 16}, "copies must fit into 31 tokens; got 16"),
        ((tokenizer(), ()), {}, "texts must be a sequence of at least one text"),
        (
            (tokenizer(), TEXTS),
            {"window": 32},
            "window must not exceed the 31 tokens that the model reads at once; got 32",
        ),
    ],
)
def test_wrong_inputs_are_refused_in_one_line(arguments, settings, message):
    with pytest.raises(HeadwiseError, match=message):
        probe_roles(bert(), *arguments, **settings)


def test_a_model_that_reads_no_tokens_is_refused():
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=7, image_size=8, patch_size=4
    )
    with pytest.raises(ModelError, match="read token ids; ViTModel does not"):
        probe_roles(transformers.ViTModel(config), 20)
