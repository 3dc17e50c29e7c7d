// Heads of the main part, A, beside the same heads of a comparable one, B: what changed, and by how much.

// Blue below, orange above, nothing in the middle: two hues that no common colour blindness takes for one another. Each
// stop is OKLCH; the sign stands in the number, too.
const makeDiverging = (below, middle, above) => [...makeRamp([...below, [...middle, below[0][2]]]), ...makeRamp([[...middle, above[0][2]], ...above])];
const DIVERGING = {
  light: makeDiverging([[0.5, 0.16, 260], [0.76, 0.09, 260]], [0.985, 0.002], [[0.82, 0.1, 62], [0.66, 0.16, 52]]),
  dark: makeDiverging([[0.75, 0.13, 255], [0.48, 0.11, 258]], [0.25, 0.01], [[0.5, 0.1, 55], [0.8, 0.14, 65]]),
};
// `share` from -1 to 1
const divergingShade = (share) => DIVERGING[currentTheme()][Math.round(255.5 * (1 + Math.min(1, Math.max(-1, share))))];
const paintDiverging = (element, share) => {
  element.style.backgroundColor = share === null ? "" : `rgb(${divergingShade(share).join(" ")})`;
  element.style.color = share === null ? "" : inkOver(divergingShade(share));
};

// Digits behind the point: two that say something, of any size that is met.
const digitsOf = (size) => {
  if (size >= 0.0995 || size === 0) return size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return Math.min(MOST_DIGITS, 1 - Math.floor(Math.log10(1.005 * size)));
};

// A number without a sign, in the digits of the largest beside it.
const unsigned = (value, largest, unit = "") => {
  if (value === null) return "–";
  return `${value ? value.toFixed(digitsOf(largest)) : "0"}${unit && ` ${unit}`}`;
};

// A bound: rounded up, so that it holds as it is written.
const bound = (value) => {
  const digits = digitsOf(value);
  return (Math.ceil(value * 10 ** digits - 1e-6) / 10 ** digits).toFixed(digits);
};

// A number with its sign, in digits enough for a small change to be seen.
const signed = (value, statistic, withUnit = false, digits = digitsOf(Math.abs(value ?? 0))) => {
  if (value === null) return "–";
  const text = Math.abs(value).toFixed(digits);
  const sign = Number(text) === 0 ? "" : value < 0 ? "−" : "+";
  return `${sign}${Number(text) === 0 ? "0" : text}${withUnit && statistic.unit ? ` ${statistic.unit}` : ""}`;
};

const MOST_DIGITS = 6;
const DIVERGENCE = { label: "Divergence", unit: "nats", about: "mean Jensen-Shannon divergence of the head's weights in A and in B: 0 if it reads alike, 0.69 if it reads no key twice", role: false };

const differenceView = {
  changes: [],

  start() {
    if (!byId("difference")) return;
    this.others = parts.slice(1).filter((part) => part.comparable);
    byId("difference-part").append(...this.others.map((part) => make("option", { value: part.index }, part.name ?? "")));
    byId("difference-part").addEventListener("change", () => this.compare());
    byId("difference-statistic").addEventListener("change", () => this.choose());
    byId("difference").hidden = false;
    onPart((part) => {
      if (part.index && part.comparable) {
        byId("difference-part").value = part.index;
        this.compare();
      }
    });
    this.compare();
    keepPainted(() => this.paint());
  },

  get other() {
    return parts[Number(byId("difference-part").value)];
  },

  // What changed of every head that both have, by statistic; the divergence last, where the page carries it.
  compare() {
    const other = this.other;
    const given = new Map((data.changes?.[other.index] ?? []).map(([layer, head, ...numbers]) => [nameOf(layer, head), numbers]));
    this.columns = statistics.map((statistic, index) => ({ statistic, index }))
      .filter(({ index }) => parts[0].shown[index] && other.shown[index]);
    this.changes = parts[0].heads.flatMap((head) => {
      const twin = other.headAt(head.layer, head.head);
      if (!twin) return [];
      const differences = statistics.map((_, index) => {
        const [a, b] = [head.values[index], twin.values[index]];
        return a === null || b === null ? null : b - a;
      });
      const shares = this.columns
        .filter(({ statistic, index }) => differences[index] !== null && statistic.largest)
        .map(({ statistic, index }) => Math.abs(differences[index]) / statistic.largest);
      const overall = shares.length ? shares.reduce((sum, share) => sum + share, 0) / shares.length : null;
      const [divergence, off] = given.get(nameOf(head.layer, head.head)) ?? [null, null];
      return [{ head, twin, differences, overall, divergence, off }];
    });
    const select = byId("difference-statistic");
    const before = select.value;
    const hasDivergence = this.changes.some((change) => change.divergence !== null);
    select.replaceChildren(
      ...(hasDivergence ? [make("option", { value: "divergence" }, DIVERGENCE.label)] : []),
      ...this.columns.map(({ statistic, index }) =>
        make("option", { value: index }, statistic.role ? `Role: ${statistic.label}` : statistic.label)),
    );
    if ([...select.options].some((option) => option.value === before)) select.value = before;
    this.makeGrid();
    this.choose();
  },

  makeGrid() {
    const layers = [...new Set(this.changes.map(({ head }) => head.layer))];
    const numColumns = Math.max(0, ...this.changes.map(({ head }) => head.head)) + 1;
    const header = make("tr", {}, make("th", { class: "corner", "aria-label": "layer" }));
    for (let column = 0; column < numColumns; column += 1) header.append(make("th", { scope: "col" }, `H${column}`));
    const rows = layers.map((layer) => {
      const row = make("tr", {}, make("th", { scope: "row" }, `L${layer}`));
      for (let column = 0; column < numColumns; column += 1) {
        const change = this.changes.find(({ head }) => head.layer === layer && head.head === column);
        row.append(make("td", {}, ...(change ? [this.makeCell(change)] : [])));
      }
      return row;
    });
    byId("difference-grid").replaceChildren(make("thead", {}, header), make("tbody", {}, ...rows));
    byId("difference-grid").style.setProperty("--columns", numColumns);
    roveFocus(byId("difference-grid"), this.changes.map(({ cell }) => cell), (key, index) => {
      const { layer, head } = this.changes[index].head;
      const find = (row, column) => this.changes.findIndex((one) => one.head.layer === row && one.head.head === column);
      const beside = (step) => find(layers[layers.indexOf(layer) + step], head);
      const next = {
        ArrowLeft: () => find(layer, head - 1), ArrowRight: () => find(layer, head + 1),
        ArrowUp: () => beside(-1), ArrowDown: () => beside(1),
      }[key]?.();
      if (next === undefined) return null;
      return next < 0 ? index : next;
    });
  },

  makeCell(change) {
    change.cell = make("button", { type: "button", class: "difference-cell" });
    change.cell.addEventListener("click", () => this.open(change));
    return change.cell;
  },

  open({ head }) {
    if (currentPart().index !== 0 && currentPart() !== this.other) showPart(0);
    headView.open(head.layer, head.head);
    differencePanel.putFirst(true);
  },

  choose() {
    const chosen = byId("difference-statistic").value;
    this.isDivergence = chosen === "divergence";
    this.index = Number(chosen);
    this.statistic = this.isDivergence ? DIVERGENCE : statistics[this.index];
    const off = Math.max(...this.changes.map((change) => change.off ?? 0));
    const exactness = this.isDivergence && off ? ` Maps keep 8 bits of a weight, so it is off by ${bound(off)} nats at most.` : "";
    byId("difference-about").textContent = this.statistic ? `${this.statistic.label}: ${this.statistic.about}.${exactness}` : "";
    this.makeTable();
    this.paint();
  },

  changeOf(change) {
    return this.isDivergence ? change.divergence : change.differences[this.index];
  },

  paint() {
    if (!this.statistic) return;
    const largest = this.changes.reduce((most, change) => Math.max(most, Math.abs(this.changeOf(change) ?? 0)), 0);
    const write = (value) => (this.isDivergence ? unsigned(value, largest, this.statistic.unit) : signed(value, this.statistic, true));
    byId("difference-low").textContent = this.isDivergence ? "0" : write(-largest);
    byId("difference-high").textContent = write(largest);
    this.paintRamp();
    this.changes.forEach((change) => {
      const value = this.changeOf(change);
      const share = value === null ? null : largest ? value / largest : 0;
      change.cell.textContent = this.isDivergence ? unsigned(value, largest) : signed(value, this.statistic, false, digitsOf(largest));
      if (this.isDivergence) paintShade(change.cell, share);
      else paintDiverging(change.cell, share);
      change.cell.setAttribute("aria-label", `Layer ${change.head.layer}, head ${change.head.head}: ${this.statistic.label} ${write(value)}`);
    });
  },

  paintRamp() {
    const canvas = byId("difference-ramp");
    if (this.isDivergence) return paintRamp(canvas);
    const image = new ImageData(canvas.width, 1);
    for (let at = 0; at < canvas.width; at += 1) {
      image.data.set([...divergingShade((2 * at) / (canvas.width - 1) - 1), 255], 4 * at);
    }
    return canvas.getContext("2d").putImageData(image, 0, 0);
  },

  makeTable() {
    const { statistic, index } = this;
    const number = (value) => make("td", {}, format(value, statistic));
    const named = (label, about, valueOf, cell, descendsFirst = true) => ({ label, about, valueOf, cell, descendsFirst });
    const ofStatistic = this.isDivergence ? [] : [
      named("A", `${statistic.label} in A`, ({ head }) => head.values[index], ({ head }) => number(head.values[index])),
      named("B", `${statistic.label} in B`, ({ twin }) => twin.values[index], ({ twin }) => number(twin.values[index])),
      named("B − A", `${statistic.label}, sorted by size`, ({ differences }) => differences[index] === null ? null : Math.abs(differences[index]),
        ({ differences }) => make("td", {}, make("strong", {}, signed(differences[index], statistic)))),
    ];
    const hasDivergence = this.changes.some((change) => change.divergence !== null);
    const farthest = Math.max(0, ...this.changes.map((change) => change.divergence ?? 0));
    const columns = [
      named("Layer", null, ({ head }) => head.layer, ({ head }) => make("td", {}, String(head.layer)), false),
      named("Head", null, ({ head }) => head.head, (change) => make("td", {}, this.makeLink(change)), false),
      ...ofStatistic,
      ...(hasDivergence ? [named("Divergence", `${DIVERGENCE.about}, in nats`, ({ divergence }) => divergence,
        ({ divergence }) => make("td", {}, unsigned(divergence, farthest)))] : []),
      named("Overall", "mean change of all statistics", ({ overall }) => overall,
        ({ overall }) => make("td", {}, overall === null ? "–" : formatShare(overall))),
    ];
    const header = make("tr");
    for (const column of columns) {
      column.button = make("button", { type: "button" }, column.label);
      column.header = make("th", { scope: "col", title: column.about }, column.button);
      header.append(column.header);
    }
    const rows = this.changes.map((change) => {
      const row = make("tr", {}, ...columns.map((column) => column.cell(change)));
      return { ...change, row };
    });
    const body = make("tbody");
    byId("difference-table").replaceChildren(make("thead", {}, header), body);
    const first = columns.findIndex(({ label }) => label === (this.isDivergence ? "Divergence" : "B − A"));
    new Sorter(body, columns, rows).sortBy(first);
  },

  makeLink(change) {
    const { layer, head } = change.head;
    const link = make("button", { type: "button", class: "link", "aria-label": `Open layer ${layer}, head ${head}` }, String(head));
    link.addEventListener("click", () => this.open(change));
    return link;
  },
};

starters.push(() => differenceView.start());
