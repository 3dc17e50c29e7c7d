// All statistics of all heads, sorted by any column.
const statisticsTable = {
  sorted: 0,
  descending: false,

  start() {
    this.columns = [
      { label: "Layer", valueOf: (head) => head.layer },
      { label: "Head", valueOf: (head) => head.head },
      ...data.statistics.map((statistic, index) => ({ ...statistic, index, valueOf: (head) => head.values[index] })),
    ];
    const header = make("tr");
    this.columns.forEach((column, position) => {
      const button = make("button", { type: "button" }, column.label);
      button.addEventListener("click", () => this.sortBy(position));
      column.header = make("th", { scope: "col", title: column.about || null }, button);
      header.append(column.header);
    });
    this.rows = data.heads.map((head) => ({ head, row: this.makeRow(head) }));
    this.body = make("tbody");
    byId("statistics").append(make("thead", {}, header), this.body);
    this.place();
  },

  makeRow(head) {
    const open = make("button", { type: "button", class: "link", "aria-label": `Open layer ${head.layer}, head ${head.head}` });
    open.textContent = String(head.head);
    open.addEventListener("click", () => headView.open(head.layer, head.head));
    const row = make("tr", {}, make("td", {}, String(head.layer)), make("td", {}, open));
    data.statistics.forEach((statistic, index) => {
      row.append(make("td", { class: head.held.includes(index) ? "holds" : null }, format(head.values[index], statistic)));
    });
    return row;
  },

  // The first click on a number puts the largest on top, on a layer or head the smallest; the next turns it round.
  sortBy(position) {
    this.descending = this.sorted === position ? !this.descending : position >= 2;
    this.sorted = position;
    this.place();
  },

  place() {
    const { valueOf } = this.columns[this.sorted];
    const sign = this.descending ? -1 : 1;
    // what is not known stands last either way; equals keep their order (layer, head)
    const rank = (entry) => valueOf(entry.head) ?? sign * Infinity;
    const compare = (one, other) => (rank(one) === rank(other) ? 0 : sign * (rank(one) - rank(other)));
    this.body.append(...[...this.rows].sort(compare).map((entry) => entry.row));
    this.columns.forEach((column, position) => {
      const order = this.descending ? "descending" : "ascending";
      if (position === this.sorted) column.header.setAttribute("aria-sort", order);
      else column.header.removeAttribute("aria-sort");
    });
  },
};
