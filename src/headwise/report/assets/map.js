// The big map of the open head: point at a weight to read it, zoom in, pan. Of a long text the whole is drawn in tiles;
// zoomed into its first tokens, the exact map takes over.
const bigMap = {
  map: null,
  sources: [],
  zoom: null,
  row: 0,
  column: 0,

  start() {
    this.box = byId("map");
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.rowMark = make("div", { class: "cross row" });
    this.columnMark = make("div", { class: "cross column" });
    this.box.append(this.canvas, this.rowMark, this.columnMark);
    this.startPointer();
    this.box.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (step) this.read(this.row + step[0], this.column + step[1]);
      else if (event.key === "Enter") chooseToken("query", this.row * this.map.tile);
      else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
      else if (event.key === "-") this.zoomBy(2);
      else if (event.key === "0") this.seeWhole();
      else return;
      event.preventDefault();
    });
    byId("map-in").addEventListener("click", () => this.zoomBy(0.5));
    byId("map-out").addEventListener("click", () => this.zoomBy(2));
    byId("map-whole").addEventListener("click", () => this.seeWhole());
    byId("map-source").addEventListener("change", () => this.use(Number(byId("map-source").value)));
    onToken((token) => token.side === "query" && this.map && this.follow(token.index));
    keepPainted(() => this.map && this.paint());
  },

  startPointer() {
    let pressed = null;
    const cellAt = (event) => {
      const area = this.canvas.getBoundingClientRect();
      const at = (offset, length, count) => Math.min(count - 1, Math.max(0, Math.floor((offset / length) * count)));
      return [
        this.zoom.row + at(event.clientY - area.top, area.height, this.zoom.rows),
        this.zoom.column + at(event.clientX - area.left, area.width, this.zoom.columns),
      ];
    };
    this.box.addEventListener("pointerdown", (event) => {
      pressed = { x: event.clientX, y: event.clientY, row: this.zoom.row, column: this.zoom.column, moved: false };
    });
    this.box.addEventListener("pointermove", (event) => {
      if (!pressed || !event.buttons || this.zoom.isWhole) {
        this.read(...cellAt(event));
        return;
      }
      const area = this.canvas.getBoundingClientRect();
      const down = Math.round(((pressed.y - event.clientY) / area.height) * this.zoom.rows);
      const across = Math.round(((pressed.x - event.clientX) / area.width) * this.zoom.columns);
      if (down || across) pressed.moved = true;
      if (!pressed.moved) return;
      this.zoom.moveTo(pressed.row + down, pressed.column + across);
      this.paint();
    });
    this.box.addEventListener("click", (event) => {
      const wasPan = pressed?.moved;
      pressed = null;
      if (wasPan) return;
      this.read(...cellAt(event));
      chooseToken("query", this.row * this.map.tile);
    });
    // with Ctrl (as two fingers on a touchpad do) the wheel zooms; alone it pans what is zoomed, else the page scrolls
    this.box.addEventListener("wheel", (event) => {
      if (event.ctrlKey) this.zoomBy(event.deltaY < 0 ? 0.5 : 2, ...cellAt(event));
      else if (!this.zoom.isWhole) {
        const cells = (delta, size) => Math.sign(delta) * Math.max(1, Math.round(size / 16));
        this.zoom.moveTo(this.zoom.row + (event.deltaY && cells(event.deltaY, this.zoom.rows)), this.zoom.column + (event.deltaX && cells(event.deltaX, this.zoom.columns)));
        this.paint();
      } else return;
      event.preventDefault();
    }, { passive: false });
  },

  show(part, head, title) {
    const own = part.mapOf(head);
    const overview = part.overviewOf(head);
    const isPartial = own && overview && (own.numQueries < part.numQueries || own.numKeys < part.numKeys);
    // an overview of a text whose map is whole adds nothing
    this.sources = (own && !isPartial ? [own] : [overview, own]).filter(Boolean);
    this.part = part;
    this.head = head;
    this.box.setAttribute("aria-label", `Attention map of ${title}`);
    byId("map-side").hidden = !this.sources.length;
    if (!this.sources.length) return;
    byId("map-source").replaceChildren(...this.sources.map((map, index) => make("option", { value: index },
      map.tile > 1 ? `the whole text, ${map.tile} tokens a cell` : `the first ${counted(map.numQueries, "token")}, exactly`)));
    byId("map-source-box").hidden = this.sources.length === 1;
    const kept = this.source < this.sources.length ? this.source : 0;
    this.use(kept, true);
  },

  // Draw from one of the sources; from one head to the next the same part of the map stays in sight. From tiles to
  // tokens and back the same tokens stay pointed at: of a tile the chosen query, else its first.
  use(source, keepZoom = false) {
    const map = shownMap(this.part, this.head, this.sources[source]);
    const before = this.map?.tile ?? map.tile;
    if (map.tile !== before) {
      const isChosen = chosen.side === "query" && Math.floor(chosen.index / before) === this.row;
      this.row = Math.floor((isChosen ? chosen.index : this.row * before) / map.tile);
      this.column = Math.floor((this.column * before) / map.tile);
    }
    this.source = source;
    byId("map-source").value = String(source);
    if (!keepZoom || !this.zoom || this.zoom.numRows !== map.numQueries || this.zoom.numColumns !== map.numKeys) {
      this.zoom = new Zoom(map.numQueries, map.numKeys);
    }
    this.map = map;
    this.read(Math.min(this.row, map.numQueries - 1), Math.min(this.column, map.numKeys - 1));
    this.paint();
  },

  zoomBy(share, row = this.row, column = this.column) {
    if (share > 1 && this.zoom.isWhole && this.source === 1) {
      this.use(0);
      return;
    }
    if (share < 1 && this.canTurnExact(row, column)) {
      this.turnExact();
      return;
    }
    this.zoom.by(share, row, column);
    this.zoom.include(this.row, this.column);
    this.paint();
  },

  // Whether zooming in leads from the whole text in tiles to the exact map: all that is seen is in it, or no closer view
  // of tiles is left.
  canTurnExact(row, column) {
    const exact = this.sources[1];
    if (!exact || this.source !== 0) return false;
    const { tile } = this.map;
    const isInside = (lastRow, lastColumn) => (lastRow + 1) * tile <= exact.numQueries && (lastColumn + 1) * tile <= exact.numKeys;
    return isInside(this.zoom.row + this.zoom.rows - 1, this.zoom.column + this.zoom.columns - 1) || (this.zoom.isClosest && isInside(row, column));
  },

  turnExact() {
    const { tile } = this.map;
    const { row, column, rows, columns } = this.zoom;
    this.use(1);
    this.zoom.rows = Math.min(this.map.numQueries, rows * tile);
    this.zoom.columns = Math.min(this.map.numKeys, columns * tile);
    this.zoom.moveTo(row * tile, column * tile);
    this.zoom.include(this.row, this.column);
    this.paint();
  },

  seeWhole() {
    this.zoom = new Zoom(this.map.numQueries, this.map.numKeys);
    this.paint();
    this.mark();
  },

  paint() {
    const { row, column, rows, columns } = this.zoom;
    const { numKeys, bytes } = this.map;
    const seen = new Uint8Array(rows * columns);
    for (let at = 0; at < rows; at += 1) {
      const start = (row + at) * numKeys + column;
      seen.set(bytes.subarray(start, start + columns), at * columns);
    }
    paintMap(this.canvas, { numQueries: rows, numKeys: columns, bytes: seen });
    this.canvas.style.aspectRatio = String(Math.min(3, Math.max(0.75, columns / rows)));
    this.box.classList.toggle("zoomed", !this.zoom.isWhole);
    byId("map-in").disabled = this.zoom.isClosest && !this.canTurnExact(this.row, this.column);
    byId("map-out").disabled = this.zoom.isWhole && this.source === 0;
    byId("map-whole").disabled = this.zoom.isWhole;
    const range = (start, count, most) => this.range(start, count, most);
    byId("map-zoom").textContent = this.zoom.isWhole ? "all queries and keys"
      : `queries ${range(row, rows, this.part.numQueries)}, keys ${range(column, columns, this.part.numKeys)}`;
    this.mark();
  },

  // The tokens of some cells: 96–127.
  range(start, count, most) {
    const { tile } = this.map;
    const first = start * tile;
    const last = Math.min(most, (start + count) * tile) - 1;
    return first === last ? String(first) : `${first}–${last}`;
  },

  mark() {
    const { row, column, rows, columns } = this.zoom;
    this.rowMark.style.top = `${(100 * (this.row - row)) / rows}%`;
    this.rowMark.style.height = `${100 / rows}%`;
    this.columnMark.style.left = `${(100 * (this.column - column)) / columns}%`;
    this.columnMark.style.width = `${100 / columns}%`;
    this.rowMark.hidden = this.row < row || this.row >= row + rows;
    this.columnMark.hidden = this.column < column || this.column >= column + columns;
  },

  // Read a query at the key that it reads most.
  follow(query) {
    const { numQueries, numKeys, bytes, tile } = this.map;
    const row = Math.floor(query / tile);
    if (row >= numQueries) return; // beyond the exact part
    const weights = bytes.subarray(row * numKeys, (row + 1) * numKeys);
    this.read(row, weights.indexOf(weights.reduce((most, byte) => Math.max(most, byte), 0)));
  },

  read(row, column) {
    const { numQueries, numKeys, bytes, tile } = this.map;
    this.row = Math.min(numQueries - 1, Math.max(0, row));
    this.column = Math.min(numKeys - 1, Math.max(0, column));
    const before = [this.zoom.row, this.zoom.column];
    this.zoom.include(this.row, this.column);
    if (before[0] !== this.zoom.row || before[1] !== this.zoom.column) this.paint();
    this.mark();
    const weight = weightOf(bytes[this.row * numKeys + this.column]);
    const place = (side, at, most) => tile === 1 ? makePlace(this.part, side, at) : make("span", { class: "end" }, `tokens ${this.range(at, 1, most)}`);
    byId("map-readout").replaceChildren(
      place("query", this.row, this.part.numQueries),
      tile === 1 ? " reads " : " read ",
      place("key", this.column, this.part.numKeys),
      make("strong", { class: "number" }, formatWeight(weight)),
    );
  },
};
