// All statistics of all heads of a part, sorted by any column.
const statisticsTable = {
  start() {
    onPart((part) => this.show(part));
  },

  show(part) {
    const shown = statistics.map((statistic, index) => ({ ...statistic, index })).filter(({ index }) => part.shown[index]);
    // of a number the largest first, of layers and heads the first
    const columns = [
      { label: "Layer", valueOf: ({ head }) => head.layer, descendsFirst: false },
      { label: "Head", valueOf: ({ head }) => head.head, descendsFirst: false },
      ...shown.map((statistic) => ({
        ...statistic,
        valueOf: ({ head }) => head.values[statistic.index],
        descendsFirst: true,
      })),
    ];
    const header = make("tr");
    for (const column of columns) {
      column.button = make("button", { type: "button" }, capitalised(column.label));
      column.header = make("th", { scope: "col", title: column.about || null }, column.button);
      header.append(column.header);
    }
    const caption = make("caption", { class: "unseen" }, "One row a head; a button in a heading sorts by its column");
    const body = make("tbody");
    byId("statistics").replaceChildren(caption, make("thead", {}, header), body);
    new Sorter(body, columns, part.heads.map((head) => ({ head, row: this.makeRow(head, shown) }))).sortBy(0);
  },

  makeRow(head, shown) {
    const open = make("button", { type: "button", class: "link", "aria-label": `Open layer ${head.layer}, head ${head.head}` });
    open.textContent = String(head.head);
    open.addEventListener("click", () => headView.open(head.layer, head.head));
    const row = make("tr", {}, make("td", {}, String(head.layer)), make("td", {}, open));
    shown.forEach((statistic) => {
      row.append(make("td", { class: head.held.includes(statistic.index) ? "holds" : null }, format(head.values[statistic.index], statistic)));
    });
    return row;
  },
};
