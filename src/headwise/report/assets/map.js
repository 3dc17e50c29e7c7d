// The big map of the open head: point at a weight to read it.
const bigMap = {
  map: null,
  query: 0,
  key: 0,

  start(onChoose) {
    this.box = byId("map");
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.row = make("div", { class: "cross row" });
    this.column = make("div", { class: "cross column" });
    this.box.append(this.canvas, this.row, this.column);
    const point = (event) => {
      const area = this.canvas.getBoundingClientRect();
      const at = (offset, length, count) => Math.min(count - 1, Math.max(0, Math.floor((offset / length) * count)));
      this.read(
        at(event.clientY - area.top, area.height, this.map.numQueries),
        at(event.clientX - area.left, area.width, this.map.numKeys),
      );
    };
    this.box.addEventListener("pointermove", point);
    this.box.addEventListener("click", (event) => {
      point(event);
      onChoose(this.query);
    });
    this.box.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (step) this.read(this.query + step[0], this.key + step[1]);
      else if (event.key === "Enter") onChoose(this.query);
      else return;
      event.preventDefault();
    });
    keepPainted(() => this.map && paintMap(this.canvas, this.map));
  },

  show(map, title) {
    this.map = map;
    paintMap(this.canvas, map);
    this.box.setAttribute("aria-label", `Attention map of ${title}`);
    this.follow(tokenView.query);
  },

  // Read a query at the key that it reads most.
  follow(query) {
    const { numQueries, numKeys, bytes } = this.map;
    const start = Math.min(query, numQueries - 1) * numKeys;
    const row = bytes.subarray(start, start + numKeys);
    this.read(query, row.indexOf(Math.max(...row)));
  },

  read(query, key) {
    const { numQueries, numKeys, bytes } = this.map;
    this.query = Math.min(numQueries - 1, Math.max(0, query));
    this.key = Math.min(numKeys - 1, Math.max(0, key));
    this.row.style.top = `${(100 * this.query) / numQueries}%`;
    this.row.style.height = `${100 / numQueries}%`;
    this.column.style.left = `${(100 * this.key) / numKeys}%`;
    this.column.style.width = `${100 / numKeys}%`;
    const weight = weightOf(bytes[this.query * numKeys + this.key]);
    byId("map-readout").replaceChildren(
      make("span", { class: "end" }, makeToken(tokenAt(this.query)), make("sub", {}, String(this.query))),
      " reads ",
      make("span", { class: "end" }, makeToken(tokenAt(this.key)), make("sub", {}, String(this.key))),
      make("strong", { class: "number" }, formatWeight(weight)),
    );
  },
};
