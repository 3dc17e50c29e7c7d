// Queries left, keys right, and a line for each weight between them. Only the tokens in sight are on the page: a long
// text is as quick as a short one.
const LINE_ROW = 24; // pixels of a token, as in the style sheet
const SPARE_ROWS = 6; // drawn beyond both edges
const FAINTEST_LINE = 0.02; // a thinner one is not seen
const LINES_OF_OTHERS = 12; // of a token that is not chosen, at most
const SPOKEN_ENTRIES = 4;
const SMALLEST_SPOKEN = 0.005; // what would be written as 0.00

const lineView = {
  part: null,
  head: null,
  pointed: null,
  answers: new Map(),

  start() {
    this.box = byId("lines");
    this.space = byId("lines-space");
    this.canvas = byId("lines-canvas");
    this.columns = { query: byId("lines-queries"), key: byId("lines-keys") };
    for (const [side, column] of Object.entries(this.columns)) {
      column.addEventListener("keydown", (event) => this.press(event, side));
      column.addEventListener("focus", () => chosen.side !== side && chooseToken(side, this.nearest(side)));
      column.addEventListener("pointerover", (event) => this.point(event.target.closest("[data-index]"), side));
      column.addEventListener("pointerleave", () => this.point(null, side));
      // not click: rows are made anew as soon as the focus comes
      column.addEventListener("mousedown", (event) => {
        const row = event.target.closest("[data-index]");
        if (row) chooseToken(side, Number(row.dataset.index));
      });
    }
    this.box.addEventListener("scroll", () => this.later());
    new ResizeObserver(() => this.later()).observe(this.box);
    onToken((token, head, part) => this.show(part, head));
    keepPainted(() => this.head && this.draw());
  },

  show(part, head) {
    if (part !== this.part || head !== this.head || reading.withoutFirst !== this.withoutFirst) this.answers.clear();
    Object.assign(this, { part, head, withoutFirst: reading.withoutFirst, pointed: null });
    this.space.style.height = `${LINE_ROW * Math.max(part.numQueries, part.numKeys)}px`;
    const top = LINE_ROW * chosen.index;
    if (top < this.box.scrollTop || top + LINE_ROW > this.box.scrollTop + this.box.clientHeight) {
      this.box.scrollTop = top - this.box.clientHeight / 2;
    }
    this.draw();
  },

  later() {
    if (!this.head || this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.draw();
    });
  },

  point(row, side) {
    const pointed = row ? { side, index: Number(row.dataset.index) } : null;
    if (pointed?.index === this.pointed?.index && pointed?.side === this.pointed?.side) return;
    this.pointed = pointed;
    this.draw();
  },

  press(event, side) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const count = side === "query" ? this.part.numQueries : this.part.numKeys;
    const page = Math.max(1, Math.floor(this.box.clientHeight / LINE_ROW) - 1);
    const moves = { ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page, Home: -count, End: count };
    if (event.key in moves) chooseToken(side, chosen.index + moves[event.key]);
    else if (event.key === "ArrowRight" && side === "query") this.columns.key.focus({ preventScroll: true });
    else if (event.key === "ArrowLeft" && side === "key") this.columns.query.focus({ preventScroll: true });
    else return;
    event.preventDefault();
  },

  // The token of a side that the chosen one of the other side has most to do with.
  nearest(side) {
    return this.answer(chosen)?.entries[0]?.index ?? Math.min(chosen.index, (side === "query" ? this.part.numQueries : this.part.numKeys) - 1);
  },

  answer({ side, index }) {
    const name = `${side} ${index}`;
    if (!this.answers.has(name)) {
      this.answers.set(name, side === "query" ? readsOf(this.part, this.head, index) : readersOf(this.part, this.head, index));
    }
    return this.answers.get(name);
  },

  draw() {
    const height = this.box.clientHeight;
    if (!height) return; // not in sight
    const first = Math.max(0, Math.floor(this.box.scrollTop / LINE_ROW) - SPARE_ROWS);
    const end = Math.ceil((this.box.scrollTop + height) / LINE_ROW) + SPARE_ROWS;
    const active = this.pointed ?? chosen;
    const answer = this.answer(active);
    const other = active.side === "query" ? "key" : "query";
    const weights = new Map((answer?.entries ?? []).map(({ index, weight }) => [index, weight]));
    for (const [side, column] of Object.entries(this.columns)) {
      const count = side === "query" ? this.part.numQueries : this.part.numKeys;
      const rows = [];
      for (let index = first; index < Math.min(end, count); index += 1) {
        rows.push(this.makeRow(side, index, count, side === other ? weights.get(index) ?? 0 : null, active));
      }
      column.replaceChildren(...rows);
      column.tabIndex = side === chosen.side ? 0 : -1;
      const isDrawn = side === chosen.side && chosen.index >= first && chosen.index < end;
      if (isDrawn) column.setAttribute("aria-activedescendant", `lines-${side}-${chosen.index}`);
      else column.removeAttribute("aria-activedescendant");
    }
    this.drawLines(first, Math.min(end, this.part.numQueries), active, answer);
    this.say(active, answer);
  },

  makeRow(side, index, count, weight, active) {
    const isChosen = side === chosen.side && index === chosen.index;
    const written = side === "query" || !this.part.isCross ? isWritten(this.part, index) : false;
    const row = make("div", {
      id: `lines-${side}-${index}`,
      role: "option",
      class: `line-row${written ? " written" : ""}${active.side === side && active.index === index ? " active" : ""}`,
      "aria-selected": String(isChosen),
      "aria-setsize": count,
      "aria-posinset": index + 1,
      "data-index": index,
      title: written ? "written by the model" : null,
    });
    row.append(make("sub", {}, String(index)), makeToken(tokenAt(tokensOf(this.part, side), index)));
    if (written) row.append(make("span", { class: "unseen" }, ", written by the model"));
    if (weight !== null && weight >= SMALLEST_SPOKEN) row.append(make("span", { class: "number" }, formatShare(weight)));
    row.style.top = `${LINE_ROW * index}px`;
    if (weight) paintShade(row, Math.sqrt(weight));
    return row;
  },

  drawLines(first, end, active, answer) {
    const { canvas, box } = this;
    const ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = box.clientHeight;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const colours = getComputedStyle(canvas);
    const line = (query, key, weight, strength) => {
      const from = LINE_ROW * (query + 0.5) - box.scrollTop;
      const to = LINE_ROW * (key + 0.5) - box.scrollTop;
      context.globalAlpha = Math.min(1, strength * (0.15 + 0.85 * Math.sqrt(weight)));
      context.lineWidth = 0.5 + 5 * weight;
      context.beginPath();
      context.moveTo(0, from);
      context.bezierCurveTo(width / 2, from, width / 2, to, width, to);
      context.stroke();
    };
    context.strokeStyle = colours.color;
    for (let query = first; query < end; query += 1) {
      const own = this.answer({ side: "query", index: query })?.entries ?? [];
      for (const { index, weight } of own.slice(0, LINES_OF_OTHERS)) {
        if (weight >= FAINTEST_LINE) line(query, index, weight, 0.35);
      }
    }
    context.strokeStyle = colours.outlineColor;
    for (const { index, weight } of answer?.entries ?? []) {
      if (weight < FAINTEST_LINE / 4) break;
      line(...(active.side === "query" ? [active.index, index] : [index, active.index]), weight, 1);
    }
  },

  // In words, for the ear too: what the token reads, or who reads it.
  say(active, answer) {
    const other = active.side === "query" ? "key" : "query";
    const said = [makePlace(this.part, active.side, active.index), active.side === "query" ? " reads " : " is read by "];
    if (!answer) said.push("what this page does not know");
    else if (!answer.entries.length) said.push(answer.exact ? "nothing" : "none of the keys that are known");
    else {
      const spoken = answer.entries.slice(0, SPOKEN_ENTRIES).filter(({ weight }, place) => !place || weight >= SMALLEST_SPOKEN);
      spoken.forEach(({ index, weight }, place) => {
        said.push(place ? ", " : "", makePlace(this.part, other, index), " ", make("span", { class: "number" }, formatWeight(weight)));
      });
      const left = answer.entries.slice(spoken.length).reduce((sum, entry) => sum + entry.weight, answer.rest ?? 0);
      if (active.side === "query" && left >= SMALLEST_SPOKEN) said.push(", all others ", make("span", { class: "number" }, formatWeight(Math.min(1, left))));
      if (!answer.exact && active.side === "key") said.push("; of other queries it is not among the heaviest keys");
    }
    byId("lines-readout").replaceChildren(...said);
  },
};
