"""Sinusoids for any position, whose shifts are linear maps; a learned table that says where it ends and can stretch."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from headwise.errors import ConfigError
from headwise.positions.absolute import LearnedPositions, SinusoidalPositions

BATCH, LENGTH, EMBED, ROWS = 2, 7, 10, 11


def sinusoid(position, embed_dim, theta=10000.0):
    """The oracle: the paper's two lines, one number at a time."""
    return [
        (math.sin if place % 2 == 0 else math.cos)(position / theta ** ((place - place % 2) / embed_dim))
        for place in range(embed_dim)
    ]


@pytest.mark.parametrize("theta", [10000.0, 100.0])
def test_sinusoids_are_those_of_the_paper_at_any_position(theta):
    positions = torch.randint(0, 100_000, (BATCH, LENGTH))
    found = SinusoidalPositions(EMBED, theta=theta)(positions, dtype=torch.float64)
    expected = [[sinusoid(position, EMBED, theta) for position in row] for row in positions.tolist()]
    # Python and torch round the same angle, up to 1e5 with a spacing of 1.5e-11, each in its own way.
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)


def test_a_vector_worked_out_by_hand():
    """theta 100 and E = 4: frequencies 1 and 1/10; at position 2 the angles are 2 and 0.2."""
    found = SinusoidalPositions(4, theta=100.0)(torch.tensor([0, 2]))
    expected = torch.tensor([[0, 1, 0, 1], [0.909297, -0.416147, 0.198669, 0.980067]])
    torch.testing.assert_close(found, expected)


def test_a_shift_is_one_linear_map_wherever_it_starts():
    """Fitted on one stretch of places, the map of a shift by 3 serves far places that it never saw."""
    vectors = SinusoidalPositions(EMBED)

    def at(start, count=2000):  # so many places that even the slowest pair is seen turning
        return vectors(torch.arange(start, start + count), dtype=torch.float64)

    shift = torch.linalg.lstsq(at(0), at(3)).solution
    for start in (2003, 90_000):
        # Angles up to 1e5 have a spacing of 1.5e-11.
        torch.testing.assert_close(at(start) @ shift, at(start + 3), rtol=0, atol=1e-10)
    angle = 3 * 10000.0 ** (-2 / EMBED)  # of the second pair: (sin, cos) is turned by it
    turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    torch.testing.assert_close(shift[2:4, 2:4], torch.tensor(turn, dtype=torch.float64), rtol=0, atol=1e-10)


def test_products_depend_on_distances_only():
    vectors = SinusoidalPositions(EMBED)(torch.arange(2 * LENGTH), dtype=torch.float64)
    products = vectors @ vectors.T
    torch.testing.assert_close(products[1:, 1:], products[:-1, :-1], rtol=0, atol=1e-14)


def test_wavelengths_are_a_geometric_row_from_2_pi():
    """Read off the vectors: the angle of each pair at position 1 is 2 pi divided by its wavelength."""
    vector = SinusoidalPositions(EMBED)(torch.tensor([1]), dtype=torch.float64)[0]
    wavelengths = 2 * math.pi / torch.atan2(vector[0::2], vector[1::2])
    assert wavelengths[0] == pytest.approx(2 * math.pi)
    ratios = wavelengths[1:] / wavelengths[:-1]
    torch.testing.assert_close(ratios, torch.full_like(ratios, 10000.0 ** (2 / EMBED)))


def test_sinusoids_survive_bfloat16():
    vectors, positions = SinusoidalPositions(EMBED), torch.arange(LENGTH) + 100_000
    exact = vectors(positions, dtype=torch.float64)
    assert vectors(positions).dtype == torch.float32
    assert torch.equal(vectors.to(torch.bfloat16)(positions, dtype=torch.bfloat16), exact.bfloat16())
    assert not vectors.state_dict()


def test_sinusoids_come_in_pairs():
    with pytest.raises(ConfigError, match="embed_dim must be even for sinusoids, which come in pairs; got 7"):
        SinusoidalPositions(7)
    with pytest.raises(ConfigError, match="theta must be positive; got 0"):
        SinusoidalPositions(4, theta=0.0)


def test_a_learned_position_is_its_row_and_learns():
    module = LearnedPositions(ROWS, EMBED)
    positions = torch.randint(0, ROWS, (BATCH, LENGTH))
    found = module(positions)
    assert torch.equal(found, module.table[positions])
    found.sum().backward()
    uses = torch.bincount(positions.flatten(), minlength=ROWS)
    assert torch.equal(module.table.grad, uses.float().unsqueeze(-1).expand(ROWS, EMBED))


def test_a_longer_text_is_refused_with_the_reason_and_the_way_out():
    module = LearnedPositions(ROWS, EMBED)
    module(torch.arange(ROWS))
    text = (
        r"positions must be below max_positions = 11: a learned table has a row for each position that it was trained "
        r"on, and none beyond; got 13; shorten the text, or take extend\(14\), which stretches the table"
    )
    with pytest.raises(ConfigError, match=text):
        module(torch.tensor([0, 13, 2]))
    with pytest.raises(ConfigError, match=r"none beyond; got 11; shorten the text, or take extend\(12\)"):
        module(torch.tensor([ROWS]))
    with pytest.raises(ConfigError, match=r"positions must be at least 0.*got -1"):
        module(torch.tensor([3, -1]))
    assert module.extend(14)(torch.tensor([0, 13, 2])).shape == (3, EMBED)


def test_positions_without_numbers_are_not_looked_at():
    module, positions = LearnedPositions(ROWS, EMBED), torch.randint(ROWS, (3, LENGTH))
    assert torch.equal(torch.func.vmap(module)(positions), module(positions))
    assert LearnedPositions(ROWS, EMBED)(torch.arange(0)).shape == (0, EMBED)
    with FakeTensorMode():
        assert LearnedPositions(ROWS, EMBED)(torch.arange(LENGTH)).shape == (LENGTH, EMBED)


@pytest.mark.parametrize("longer", [ROWS, ROWS + 1, 2 * ROWS - 1, 29])
def test_a_stretched_table_is_torchs_own_linear_interpolation(longer):
    module = LearnedPositions(ROWS, EMBED).double()
    columns = module.table.detach().T.unsqueeze(0)
    expected = functional.interpolate(columns, size=longer, mode="linear", align_corners=True)[0].T
    # Places are off by some units of 2^-53 times 11 there; rows differ by less than 0.2.
    torch.testing.assert_close(module.extend(longer).table.detach(), expected, rtol=0, atol=1e-14)


def test_rows_of_a_long_table_stand_between_their_own_neighbours():
    """In float32, a place just before an old row would be rounded to it, and stand behind it by all of its share."""
    old, new = 7919, 20011
    module = LearnedPositions(old, 1)
    module.table.data = torch.arange(old, dtype=torch.float32).unsqueeze(1) % 2  # 0, 1, 0, 1, ...: a saw
    places = [divmod(row * (old - 1), new - 1) for row in range(new)]
    shares = [rest / (new - 1) for _, rest in places]
    expected = [share if before % 2 == 0 else 1 - share for (before, _), share in zip(places, shares, strict=True)]
    # a share is rounded to float32 once, and the sum once more
    torch.testing.assert_close(module.extend(new).table.flatten(), torch.tensor(expected), rtol=0, atol=2e-7)


def test_a_stretched_table_keeps_its_ends_and_is_straight_between():
    """Rows 0, 10, 40 stretched to five: their middles come between."""
    module = LearnedPositions(3, 1)
    module.table.data = torch.tensor([[0.0], [10.0], [40.0]])
    assert module.extend(5).table.flatten().tolist() == [0, 5, 10, 25, 40]
    assert module.table.flatten().tolist() == [0, 10, 40]
    for longer in (ROWS + 2, 29, 1021):
        short = LearnedPositions(ROWS, EMBED).bfloat16()
        long = short.extend(longer)
        assert (long.max_positions, long.embed_dim) == (longer, EMBED)
        assert torch.equal(long.table[[0, -1]], short.table[[0, -1]])
    assert torch.equal(short.extend(ROWS).table, short.table)
    assert LearnedPositions(1, EMBED).extend(3).table.unique(dim=0).shape == (1, EMBED)


def test_a_stretched_module_is_like_the_one_it_came_from():
    module = LearnedPositions(ROWS, EMBED).bfloat16().eval()
    module.table.requires_grad_(False)
    longer = module.extend(29)
    assert (longer.table.dtype, longer.table.requires_grad, longer.training) == (torch.bfloat16, False, False)
    assert LearnedPositions(ROWS, EMBED).extend(29).table.is_leaf
    assert LearnedPositions(ROWS, EMBED).extend(29).table.requires_grad
    with pytest.raises(ConfigError, match="max_positions must be at least the 11 that the table has; got 7"):
        module.extend(7)
