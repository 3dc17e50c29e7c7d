"""Each rule that stretches rotary frequencies gives the published numbers, and those of transformers."""

import math

import jaxtyping
import pytest
import torch

from headwise.config.attention import Rotary
from headwise.config.huggingface import read_config
from headwise.config.presets import PRESETS, preset
from headwise.config.scaling import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    NTKScaling,
    ProportionalScaling,
    YaRNScaling,
)
from headwise.errors import ConfigError
from headwise.positions.rotary import RotaryPositions
from headwise.positions.scaling import attention_factor, rotary_frequencies

BATCH, HEADS, LENGTH, HEAD_DIM = 2, 3, 7, 22
NUM_PAIRS = HEAD_DIM // 2
SHORT_ROW, LONG_ROW = [1 + 0.1 * i for i in range(NUM_PAIRS)], [2 + 0.7 * i for i in range(NUM_PAIRS)]
ORIGINAL, LONGEST = 1021, 4093

# The settings of a file, as published models write them.
FILES = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "yarn, ramp not rounded": {
        "rope_type": "yarn",
        "factor": 5.0,
        "original_max_position_embeddings": ORIGINAL,
        "beta_fast": 17.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
    "yarn, DeepSeek's weights": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": ORIGINAL,
        "mscale": 0.707,
        "mscale_all_dim": 1.3,
    },
    "yarn, one weight alone": {
        "rope_type": "yarn",
        "factor": 7.0,
        "original_max_position_embeddings": ORIGINAL,
        "mscale_all_dim": 1.3,
    },
    "yarn, its own factor on scores": {
        "rope_type": "yarn",
        "factor": 7.0,
        "original_max_position_embeddings": ORIGINAL,
        "attention_factor": 1.7,
    },
    "yarn, factor from the lengths": {
        "rope_type": "yarn",
        "factor": None,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn, another weight alone": {
        "rope_type": "yarn",
        "factor": 7.0,
        "original_max_position_embeddings": ORIGINAL,
        "mscale": 1.3,
    },
    "yarn, all pairs slow": {
        "rope_type": "yarn",
        "factor": 3.0,
        "original_max_position_embeddings": 5,
        "truncate": False,
    },
    "yarn, a step for a ramp": {
        "rope_type": "yarn",
        "factor": 3.0,
        "original_max_position_embeddings": ORIGINAL,
        "beta_fast": 17.0,
        "beta_slow": 17.0,
        "truncate": False,
    },
    "yarn, a ramp longer than all pairs": {
        "rope_type": "yarn",
        "rope_theta": 53.0,
        "factor": 3.0,
        "original_max_position_embeddings": ORIGINAL,
        "beta_fast": 1000.0,
        "beta_slow": 0.001,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "original_max_position_embeddings": ORIGINAL,
        "low_freq_factor": 1.0,
        "high_freq_factor": 5.0,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": None,
        "original_max_position_embeddings": ORIGINAL,
        "short_factor": SHORT_ROW,
        "long_factor": LONG_ROW,
    },
    "longrope, its own factor on scores": {
        "rope_type": "longrope",
        "factor": 3.0,
        "original_max_position_embeddings": ORIGINAL,
        "attention_factor": 1.3,
        "short_factor": SHORT_ROW,
        "long_factor": LONG_ROW,
    },
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.4, "factor": 2.0},
}

RULES = {
    "plain": None,
    "linear": LinearScaling(factor=3.0),
    "ntk": NTKScaling(factor=3.0),
    "dynamic": DynamicNTKScaling(factor=3.0, original_max_positions=5),
    "yarn": YaRNScaling(factor=4.0, original_max_positions=ORIGINAL),
    "llama3": Llama3Scaling(factor=8.0, original_max_positions=ORIGINAL),
    "longrope": LongRoPEScaling(
        short_factors=tuple(SHORT_ROW), long_factors=tuple(LONG_ROW), original_max_positions=5, factor=4.0
    ),
    "proportional": ProportionalScaling(share=0.4, factor=2.0),
}
READ_LENGTH = ("dynamic", "longrope")


@pytest.fixture
def unchecked():
    """Let wrong arguments reach our own errors, past the annotations that only tests check."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def written(settings, max_positions=LONGEST):
    return {
        "hidden_size": HEADS * HEAD_DIM,
        "num_attention_heads": HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": max_positions,
        "rope_parameters": {"rope_theta": 10000.0, **settings},
    }


def read(settings, max_positions=LONGEST):
    config = read_config({"model_type": "llama", **written(settings, max_positions)}, name="m")
    return config.blocks[0].attention.position


def frequencies_of(scaling, *, theta=10000.0, rotary_dim=8, text_len=1):
    return rotary_frequencies(Rotary(theta=theta, scaling=scaling), rotary_dim, torch.tensor(text_len)).tolist()


@pytest.mark.parametrize("text_len", [3, ORIGINAL, ORIGINAL + 1, LONGEST, 5003])
@pytest.mark.parametrize("name", FILES)
def test_a_file_gives_the_frequencies_and_the_factor_of_transformers(name, text_len):
    rules = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    from transformers import LlamaConfig

    theirs, their_factor = rules[FILES[name]["rope_type"]](LlamaConfig(**written(FILES[name])), seq_len=text_len)
    ours = rotary_frequencies(read(FILES[name]), HEAD_DIM, torch.tensor(text_len))
    assert ours.dtype == torch.float64
    # Theirs are float32, in units of 2^-24. An exponent below 1 is off by half a unit, and the power then by
    # ln(10000) / 2 = 4.6; the power itself, its inverse and a division by a unit each, all together below 8. Where two
    # frequencies are blended, the share is off by about as much, and where it is near 0, that counts by the ratio of
    # the two, at most 5 (ramps) or 8 (turns) here: 8 + 8 * 8. Whole ramps (factor 40) have shares without an error.
    torch.testing.assert_close(ours.float(), theirs, rtol=72 * 2**-24, atol=0)
    assert attention_factor(read(FILES[name])) == pytest.approx(their_factor, rel=1e-15)


@pytest.mark.parametrize(
    "name", ["llama-3.2-1b", "llama-3.2-3b", "gemma-3-27b", "gpt-oss-20b", "gpt-oss-120b", "deepseek-v3"]
)
def test_published_models_turn_as_transformers_turns_them(name):
    rules = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    from transformers import CONFIG_MAPPING

    published = dict(PRESETS[name].config)
    config = CONFIG_MAPPING[published.pop("model_type")](**published)
    kind = "full_attention" if name.startswith("gemma") else None
    settings = config.rope_parameters[kind] if kind else config.rope_parameters
    theirs, their_factor = rules[settings["rope_type"]](config, layer_type=kind)
    position = next(
        block.attention.position for block in preset(name).blocks if block.attention.position.scaling is not None
    )
    ours = rotary_frequencies(position, 2 * len(theirs), torch.tensor(1))
    # As above, with ln(500000) / 2 = 6.6 units for the power, so 12, and a ratio of at most 40: 12 + 12 * 40.
    torch.testing.assert_close(ours.float(), theirs, rtol=492 * 2**-24, atol=0)
    assert attention_factor(position) == pytest.approx(their_factor, rel=1e-15)


@pytest.mark.parametrize("start", [3, 60])
@pytest.mark.parametrize("name", FILES)
def test_queries_and_keys_are_turned_as_in_a_llama_of_the_same_file(name, start):
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    # A short original length: text that begins at 3 lies below it, text that begins at 60 beyond.
    settings = FILES[name]
    if "original_max_position_embeddings" in settings:
        settings = {**settings, "original_max_position_embeddings": 13}
    torch.manual_seed(0)
    positions = torch.arange(LENGTH).expand(BATCH, LENGTH) + start
    q, k = torch.randn(2, BATCH, HEADS, LENGTH, HEAD_DIM)
    tables = modeling.LlamaRotaryEmbedding(LlamaConfig(**written(settings, max_positions=61)))(q, positions)
    theirs = modeling.apply_rotary_pos_emb(q, k, *tables)
    rotary = RotaryPositions(read(settings, max_positions=61), HEAD_DIM)
    # Their frequencies are off by up to 72 units of 2^-24 (above), so angles of up to 66 rad by 2.9e-4; a pair of
    # length below 5, times a factor of at most 1.7, then ends up to 2.5e-3 elsewhere.
    torch.testing.assert_close((rotary(q, positions), rotary(k, positions)), theirs, rtol=0, atol=2.5e-3)


def test_plain_linear_and_proportional_frequencies_by_hand():
    """theta 10^4 and D = 8: each pair turns a tenth as fast as the one before."""
    assert frequencies_of(None) == pytest.approx([1, 0.1, 0.01, 0.001], rel=1e-15)
    assert frequencies_of(LinearScaling(factor=2.0)) == pytest.approx([0.5, 0.05, 0.005, 0.0005], rel=1e-15)
    half = ProportionalScaling(share=0.5, factor=4.0)
    assert frequencies_of(half) == pytest.approx([0.25, 0.025, 0, 0], rel=1e-15)
    assert frequencies_of(ProportionalScaling(share=0.7)) == pytest.approx([1, 0.1, 0, 0], rel=1e-15)  # 2.8 pairs


def test_ntk_frequencies_by_hand():
    """Factor 8 = 2^3 in three steps: the pairs are slowed by 1, 2, 4 and 8."""
    slowed = pytest.approx([1, 0.05, 0.0025, 0.000125], rel=1e-15)
    assert frequencies_of(NTKScaling(factor=8.0)) == slowed
    # as one larger base
    assert frequencies_of(None, theta=1e4 * 8 ** (8 / 6)) == pytest.approx(frequencies_of(NTKScaling(factor=8.0)))
    # 45 tokens with factor 2 and 10 original ones: 2 * 45 / 10 - 1 = 8
    dynamic = DynamicNTKScaling(factor=2.0, original_max_positions=10)
    assert frequencies_of(dynamic, text_len=45) == slowed
    assert frequencies_of(NTKScaling(factor=8.0), rotary_dim=2) == [1]  # a pair alone is the first


def test_yarn_frequencies_by_hand():
    """Pair n of D = 8 turns 651.9 / 10^n times in 4096 tokens: 32 times for n = 1.31, once for n = 2.81.

    Rounded outwards the ramp goes from 1 to 3, so pair 2 is half way: 0.01 * (1 + 1/4) / 2.
    """
    rule = YaRNScaling(factor=4.0, original_max_positions=4096)
    assert frequencies_of(rule) == pytest.approx([1, 0.1, 0.00625, 0.00025], rel=1e-15)
    assert attention_factor(Rotary(scaling=rule)) == pytest.approx(0.1 * math.log(4) + 1, rel=1e-15)
    exact = YaRNScaling(factor=4.0, original_max_positions=4096, truncate=False)
    start, end = (math.log10(4096 / (2 * math.pi * turns)) for turns in (32, 1))
    share = (2 - start) / (end - start)
    assert frequencies_of(exact) == pytest.approx([1, 0.1, 0.01 * (1 - 0.75 * share), 0.00025], rel=1e-14)
    assert attention_factor(Rotary(scaling=YaRNScaling(factor=0.5, original_max_positions=3))) == 1


def test_llama3_frequencies_by_hand():
    """Of 2048 tokens the pairs turn 326, 32.6, 3.26 and 0.326 times; between 1 and 4 the share is (turns - 1) / 3."""
    rule = Llama3Scaling(factor=8.0, original_max_positions=2048)
    kept = (2048 * 0.01 / (2 * math.pi) - 1) / 3
    assert kept == pytest.approx(0.7532, abs=1e-4)
    expected = [1, 0.1, 0.01 * (kept + (1 - kept) / 8), 0.001 / 8]
    assert frequencies_of(rule) == pytest.approx(expected, rel=1e-14)


def test_longrope_takes_the_row_of_the_length_by_hand():
    """16 times 4096 = 2^12 tokens: the factor on scores' vectors is sqrt(1 + 4 / 12)."""
    rule = LongRoPEScaling(
        short_factors=(1, 2, 4, 5), long_factors=(2, 5, 10, 20), original_max_positions=4096, factor=16
    )
    assert frequencies_of(rule, text_len=4096) == pytest.approx([1, 0.05, 0.0025, 0.0002], rel=1e-15)
    assert frequencies_of(rule, text_len=4097) == pytest.approx([0.5, 0.02, 0.001, 0.00005], rel=1e-15)
    assert attention_factor(Rotary(scaling=rule)) == pytest.approx(math.sqrt(4 / 3), rel=1e-15)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("name", RULES)
def test_scores_depend_on_distances_only_by_every_rule(name, pairing):
    torch.manual_seed(0)
    rotary = RotaryPositions(Rotary(pairing=pairing, scaling=RULES[name]), HEAD_DIM)
    q, k = torch.randn(2, BATCH, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
    positions = torch.arange(LENGTH)

    def scores(query_shift, key_shift):  # in one text of 2000 tokens
        return rotary(q, positions + query_shift, text_len=2000) @ rotary(k, positions + key_shift, text_len=2000).mT

    # Angles up to 1006 have a spacing of 1.1e-13, and a score is a sum of 11 products of pairs shorter than 5 each.
    torch.testing.assert_close(scores(1000, 1000), scores(0, 0), rtol=0, atol=1e-10)
    assert (scores(1000, 1001) - scores(0, 0)).abs().max() > 0.1


@pytest.mark.parametrize("name", RULES)
def test_lengths_of_vectors_grow_by_the_factor_of_the_rule_alone(name):
    rotary = RotaryPositions(Rotary(scaling=RULES[name]), HEAD_DIM)
    vectors = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
    factor = attention_factor(rotary.config)
    assert (factor > 1) == (name in ("yarn", "longrope"))
    torch.testing.assert_close(rotary(vectors, torch.arange(LENGTH)).norm(dim=-1), factor * vectors.norm(dim=-1))


def test_dynamic_ntk_is_plain_up_to_the_original_length_and_slower_beyond():
    plain = RotaryPositions(Rotary(), HEAD_DIM)
    dynamic = RotaryPositions(Rotary(scaling=DynamicNTKScaling(factor=2.0, original_max_positions=LENGTH)), HEAD_DIM)
    vectors = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
    positions = torch.arange(LENGTH)
    assert torch.equal(dynamic(vectors, positions), plain(vectors, positions))
    assert not torch.equal(dynamic(vectors, positions + 1), plain(vectors, positions + 1))
    longer = rotary_frequencies(dynamic.config, HEAD_DIM, torch.tensor([LENGTH, LENGTH + 1, 10 * LENGTH]))
    assert (longer[0, 1:] > longer[1, 1:]).all() and (longer[1, 1:] > longer[2, 1:]).all()


@pytest.mark.parametrize("name", READ_LENGTH)
def test_the_length_is_the_largest_position_plus_one_of_each_row(name):
    """A row alone is what it is in the batch, and padding on the left with any small position changes nothing."""
    rotary = RotaryPositions(Rotary(scaling=RULES[name]), HEAD_DIM)
    vectors = torch.randn(2, HEADS, 5, HEAD_DIM, dtype=torch.float64)
    positions = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 9, 10]])  # 5 tokens are plain, 11 are not
    together = rotary(vectors, positions)
    for row in range(2):
        alone = rotary(vectors[row : row + 1], positions[row])
        given = rotary(vectors[row : row + 1], positions[row], text_len=int(positions[row, -1]) + 1)
        assert torch.equal(together[row : row + 1], alone)
        assert torch.equal(together[row : row + 1], given)
    assert torch.equal(together[1, :, 3:], rotary(vectors[1:, :, 3:], positions[1, 3:])[0])


@pytest.mark.parametrize("name", READ_LENGTH)
def test_packed_texts_are_turned_as_alone_when_their_lengths_are_given(name):
    rotary = RotaryPositions(Rotary(scaling=RULES[name]), HEAD_DIM)
    vectors = torch.randn(1, HEADS, 10, HEAD_DIM, dtype=torch.float64)
    positions = torch.tensor([0, 1, 2, 0, 1, 2, 3, 4, 5, 6])
    packed = rotary(vectors, positions, text_len=torch.tensor([3] * 3 + [7] * 7))
    assert torch.equal(packed[:, :, :3], rotary(vectors[:, :, :3], torch.arange(3)))
    assert torch.equal(packed[:, :, 3:], rotary(vectors[:, :, 3:], torch.arange(7)))


@pytest.mark.parametrize("name", READ_LENGTH)
def test_lengths_broadcast_to_positions(name):
    rotary = RotaryPositions(Rotary(scaling=RULES[name]), HEAD_DIM)
    vectors = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
    positions = torch.arange(LENGTH).expand(BATCH, LENGTH)
    lengths = torch.tensor([3] * 3 + [1000] * 4)
    each = rotary(vectors, positions, text_len=lengths.expand(BATCH, LENGTH))
    assert torch.equal(rotary(vectors, positions, text_len=lengths), each)
    assert torch.equal(rotary(vectors, positions[0], text_len=lengths), each)
    assert not torch.equal(rotary(vectors, positions), each)
    whole = rotary(vectors, positions, text_len=1000)
    for text_len in (torch.tensor(1000), torch.tensor([1000]), torch.full((BATCH, 1), 1000, dtype=torch.int16)):
        assert torch.equal(rotary(vectors, positions, text_len=text_len), whole)


@pytest.mark.parametrize("name", READ_LENGTH)
def test_a_stream_of_one_length_is_turned_token_by_token_as_at_once(name):
    rotary = RotaryPositions(Rotary(scaling=RULES[name]), HEAD_DIM)
    vectors = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
    whole = rotary(vectors, torch.arange(LENGTH), text_len=97)
    steps = [rotary(vectors[:, :, [step]], torch.tensor([step]), text_len=97) for step in range(LENGTH)]
    assert torch.equal(torch.cat(steps, dim=2), whole)
    assert not torch.equal(rotary(vectors[:, :, :1], torch.tensor([0]) + 4), whole[:, :, :1])


@pytest.mark.parametrize("name", [name for name in RULES if name not in READ_LENGTH])
def test_rules_that_do_not_read_a_length_take_any(name):
    config = Rotary(scaling=RULES[name])
    assert not config.reads_length
    vectors, positions = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM), torch.arange(LENGTH)
    rotary = RotaryPositions(config, HEAD_DIM)
    for text_len in (100_000, torch.tensor(9), torch.full((LENGTH,), 9)):
        assert torch.equal(rotary(vectors, positions, text_len=text_len), rotary(vectors, positions))


@pytest.mark.parametrize("name", RULES)
def test_rules_survive_bfloat16_and_no_tokens(name):
    rotary = RotaryPositions(Rotary(scaling=RULES[name]), HEAD_DIM)
    vectors, positions = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM).bfloat16(), torch.arange(LENGTH) + 100_000
    assert torch.equal(rotary.bfloat16()(vectors, positions), rotary(vectors.float(), positions).bfloat16())
    assert not rotary.state_dict() and not list(rotary.buffers())
    assert rotary(vectors[:, :, :0], positions[:0]).shape == (BATCH, HEADS, 0, HEAD_DIM)


@pytest.mark.parametrize(
    ("text_len", "came"),
    [
        (torch.tensor([1, 2, 3]), r"torch.int64 of shape \(3,\)"),
        (torch.ones(BATCH, 1), r"torch.float32 of shape \(2, 1\)"),
        (torch.ones(3, LENGTH, dtype=torch.int64), r"torch.int64 of shape \(3, 7\)"),
        (torch.ones(1, BATCH, LENGTH, dtype=torch.int64), r"torch.int64 of shape \(1, 2, 7\)"),
    ],
)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["linear", "dynamic"])
def test_lengths_that_do_not_belong_to_the_tokens_are_refused(name, text_len, came):
    rotary = RotaryPositions(Rotary(scaling=RULES[name]), HEAD_DIM)
    vectors, positions = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM), torch.arange(LENGTH).expand(BATCH, LENGTH)
    with pytest.raises(ConfigError, match=rf"numbers that broadcast to positions, \(2, 7\); got {came}"):
        rotary(vectors, positions, text_len=text_len)


def test_a_rule_must_list_a_factor_for_each_pair():
    with pytest.raises(ConfigError, match="must hold one number for each of the 4 pairs that are turned; got 11"):
        RotaryPositions(Rotary(scaling=RULES["longrope"]), 8)
    RotaryPositions(Rotary(scaling=RULES["longrope"], rotary_dim=HEAD_DIM), 32)
