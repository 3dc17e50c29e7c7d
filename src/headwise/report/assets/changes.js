// The tables of changes: each heading of a number becomes a button that sorts by it.
const startChanges = () => {
  document.querySelectorAll("table.changes").forEach((table) => {
    const columns = [];
    [...table.tHead.rows[0].cells].forEach((header, position) => {
      if (!header.dataset.order) return;
      const button = make("button", { type: "button" }, ...header.childNodes);
      header.append(button);
      const valueOf = ({ row }) => (row.cells[position].dataset.value ? Number(row.cells[position].dataset.value) : null);
      columns.push({ header, button, valueOf, descendsFirst: header.dataset.order === "descending" });
    });
    new Sorter(table.tBodies[0], columns, [...table.tBodies[0].rows].map((row) => ({ row }))).sortBy(0);
  });
};
