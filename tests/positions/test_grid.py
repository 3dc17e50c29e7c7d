"""Rotary positions of a grid: scores of patches depend on their distances along rows and along columns."""

import jaxtyping
import pytest
import torch

from headwise.config.attention import Rotary
from headwise.config.scaling import LinearScaling
from headwise.errors import ConfigError, UnsupportedError
from headwise.positions.grid import GridRotaryPositions, grid_positions
from headwise.positions.rotary import RotaryPositions

BATCH, HEADS, ROWS, COLUMNS, HEAD_DIM = 2, 3, 5, 7, 12
PATCHES = ROWS * COLUMNS
PAIRINGS = ("half", "interleaved")


@pytest.fixture
def unchecked():
    """Let wrong arguments reach our own errors, past the annotations that only tests check."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def pairs_of(pairing):
    half = HEAD_DIM // 2
    return [(i, i + half) if pairing == "half" else (2 * i, 2 * i + 1) for i in range(half)]


def test_patches_are_counted_row_after_row():
    assert grid_positions(2, 3).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert grid_positions(1, 1).tolist() == [[0, 0]]


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_the_first_half_of_pairs_is_turned_by_the_row_and_the_second_by_the_column(pairing):
    """The oracle: each half is a head of half the size, turned by RotaryPositions."""
    vectors = torch.randn(BATCH, HEADS, PATCHES, HEAD_DIM, dtype=torch.float64)
    grid = grid_positions(ROWS, COLUMNS)
    turned = GridRotaryPositions(Rotary(pairing=pairing, theta=100), HEAD_DIM)(vectors, grid)
    pairs = pairs_of(pairing)
    quarter = HEAD_DIM // 4
    for axis, of_axis in enumerate((pairs[:quarter], pairs[quarter:])):
        dimensions = [first for first, _ in of_axis] + [second for _, second in of_axis]
        expected = RotaryPositions(Rotary(theta=100), HEAD_DIM // 2)(vectors[..., dimensions], grid[:, axis])
        assert torch.equal(turned[..., dimensions], expected)


def test_a_turn_worked_out_by_hand():
    """D = 4: one pair for each axis, of frequency 1; row 2 and column 3 are the two angles."""
    vectors = torch.tensor([[[[1.0, 1.0, 0.0, 0.0]]]])
    turned = GridRotaryPositions(Rotary(), 4)(vectors, torch.tensor([[2, 3]]))
    torch.testing.assert_close(turned[0, 0, 0], torch.tensor([-0.416147, -0.989992, 0.909297, 0.141120]))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_scores_depend_on_both_distances_only(pairing):
    torch.manual_seed(0)
    rotary = GridRotaryPositions(Rotary(pairing=pairing), HEAD_DIM)
    q, k = torch.randn(2, BATCH, HEADS, PATCHES, HEAD_DIM, dtype=torch.float64)
    grid = grid_positions(ROWS, COLUMNS)

    def scores(query_shift, key_shift):
        return rotary(q, grid + torch.tensor(query_shift)) @ rotary(k, grid + torch.tensor(key_shift)).mT

    # Angles up to 106 have a spacing of 1.4e-14, and a score is a sum of 6 products of pairs shorter than 5 each.
    torch.testing.assert_close(scores((100, 30), (100, 30)), scores((0, 0), (0, 0)), rtol=0, atol=1e-11)
    for other in ((100, 31), (101, 30), (101, 29)):  # another distance along either axis, or along both
        assert (scores((100, 30), other) - scores((0, 0), (0, 0))).abs().max() > 0.1


def test_lengths_stay_and_each_image_can_have_places_of_its_own():
    rotary = GridRotaryPositions(Rotary(), HEAD_DIM)
    vectors = torch.randn(BATCH, HEADS, PATCHES, HEAD_DIM, dtype=torch.float64)
    grid = grid_positions(ROWS, COLUMNS)
    moved = torch.stack([grid, grid.flip(0)])
    turned = rotary(vectors, moved)
    torch.testing.assert_close(turned.norm(dim=-1), vectors.norm(dim=-1))
    for image in range(BATCH):
        assert torch.equal(turned[image : image + 1], rotary(vectors[image : image + 1], moved[image]))


def test_the_rest_of_a_partly_turned_head_stays():
    vectors = torch.randn(BATCH, HEADS, PATCHES, HEAD_DIM)
    grid = grid_positions(ROWS, COLUMNS)
    turned = GridRotaryPositions(Rotary(rotary_dim=8), HEAD_DIM)(vectors, grid)
    assert torch.equal(turned[..., 8:], vectors[..., 8:])
    assert torch.equal(turned[..., :8], GridRotaryPositions(Rotary(), 8)(vectors[..., :8], grid))


def test_a_low_precision_result_is_the_float32_result_rounded_once():
    vectors, grid = torch.randn(BATCH, HEADS, PATCHES, HEAD_DIM).bfloat16(), grid_positions(ROWS, COLUMNS) + 1000
    rotary = GridRotaryPositions(Rotary(), HEAD_DIM).to(torch.bfloat16)
    assert torch.equal(rotary(vectors, grid), rotary(vectors.float(), grid).bfloat16())


def test_it_turns_as_the_image_encoder_of_qwen2_vl():
    modeling = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl")
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig

    config = Qwen2VLVisionConfig(embed_dim=HEADS * HEAD_DIM, num_heads=HEADS)
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, HEADS, PATCHES, HEAD_DIM)
    grid = grid_positions(ROWS, COLUMNS)
    cos, sin = modeling.Qwen2VLVisionRotaryEmbedding(config)(q, grid)
    theirs = modeling.apply_rotary_pos_emb_vision(q[0].transpose(0, 1), k[0].transpose(0, 1), cos, sin)
    rotary = GridRotaryPositions(Rotary(), HEAD_DIM)
    ours = tuple(rotary(x, grid)[0].transpose(0, 1) for x in (q, k))
    # Their angles, up to 6, are float32 and off by a few units of 2^-24 each; pairs are shorter than 5.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="must be a multiple of 4, half of their pairs for each axis; got 10"):
        GridRotaryPositions(Rotary(), 10)
    with pytest.raises(ConfigError, match="rotary_dim must not exceed head_dim; got 16 and 12"):
        GridRotaryPositions(Rotary(rotary_dim=16), HEAD_DIM)
    with pytest.raises(UnsupportedError, match=r"must be unscaled \(scaling=None\); got LinearScaling\(factor=2.0\)"):
        GridRotaryPositions(Rotary(scaling=LinearScaling(factor=2.0)), HEAD_DIM)


@pytest.mark.parametrize(
    ("places", "came"),
    [
        (grid_positions(1, 2), r"torch.int64 of shape \(2, 2\)"),
        (torch.arange(3), r"torch.int64 of shape \(3,\)"),
        (torch.zeros(3, 2), r"torch.float32 of shape \(3, 2\)"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_places_that_are_not_row_and_column_of_each_patch_are_refused(places, came):
    with pytest.raises(ConfigError, match=rf"row and column of each patch.*\(3, 2\) or \(1, 3, 2\); got {came}"):
        GridRotaryPositions(Rotary(), HEAD_DIM)(torch.zeros(1, 1, 3, HEAD_DIM), places)
