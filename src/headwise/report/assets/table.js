// All statistics of all heads, sorted by any column.
const statisticsTable = {
  start() {
    // of a number the largest first, of layers and heads the first
    const columns = [
      { label: "Layer", valueOf: ({ head }) => head.layer, descendsFirst: false },
      { label: "Head", valueOf: ({ head }) => head.head, descendsFirst: false },
      ...data.statistics.map((statistic, index) => ({
        ...statistic,
        valueOf: ({ head }) => head.values[index],
        descendsFirst: true,
      })),
    ];
    const header = make("tr");
    for (const column of columns) {
      column.button = make("button", { type: "button" }, column.label);
      column.header = make("th", { scope: "col", title: column.about || null }, column.button);
      header.append(column.header);
    }
    const body = make("tbody");
    byId("statistics").append(make("thead", {}, header), body);
    new Sorter(body, columns, data.heads.map((head) => ({ head, row: this.makeRow(head) }))).sortBy(0);
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
};
