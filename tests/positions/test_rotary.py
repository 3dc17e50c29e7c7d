"""Rotary positions turn pairs like complex numbers, and scores then depend on distances only."""

import cmath

import numpy as np
import pytest
import torch

from headwise.config.attention import Rotary
from headwise.config.scaling import LinearScaling
from headwise.errors import ConfigError
from headwise.positions import rotary as rotary_module
from headwise.positions.rotary import RotaryPositions, rotary_tables
from headwise.positions.scaling import rotary_frequencies

BATCH, HEADS, LENGTH, HEAD_DIM = 2, 3, 7, 10
PAIRINGS = {
    "half": [(i, i + HEAD_DIM // 2) for i in range(HEAD_DIM // 2)],
    "interleaved": [(2 * i, 2 * i + 1) for i in range(HEAD_DIM // 2)],
}


def turn_by_complex_numbers(vector, position, theta, pairs):
    """The oracle: each pair is one complex number, multiplied by exp(i * angle)."""
    turned = [0.0] * len(vector)
    for index, (first, second) in enumerate(pairs):
        angle = position * theta ** (-2 * index / len(vector))
        number = complex(vector[first], vector[second]) * cmath.exp(1j * angle)
        turned[first], turned[second] = number.real, number.imag
    return turned


@pytest.mark.parametrize("theta", [10000.0, 500000])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_pairs_turn_as_complex_numbers_at_each_texts_own_positions(pairing, theta):
    torch.manual_seed(0)
    vectors = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
    positions = torch.randint(0, 100_000, (BATCH, LENGTH))
    turned = RotaryPositions(Rotary(theta=theta, pairing=pairing), HEAD_DIM)(vectors, positions)
    for batch in range(BATCH):
        for head in range(HEADS):
            for token in range(LENGTH):
                expected = turn_by_complex_numbers(
                    vectors[batch, head, token].tolist(), positions[batch, token].item(), theta, PAIRINGS[pairing]
                )
                # Python and torch round the same angle, up to 1e5 with a spacing of 1.5e-11, each in its own way.
                torch.testing.assert_close(turned[batch, head, token].tolist(), expected, rtol=0, atol=1e-10)


def test_a_turn_worked_out_by_hand():
    """theta 100 and D = 4: frequencies 1 and 1/10; at position 2 the angles are 2 and 0.2."""
    vectors = torch.tensor([[[[1.0, 1.0, 0.0, 0.0]]]])
    turned = RotaryPositions(Rotary(theta=100), 4)(vectors, torch.tensor([2]))
    torch.testing.assert_close(turned[0, 0, 0], torch.tensor([-0.416147, 0.980067, 0.909297, 0.198669]))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_scores_depend_on_distances_only(pairing):
    torch.manual_seed(0)
    rotary = RotaryPositions(Rotary(pairing=pairing), HEAD_DIM)
    q, k = torch.randn(2, BATCH, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
    positions = torch.arange(LENGTH)

    def scores(query_shift, key_shift):
        return rotary(q, positions + query_shift) @ rotary(k, positions + key_shift).mT

    torch.testing.assert_close(scores(1000, 1000), scores(0, 0), rtol=0, atol=1e-10)
    assert (scores(1000, 1001) - scores(0, 0)).abs().max() > 0.1  # another distance is another score


def test_position_zero_and_lengths_of_vectors_stay():
    rotary = RotaryPositions(Rotary(), HEAD_DIM)
    vectors = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
    assert torch.equal(rotary(vectors, torch.zeros(LENGTH, dtype=torch.long)), vectors)
    turned = rotary(vectors, torch.arange(LENGTH))
    torch.testing.assert_close(turned.norm(dim=-1), vectors.norm(dim=-1))


def test_one_row_of_positions_serves_every_text():
    rotary = RotaryPositions(Rotary(), HEAD_DIM)
    vectors, positions = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM), torch.arange(3, 3 + LENGTH)
    assert torch.equal(rotary(vectors, positions), rotary(vectors, positions.expand(BATCH, LENGTH)))


def test_the_two_pairings_are_one_turn_of_reordered_dimensions():
    vectors, positions = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM), torch.arange(LENGTH)
    order = [first for first, _ in PAIRINGS["interleaved"]] + [second for _, second in PAIRINGS["interleaved"]]
    interleaved = RotaryPositions(Rotary(pairing="interleaved"), HEAD_DIM)(vectors, positions)
    half = RotaryPositions(Rotary(pairing="half"), HEAD_DIM)(vectors[..., order], positions)
    assert torch.equal(interleaved[..., order], half)


def test_the_other_pairing_shows_at_large_positions():
    vectors, positions = torch.ones(1, 1, 1, HEAD_DIM), torch.tensor([1000])
    half, interleaved = (RotaryPositions(Rotary(pairing=pairing), HEAD_DIM)(vectors, positions) for pairing in PAIRINGS)
    assert (half - interleaved).abs().max() > 0.1


@pytest.mark.parametrize("position", [257, 16_383, 131_071])
def test_angles_survive_bfloat16(position):
    """With a table or frequencies in bfloat16 the cosine is off by up to 2."""
    rotary = RotaryPositions(Rotary(), HEAD_DIM).to(torch.bfloat16)
    # A pair (1, 0) becomes (cos, sin), rounded to bfloat16 once: half a unit in the last of 8 bits of a number up to 1.
    vectors = torch.cat([torch.ones(HEAD_DIM // 2), torch.zeros(HEAD_DIM // 2)]).bfloat16().view(1, 1, 1, -1)
    turned = rotary(vectors, torch.tensor([position]))
    assert turned.dtype == torch.bfloat16
    pairs = PAIRINGS["half"]
    expected = torch.tensor(turn_by_complex_numbers(vectors.flatten().tolist(), position, 10000.0, pairs))
    torch.testing.assert_close(turned.flatten().float(), expected, rtol=0, atol=2**-9)


def test_a_low_precision_result_is_the_float32_result_rounded_once():
    vectors, positions = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM).bfloat16(), torch.arange(LENGTH) + 1000
    rotary = RotaryPositions(Rotary(), HEAD_DIM)
    assert torch.equal(rotary(vectors, positions), rotary(vectors.float(), positions).bfloat16())


def test_nothing_of_a_module_can_be_rounded():
    assert not RotaryPositions(Rotary(), HEAD_DIM).state_dict()
    assert not list(RotaryPositions(Rotary(), HEAD_DIM).buffers())


def test_tables_are_float64_and_take_a_factor():
    positions = torch.arange(3, dtype=torch.int32)
    cos, sin = rotary_tables(positions, rotary_frequencies(Rotary(), HEAD_DIM, positions))
    assert cos.dtype == sin.dtype == torch.float64
    assert cos.shape == (3, HEAD_DIM // 2)
    larger = rotary_tables(positions, rotary_frequencies(Rotary(), HEAD_DIM, positions), factor=1.5)
    assert torch.equal(torch.stack(larger), 1.5 * torch.stack((cos, sin)))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_partly_turned_head_is_a_smaller_head_and_a_rest_that_stays(pairing):
    vectors = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM + 7, dtype=torch.float64)
    positions = torch.arange(LENGTH) + 50
    turned = RotaryPositions(Rotary(pairing=pairing, rotary_dim=HEAD_DIM), HEAD_DIM + 7)(vectors, positions)
    assert torch.equal(turned[..., HEAD_DIM:], vectors[..., HEAD_DIM:])
    whole = RotaryPositions(Rotary(pairing=pairing), HEAD_DIM)
    assert torch.equal(turned[..., :HEAD_DIM], whole(vectors[..., :HEAD_DIM], positions))
    assert RotaryPositions(Rotary(rotary_dim=HEAD_DIM), HEAD_DIM)(vectors[..., :HEAD_DIM], positions).shape[-1] == 10


def test_it_turns_as_much_of_a_head_as_gpt_neox_does():
    modeling = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
    from transformers import GPTNeoXConfig

    config = GPTNeoXConfig(hidden_size=3 * 16, num_attention_heads=3, rotary_pct=0.625)  # 10 of 16
    positions = torch.arange(LENGTH).expand(BATCH, LENGTH) + 50
    torch.manual_seed(0)
    q, k = torch.randn(2, BATCH, 3, LENGTH, 16)
    theirs = modeling.apply_rotary_pos_emb(q, k, *modeling.GPTNeoXRotaryEmbedding(config)(q, positions))
    rotary = RotaryPositions(Rotary(rotary_dim=10), 16)
    # Bounded as for Llama below.
    torch.testing.assert_close((rotary(q, positions), rotary(k, positions)), theirs, rtol=0, atol=2e-5)


def test_gradients_turn_back():
    vectors = torch.randn(1, 1, 3, HEAD_DIM, dtype=torch.float64, requires_grad=True)
    rotary = RotaryPositions(Rotary(), HEAD_DIM)
    assert torch.autograd.gradcheck(rotary, (vectors, torch.arange(3)))


def test_heads_that_cannot_be_turned_are_refused():
    with pytest.raises(ConfigError, match="head_dim must be even for rotary positions, which turn pairs; got 7"):
        RotaryPositions(Rotary(), 7)
    with pytest.raises(ConfigError, match="rotary_dim must not exceed head_dim; got 8 and 6"):
        RotaryPositions(Rotary(rotary_dim=8), 6)


def test_the_print_of_a_module_tells_what_it_does():
    assert repr(RotaryPositions(Rotary(), 6)) == "RotaryPositions(head_dim=6, theta=10000.0, pairing='half')"
    scaled = Rotary(scaling=LinearScaling(factor=2.0), rotary_dim=4)
    assert repr(RotaryPositions(scaled, 6)).endswith("scaling=LinearScaling(factor=2.0), rotary_dim=4)")


def test_it_turns_as_llama_does_with_half_pairs():
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, head_dim=HEAD_DIM)
    positions = torch.arange(LENGTH).expand(BATCH, LENGTH) + 50
    q, k = torch.randn(2, BATCH, HEADS, LENGTH, HEAD_DIM)
    tables = modeling.LlamaRotaryEmbedding(config)(q, positions)
    rotary = RotaryPositions(Rotary(), HEAD_DIM)
    # Their angles are float32, off by up to 3.8e-6 near 57; a pair of length below 5 then ends up to 1.9e-5 elsewhere.
    theirs = modeling.apply_rotary_pos_emb(q, k, *tables)
    torch.testing.assert_close((rotary(q, positions), rotary(k, positions)), theirs, rtol=0, atol=2e-5)


@torch.no_grad()
def test_positions_that_change_between_calls_are_read_anew():
    """Also where torch does not see the change: a buffer of numpy's, say, or a graph that is replayed."""
    buffer = np.arange(1)
    positions = torch.from_numpy(buffer)
    rotary, vectors = RotaryPositions(Rotary(), HEAD_DIM), torch.randn(1, 1, 1, HEAD_DIM)
    turned = []
    for place in (3, 7):
        buffer[0] = place
        turned.append(rotary(vectors, positions))
        assert torch.equal(turned[-1], rotary(vectors, torch.tensor([place])))
    assert not torch.equal(*turned)


@torch.no_grad()
def test_layers_share_the_angles_of_the_same_positions_alone(monkeypatch):
    made = []
    make = rotary_module.rotary_tables
    monkeypatch.setattr(rotary_module, "rotary_tables", lambda *args: made.append(1) or make(*args))
    vectors, positions = torch.randn(1, 1, 3, HEAD_DIM), torch.arange(3)
    modules = [RotaryPositions(Rotary(), HEAD_DIM) for _ in range(2)]
    other = RotaryPositions(Rotary(theta=7.0), HEAD_DIM)
    expected = [module(vectors, positions) for module in (*modules, other)]
    made.clear()
    with rotary_module.shared_tables():
        found = [module(vectors, positions) for module in (*modules, other)]
        assert len(made) == 2
        assert torch.equal(modules[0](vectors, positions + 1), modules[0](vectors, torch.arange(1, 4)))
        assert len(made) == 4
    for one, same in zip(found, expected, strict=True):
        assert torch.equal(one, same)
    made.clear()
    modules[0](vectors, positions)
    assert len(made) == 1
