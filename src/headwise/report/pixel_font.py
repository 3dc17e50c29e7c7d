"""Letters for a picture that no drawing library makes: five pixels wide, nine high with what hangs below the line.

Small letters alone, digits and a few signs: a capital is written small, and what is none of them as an empty box.
"""

from functools import cache

GLYPH_WIDTH, GLYPH_HEIGHT = 5, 9
ADVANCE = GLYPH_WIDTH + 1  # from one letter to the next
BOX = ("#####", *["#...#"] * 5, "#####", ".....", ".....")
BANDS = (
    (
        "0123456789",
        """
        .###. ..#.. .###. .###. ...#. ##### .###. ##### .###. .###.
        #...# .##.. #...# #...# ..##. #.... #.... ....# #...# #...#
        #..## ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
        #.#.# ..#.. ...#. ..##. #..#. ....# ####. ..#.. .###. .####
        ##..# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....#
        #...# ..#.. .#... #...# ...#. #...# #...# ..#.. #...# ....#
        .###. .###. ##### .###. ...#. .###. .###. ..#.. .###. .###.
        ..... ..... ..... ..... ..... ..... ..... ..... ..... .....
        ..... ..... ..... ..... ..... ..... ..... ..... ..... .....
        """,
    ),
    (
        "abcdefghijklm",
        """
        ..... #.... ..... ....# ..... ..##. ..... #.... ..#.. ...#. #.... .##.. .....
        ..... #.... ..... ....# ..... .#... ..... #.... ..... ..... #.... ..#.. .....
        .###. ####. .###. .#### .###. ####. .#### ####. .##.. ..##. #..#. ..#.. ##.#.
        ....# #...# #.... #...# #...# .#... #...# #...# ..#.. ...#. #.#.. ..#.. #.#.#
        .#### #...# #.... #...# ##### .#... #...# #...# ..#.. ...#. ##... ..#.. #.#.#
        #...# #...# #.... #...# #.... .#... #...# #...# ..#.. ...#. #.#.. ..#.. #.#.#
        .#### ####. .###. .#### .###. .#... .#### #...# .###. ...#. #..#. .###. #.#.#
        ..... ..... ..... ..... ..... ..... ....# ..... ..... ...#. ..... ..... .....
        ..... ..... ..... ..... ..... ..... .###. ..... ..... .##.. ..... ..... .....
        """,
    ),
    (
        "nopqrstuvwxyz",
        """
        ..... ..... ..... ..... ..... ..... .#... ..... ..... ..... ..... ..... .....
        ..... ..... ..... ..... ..... ..... .#... ..... ..... ..... ..... ..... .....
        ####. .###. ####. .#### #.##. .#### ####. #...# #...# #.#.# #...# #...# #####
        #...# #...# #...# #...# ##... #.... .#... #...# #...# #.#.# .#.#. #...# ...#.
        #...# #...# #...# #...# #.... .###. .#... #...# .#.#. #.#.# ..#.. #...# ..#..
        #...# #...# #...# #...# #.... ....# .#... #...# .#.#. #.#.# .#.#. #...# .#...
        #...# .###. ####. .#### #.... ####. ..##. .#### ..#.. .#.#. #...# .#### #####
        ..... ..... #.... ....# ..... ..... ..... ..... ..... ..... ..... ....# .....
        ..... ..... #.... ....# ..... ..... ..... ..... ..... ..... ..... .###. .....
        """,
    ),
    (
        ".,:;-+/_()",
        """
        ..... ..... ..... ..... ..... ..... ....# ..... ...#. .#...
        ..... ..... ..... ..... ..... ..... ....# ..... ..#.. ..#..
        ..... ..... .##.. .##.. ..... ..#.. ...#. ..... .#... ...#.
        ..... ..... .##.. .##.. ..... ..#.. ..#.. ..... .#... ...#.
        ..... ..... ..... ..... .###. ##### .#... ..... .#... ...#.
        .##.. .##.. .##.. .##.. ..... ..#.. #.... ..... ..#.. ..#..
        .##.. .##.. .##.. .##.. ..... ..#.. #.... ..... ...#. .#...
        ..... .#... ..... .#... ..... ..... ..... ##### ..... .....
        ..... #.... ..... ..... ..... ..... ..... ..... ..... .....
        """,
    ),
)


def measure_text(text: str, *, scale: int) -> int:
    """Return how many pixels wide a text is, each pixel of a letter `scale` by `scale` of the picture's."""
    return scale * max(0, ADVANCE * len(text) - 1)


def draw_text(text: str, *, scale: int) -> list[list[tuple[int, int]]]:
    """Return the inked stretches of each row of pixels, top to bottom: where one starts, and where the next blank is.

    Args:
        text: one line.
        scale: pixels of the picture on each side of a pixel of a letter.
    """
    rows: list[list[tuple[int, int]]] = [[] for _ in range(scale * GLYPH_HEIGHT)]
    for place, sign in enumerate(text.lower()):
        for row, line in enumerate(_glyphs().get(sign, BOX)):
            for column in range(GLYPH_WIDTH):
                if line[column] == "#":
                    start = scale * (ADVANCE * place + column)
                    for number in range(scale * row, scale * (row + 1)):
                        rows[number].append((start, start + scale))
    return rows


@cache
def _glyphs() -> dict[str, tuple[str, ...]]:
    """Return the rows of each letter; of a blank, empty ones."""
    glyphs = {" ": ("." * GLYPH_WIDTH,) * GLYPH_HEIGHT}
    for signs, drawn in BANDS:
        columns = zip(*(line.split() for line in drawn.split("\n") if line.strip()), strict=True)
        glyphs.update(zip(signs, columns, strict=True))
    return glyphs
