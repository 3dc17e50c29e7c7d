"""A picture in colours to paint on, without a drawing library: rectangles, squares of pixels, and words."""

from collections.abc import Sequence

from headwise.png import write_png
from headwise.report.pixel_font import draw_text

Colour = tuple[int, int, int]


class Canvas:
    """Pixels of red, green and blue, row by row from the top left.

    Args:
        width, height: in pixels.
        ground: colour of all of it at first.
    """

    def __init__(self, width: int, height: int, ground: Colour):
        self.width, self.height = width, height
        self._rows = [bytearray(bytes(ground) * width) for _ in range(height)]

    def fill(self, x: int, y: int, width: int, height: int, colour: Colour) -> None:
        """Paint a rectangle, whose top left pixel is at (x, y); all of it must lie on the canvas."""
        assert min(x, y) >= 0 and x + width <= self.width and y + height <= self.height
        for row in self._rows[y : y + height]:
            row[3 * x : 3 * (x + width)] = bytes(colour) * width

    def frame(self, x: int, y: int, side: int, colour: Colour, *, line: int) -> None:
        """Paint a frame around a square, `line` pixels wide and outside of it."""
        outer = side + 2 * line
        self.fill(x - line, y - line, outer, line, colour)
        self.fill(x - line, y + side, outer, line, colour)
        self.fill(x - line, y, line, side, colour)
        self.fill(x + side, y, line, side, colour)

    def paste(self, x: int, y: int, rows: Sequence[bytes], palette: bytes) -> None:
        """Paint rows of pixels, each a place in the palette: red, green and blue of each."""
        red, green, blue = (palette[channel::3].ljust(256, b"\0") for channel in range(3))
        for number, row in enumerate(rows):
            target = self._rows[y + number]
            for channel, table in enumerate((red, green, blue)):
                target[3 * x + channel : 3 * (x + len(row)) : 3] = row.translate(table)

    def write(self, x: int, y: int, text: str, colour: Colour, *, scale: int) -> None:
        """Write one line, whose top left corner is at (x, y)."""
        for number, stretches in enumerate(draw_text(text, scale=scale)):
            for start, end in stretches:
                self.fill(x + start, y + number, end - start, 1, colour)

    def to_png(self) -> bytes:
        """Return the picture as a PNG."""
        return write_png([bytes(row) for row in self._rows], in_colour=True)
