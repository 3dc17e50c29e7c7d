// Every head at a glance: layers down, heads across; a map, a number and the role it holds. Or in the order of a
// statistic, and only those that hold a role.
const SORTED_COLUMNS = 12;

const gridView = {
  cells: [],
  rows: [],

  start() {
    this.shade = byId("shade");
    this.order = byId("order");
    this.only = byId("only");
    this.shade.addEventListener("change", () => this.paintValues());
    this.order.addEventListener("change", () => this.lay());
    this.only.addEventListener("change", () => this.lay());
    onPart((part) => this.show(part));
    keepPainted(() => this.paint());
  },

  // The choices that this part has, with what was chosen before kept where it is one of them.
  show(part) {
    this.part = part;
    const options = statistics.flatMap((statistic, index) => (part.shown[index] ? [{ statistic, index }] : []));
    const fill = (select, first, shown) => {
      const kept = select.value;
      select.replaceChildren(...first, ...shown);
      if ([...select.options].some((option) => option.value === kept)) select.value = kept;
    };
    const label = (statistic) => (statistic.role ? `Role: ${statistic.label}` : statistic.label);
    const choices = () => options.map(({ statistic, index }) => make("option", { value: index }, label(statistic)));
    fill(this.shade, [], choices());
    fill(this.order, [make("option", { value: "" }, "layer and head")], choices());
    const held = options.filter(({ index }) => part.heads.some((head) => head.held.includes(index)));
    fill(this.only, [make("option", { value: "" }, "all heads")],
      held.map(({ statistic, index }) => make("option", { value: index }, `heads that hold “${statistic.label}”`)));
    byId("only-box").hidden = !held.length;
    this.cells = part.heads.map((head) => this.makeCell(head));
    this.lay();
    this.paint();
  },

  makeCell(head) {
    const hasMap = this.part.hasMap(head);
    const button = make("button", { type: "button", class: hasMap ? "cell" : "cell bare" });
    if (hasMap) button.append(make("canvas", { "aria-hidden": "true" }));
    button.append(make("span", { class: "place", "aria-hidden": "true" }, `L${head.layer} H${head.head}`));
    button.append(make("span", { class: "value" }));
    if (head.held.length) {
      const word = statistics[head.held[0]].label.split(" ")[0];
      button.append(make("span", { class: "badge" }, make("span", {}, word)));
    }
    button.addEventListener("click", () => headView.open(head.layer, head.head));
    return { button, head, hasMap };
  },

  // Put the cells in rows: those of a layer, or as many as fit in the order of a statistic.
  lay() {
    const order = this.order.value === "" ? null : Number(this.order.value);
    const only = this.only.value === "" ? null : Number(this.only.value);
    const seen = this.cells.filter(({ head }) => only === null || head.held.includes(only));
    byId("grid").classList.toggle("sorted", order !== null);
    const header = make("tr");
    if (order === null) {
      const layers = [...new Set(seen.map(({ head }) => head.layer))];
      const numColumns = Math.max(...this.cells.map(({ head }) => head.head)) + 1;
      this.rows = layers.map((layer) => {
        const row = new Array(numColumns).fill(null);
        seen.filter(({ head }) => head.layer === layer).forEach((cell) => (row[cell.head.head] = cell));
        return { label: `L${layer}`, cells: row };
      });
      header.append(make("th", { class: "corner", "aria-label": "layer" }));
      for (let column = 0; column < numColumns; column += 1) header.append(make("th", { scope: "col" }, `H${column}`));
    } else {
      const rank = ({ head }) => head.values[order] ?? -Infinity; // what is not known stands last
      const sorted = [...seen].sort((one, other) => (rank(one) === rank(other) ? 0 : rank(other) - rank(one)));
      const numColumns = Math.min(SORTED_COLUMNS, Math.max(...this.cells.map(({ head }) => head.head)) + 1);
      this.rows = [];
      for (let start = 0; start < sorted.length; start += numColumns) {
        this.rows.push({ label: String(start + 1), cells: sorted.slice(start, start + numColumns) });
      }
      header.append(make("th", { class: "corner", "aria-label": "place of the row's first head" }));
      for (let column = 0; column < numColumns; column += 1) header.append(make("th", { scope: "col", "aria-label": `plus ${column}` }));
    }
    const body = make("tbody", {}, ...this.rows.map(({ label, cells }) =>
      make("tr", {}, make("th", { scope: "row" }, label), ...cells.map((cell) => make("td", {}, ...(cell ? [cell.button] : []))))));
    byId("grid").replaceChildren(make("thead", {}, header), body);
    byId("grid").style.setProperty("--columns", header.childElementCount - 1);
    byId("grid-count").textContent = `${seen.length === this.cells.length ? "" : `${seen.length} of `}${counted(this.cells.length, "head")}`;
    this.startKeys();
  },

  startKeys() {
    const places = this.rows.flatMap(({ cells }, row) => cells.flatMap((cell, column) => (cell ? [{ cell, row, column }] : [])));
    const find = (row, column) => places.findIndex((place) => place.row === row && place.column === column);
    roveFocus(byId("grid"), places.map(({ cell }) => cell.button), (key, index) => {
      const { row, column } = places[index];
      const inRow = places.filter((place) => place.row === row);
      const next = {
        ArrowLeft: () => find(row, column - 1),
        ArrowRight: () => find(row, column + 1),
        ArrowUp: () => find(row - 1, column),
        ArrowDown: () => find(row + 1, column),
        Home: () => find(row, inRow[0].column),
        End: () => find(row, inRow[inRow.length - 1].column),
      }[key];
      if (!next) return null;
      return next() < 0 ? index : next();
    });
  },

  paint() {
    this.cells.filter((cell) => cell.hasMap).forEach(({ button, head }) => paintMap(button.firstChild, this.part.thumbOf(head)));
    paintRamp(byId("ramp"));
    this.paintValues();
  },

  paintValues() {
    const index = Number(this.shade.value);
    const statistic = statistics[index];
    byId("shade-about").textContent = `${statistic.label}: ${statistic.about}.`;
    byId("ramp-high").textContent = format(statistic.largest, statistic, true);
    this.cells.forEach(({ button, head }) => {
      const value = head.values[index];
      const label = button.querySelector(".value");
      label.textContent = format(value, statistic);
      paintShade(label, fractionOf(value, statistic));
      const held = head.held.map((role) => `, ${statistics[role].label} head`).join("");
      const words = `${statistic.label} ${format(value, statistic, true)}`;
      button.setAttribute("aria-label", `Layer ${head.layer}, head ${head.head}: ${words}${held}`);
      button.title = `layer ${head.layer} head ${head.head}${held}`;
    });
  },
};
