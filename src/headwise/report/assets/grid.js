// Every head at a glance: layers down, heads across; a map, a number and the role it holds.
const gridView = {
  cells: [],

  start() {
    const layers = [...new Set(data.heads.map((head) => head.layer))];
    const numColumns = Math.max(...data.heads.map((head) => head.head)) + 1;
    const header = make("tr", {}, make("th", { class: "corner", "aria-label": "layer" }));
    for (let column = 0; column < numColumns; column += 1) header.append(make("th", { scope: "col" }, `H${column}`));
    byId("grid").append(make("thead", {}, header));
    const body = make("tbody");
    layers.forEach((layer) => {
      const row = make("tr", {}, make("th", { scope: "row" }, `L${layer}`));
      const inLayer = data.heads.filter((head) => head.layer === layer);
      for (let column = 0; column < numColumns; column += 1) {
        const head = inLayer.find((entry) => entry.head === column);
        row.append(make("td", {}, ...(head ? [this.makeCell(head)] : [])));
      }
      body.append(row);
    });
    byId("grid").append(body);
    byId("grid").style.setProperty("--columns", numColumns);
    this.startKeys();
    this.startShades();
  },

  makeCell(head) {
    const map = maps.get(nameOf(head.layer, head.head));
    const button = make("button", { type: "button", class: map ? "cell" : "cell bare" });
    if (map) button.append(make("canvas", { "aria-hidden": "true" }));
    button.append(make("span", { class: "value" }));
    if (head.held.length) {
      const word = data.statistics[head.held[0]].label.split(" ")[0];
      button.append(make("span", { class: "badge" }, make("span", {}, word)));
    }
    button.addEventListener("click", () => headView.open(head.layer, head.head));
    this.cells.push({ button, head, map });
    return button;
  },

  startKeys() {
    const places = this.cells.map(({ head }) => [head.layer, head.head]);
    const find = (layer, column) => places.findIndex((place) => place[0] === layer && place[1] === column);
    const layers = [...new Set(places.map((place) => place[0]))];
    roveFocus(byId("grid"), this.cells.map((cell) => cell.button), (key, index) => {
      const [layer, column] = places[index];
      const beside = (step) => find(layers[layers.indexOf(layer) + step], column);
      const inLayer = places.filter((place) => place[0] === layer);
      const next = {
        ArrowLeft: () => find(layer, column - 1),
        ArrowRight: () => find(layer, column + 1),
        ArrowUp: () => beside(-1),
        ArrowDown: () => beside(1),
        Home: () => find(...inLayer[0]),
        End: () => find(...inLayer[inLayer.length - 1]),
      }[key];
      if (!next) return null;
      return next() < 0 ? index : next();
    });
  },

  startShades() {
    const select = byId("shade");
    data.statistics.forEach((statistic, index) =>
      select.append(make("option", { value: index }, statistic.role ? `Role: ${statistic.label}` : statistic.label)),
    );
    select.addEventListener("change", () => this.paintValues());
    keepPainted(() => {
      this.cells.filter((cell) => cell.map).forEach(({ button, map }) => paintMap(button.firstChild, map));
      paintRamp(byId("ramp"));
      this.paintValues();
    });
  },

  paintValues() {
    const index = Number(byId("shade").value);
    const statistic = data.statistics[index];
    byId("shade-about").textContent = `${statistic.label}: ${statistic.about}.`;
    byId("ramp-high").textContent = format(statistic.largest, statistic, true);
    this.cells.forEach(({ button, head }) => {
      const value = head.values[index];
      const label = button.querySelector(".value");
      label.textContent = format(value, statistic);
      paintShade(label, fractionOf(value, statistic));
      const held = head.held.map((role) => `, ${data.statistics[role].label} head`).join("");
      const words = `${statistic.label} ${format(value, statistic, true)}`;
      button.setAttribute("aria-label", `Layer ${head.layer}, head ${head.head}: ${words}${held}`);
      button.title = `layer ${head.layer} head ${head.head}${held}`;
    });
  },
};
