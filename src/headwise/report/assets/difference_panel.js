// The open head in A and in B: both maps side by side, and every statistic of the two.
const differencePanel = {
  id: "head-difference",

  start() {
    if (!byId("difference")) return;
    this.pictures = [0, 1].map((side) => this.makePicture(side));
    this.maps = make("div", { class: "two-maps" }, ...this.pictures.map(({ figure }) => figure));
    this.readout = make("output", { class: "readout", "aria-live": "polite" });
    this.body = make("tbody");
    const names = ["Statistic", "A", "B", "B − A"].map((name) => make("th", { scope: "col" }, name));
    const table = make("table", { class: "figures", "aria-labelledby": "head-difference-heading" }, make("thead", {}, make("tr", {}, ...names)), this.body);
    const panel = make("section", { id: this.id, class: "difference-panel", "aria-labelledby": "head-difference-heading" },
      make("h4", { id: "head-difference-heading" }, "What differs"),
      this.maps, this.readout, make("div", { class: "scroll" }, table));
    this.home = document.createComment("the panel's own place");
    byId("head").append(this.home, panel);
    byId("head").addEventListener("close", () => this.putFirst(false));
    headPanels.push(this);
    keepPainted(() => this.paint());
  },

  makePicture(side) {
    const canvas = make("canvas", { "aria-hidden": "true" });
    const name = make("span");
    const box = make("div", { class: "map", tabindex: 0, role: "application", "aria-roledescription": "attention map" }, canvas);
    const figure = make("figure", {}, make("figcaption", {}, make("strong", {}, side ? "B " : "A "), name), box);
    const picture = { canvas, name, box, figure, at: [0, 0], map: null };
    box.addEventListener("pointermove", (event) => {
      const area = canvas.getBoundingClientRect();
      const place = (offset, length, count) => Math.floor((offset / length) * count);
      this.read(side, place(event.clientY - area.top, area.height, picture.map.numQueries),
        place(event.clientX - area.left, area.width, picture.map.numKeys));
    });
    box.addEventListener("focus", () => this.read(side, ...picture.at));
    box.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      this.read(side, picture.at[0] + step[0], picture.at[1] + step[1]);
    });
    return picture;
  },

  // Above all else where a head is opened to see what differs; else below the rest.
  putFirst(isFirst) {
    const panel = byId(this.id);
    if (isFirst) byId("first-box").before(panel);
    else this.home.after(panel);
  },

  show(head, part) {
    const panel = byId(this.id);
    const other = part.index && part.comparable ? part : differenceView.other;
    const heads = [parts[0], other].map((one) => one.headAt(head.layer, head.head));
    panel.hidden = !(part.index === 0 || part.comparable) || heads.includes(null);
    if (panel.hidden) return;
    this.sides = [parts[0], other];
    this.pictures.forEach((picture, side) => {
      const own = this.sides[side];
      picture.map = own.mapOf(heads[side]) ?? own.overviewOf(heads[side]);
      picture.name.replaceChildren(makePlain(own.name ?? ""));
      picture.figure.hidden = !picture.map;
      picture.box.setAttribute("aria-label", `Attention map of layer ${head.layer}, head ${head.head} in ${side ? "B" : "A"}`);
    });
    this.maps.hidden = this.pictures.every(({ map }) => !map);
    this.readout.replaceChildren();
    this.paint();
    this.body.replaceChildren(
      ...statistics.flatMap((statistic, index) => {
        const [a, b] = heads.map((one) => one.values[index]);
        if (a === null && b === null) return [];
        const difference = a === null || b === null ? null : b - a;
        return [make("tr", {}, make("th", { scope: "row" }, statistic.role ? `Role: ${statistic.label}` : statistic.label),
          make("td", {}, format(a, statistic)), make("td", {}, format(b, statistic)),
          make("td", {}, make("strong", {}, signed(difference, statistic, true))))];
      }),
    );
  },

  paint() {
    this.pictures.forEach(({ canvas, map }) => map && paintMap(canvas, map));
  },

  // The weight that is pointed at; of the same text in both the two weights.
  read(side, row, column) {
    const { map } = this.pictures[side];
    const inside = (value, count) => Math.min(count - 1, Math.max(0, value));
    const at = [inside(row, map.numQueries), inside(column, map.numKeys)];
    this.pictures[side].at = at;
    const own = this.sides[side];
    const twin = this.pictures[1 - side].map;
    const alike = twin && ["numQueries", "numKeys", "tile"].every((name) => twin[name] === map[name])
      && own.tokens.join("\n") === this.sides[1 - side].tokens.join("\n");
    const weightIn = (one) => formatWeight(weightOf(one.bytes[at[0] * one.numKeys + at[1]]));
    const end = (tokens, index) => make("span", { class: "end" }, makeToken(tokenAt(tokens, index * map.tile)), make("sub", {}, String(index * map.tile)));
    const weights = alike ? [0, 1].map((one) => `${"AB"[one]} ${weightIn(this.pictures[one].map)}`).join(", ") : `${"AB"[side]} ${weightIn(map)}`;
    this.readout.replaceChildren(end(own.tokens, at[0]), " reads ", end(own.keyTokens, at[1]), make("strong", { class: "number" }, weights));
  },
};

const makePlain = (text) => {
  const words = make("bdi", { dir: "auto" });
  words.textContent = text;
  return words;
};

starters.push(() => differencePanel.start());
