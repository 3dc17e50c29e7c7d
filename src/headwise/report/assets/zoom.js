// Which rows and columns of a map are seen: whole numbers of cells, never outside of it.
const FEWEST_CELLS = 8;

class Zoom {
  constructor(numRows, numColumns) {
    Object.assign(this, { numRows, numColumns, row: 0, column: 0, rows: numRows, columns: numColumns });
  }

  get isWhole() {
    return this.rows === this.numRows && this.columns === this.numColumns;
  }

  get isClosest() {
    return this.rows <= Math.min(FEWEST_CELLS, this.numRows) && this.columns <= Math.min(FEWEST_CELLS, this.numColumns);
  }

  // See `share` of the rows and columns that are seen, with this cell where it was.
  by(share, row, column) {
    const resized = (size, most) => Math.min(most, Math.max(Math.min(FEWEST_CELLS, most), Math.round(size * share)));
    const rows = resized(this.rows, this.numRows);
    const columns = resized(this.columns, this.numColumns);
    const first = (at, start, before, after) => Math.round(at + 0.5 - ((at + 0.5 - start) * after) / before);
    const place = [first(row, this.row, this.rows, rows), first(column, this.column, this.columns, columns)];
    Object.assign(this, { rows, columns });
    this.moveTo(...place);
  }

  moveTo(row, column) {
    this.row = Math.min(this.numRows - this.rows, Math.max(0, row));
    this.column = Math.min(this.numColumns - this.columns, Math.max(0, column));
  }

  // Move just as far as needed to see a cell.
  include(row, column) {
    const near = (at, start, size) => (at < start ? at : at >= start + size ? at - size + 1 : start);
    this.moveTo(near(row, this.row, this.rows), near(column, this.column, this.columns));
  }
}
