// Sort the rows of a table by any column, each with its `header` cell, the `button` in it and `valueOf` a row's entry.
// The first click on a column turns it as `descendsFirst` says, the next turns it round.
class Sorter {
  constructor(body, columns, rows) {
    Object.assign(this, { body, columns, rows, sorted: null, descending: false });
    columns.forEach((column, position) => column.button.addEventListener("click", () => this.sortBy(position)));
  }

  sortBy(position) {
    this.descending = this.sorted === position ? !this.descending : this.columns[position].descendsFirst;
    this.sorted = position;
    const { valueOf } = this.columns[position];
    const sign = this.descending ? -1 : 1;
    // what is not known stands last either way; equals keep their order
    const rank = (entry) => valueOf(entry) ?? sign * Infinity;
    const compare = (one, other) => (rank(one) === rank(other) ? 0 : sign * (rank(one) - rank(other)));
    this.body.append(...[...this.rows].sort(compare).map((entry) => entry.row));
    this.columns.forEach((column, place) => {
      if (place === position) column.header.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else column.header.removeAttribute("aria-sort");
    });
  }
}
