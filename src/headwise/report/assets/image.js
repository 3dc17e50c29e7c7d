// The open head over the image: how much each patch is read from the chosen one, or reads it, or is read on average.
const MARK = [255, 106, 0]; // orange over a picture that turns grey under it: seen by its strength, whatever one's eyes
const NUM_TOP_PATCHES = 5;
const FEW_PIXELS = 64; // a picture of fewer along a side is drawn in squares, not blurred

const imagePanel = {
  id: "head-image",
  isMean: false,
  strength: 0.75,

  start() {
    this.box = byId("image");
    byId("head").querySelector(".dialog-body").before(byId(this.id));
    this.box.addEventListener("pointermove", (event) => this.point(this.patchAt(event)));
    this.box.addEventListener("pointerleave", () => this.point(null));
    this.box.addEventListener("click", (event) => this.choose(this.patchAt(event)));
    this.box.addEventListener("keydown", (event) => {
      const { rows, columns } = this.grid;
      const here = this.patchOf(chosen.index) ?? [0, 0];
      const next = {
        ArrowUp: [here[0] - 1, here[1]],
        ArrowDown: [here[0] + 1, here[1]],
        ArrowLeft: [here[0], here[1] - 1],
        ArrowRight: [here[0], here[1] + 1],
        Home: [0, 0],
        End: [rows - 1, columns - 1],
      }[event.key];
      if (!next || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.choose([Math.min(rows - 1, Math.max(0, next[0])), Math.min(columns - 1, Math.max(0, next[1]))]);
    });
    document.querySelectorAll("[name=image-view]").forEach((radio) => {
      radio.addEventListener("change", () => {
        this.isMean = radio.value === "mean";
        if (this.isMean) this.paint();
        else chooseToken(radio.value, chosen.index);
      });
    });
    byId("image-strength").addEventListener("input", () => {
      this.strength = Number(byId("image-strength").value) / 100;
      this.draw();
    });
    onToken((token, head, part) => {
      if (this.grid && head === this.head && part === this.part) this.paint();
    });
    headPanels.push(this);
    keepPainted(() => this.grid && this.paint());
  },

  show(head, part) {
    const { patches } = part.data;
    byId(this.id).hidden = !patches || part.isCross || !(part.mapOf(head) || part.topOf(head));
    if (byId(this.id).hidden) {
      this.grid = null;
      return;
    }
    const isNew = part !== this.part;
    Object.assign(this, { head, part, grid: patches });
    if (isNew) {
      const picture = byId("image-picture");
      picture.src = `data:image/png;base64,${patches.picture}`;
      picture.onload = () => this.box.classList.toggle("few-pixels", Math.max(picture.naturalWidth, picture.naturalHeight) < FEW_PIXELS);
      this.makeOthers();
    }
    this.paint();
  },

  // Row and column of a token; null where it is no patch.
  patchOf(index) {
    const { first, rows, columns } = this.grid;
    const place = index - first;
    return place >= 0 && place < rows * columns ? [Math.floor(place / columns), place % columns] : null;
  },

  indexOf([row, column]) {
    return this.grid.first + row * this.grid.columns + column;
  },

  patchAt(event) {
    const area = this.box.getBoundingClientRect();
    const at = (offset, length, count) => Math.min(count - 1, Math.max(0, Math.floor((offset / length) * count)));
    return [
      at(event.clientY - area.top, area.height, this.grid.rows),
      at(event.clientX - area.left, area.width, this.grid.columns),
    ];
  },

  choose(patch) {
    this.isMean = false;
    chooseToken(chosen.side, this.indexOf(patch));
  },

  // A patch's place in words; another token's own word.
  wordsFor(index) {
    const patch = this.patchOf(index);
    return patch ? `row ${patch[0]}, column ${patch[1]}` : tokenAt(this.part.tokens, index);
  },

  makeOthers() {
    const { first, rows, columns } = this.grid;
    const others = [...this.part.tokens.keys()].filter((index) => index < first || index >= first + rows * columns);
    byId("image-others-box").hidden = !others.length;
    this.others = others.map((index) => {
      const number = make("span", { class: "number" });
      const button = make("button", { type: "button" }, makeToken(this.part.tokens[index]), number);
      button.addEventListener("click", () => {
        this.isMean = false;
        chooseToken(chosen.side, index);
      });
      return { index, button, number };
    });
    byId("image-others").replaceChildren(...this.others.map(({ button }) => button));
  },

  weights() {
    const { part, head } = this;
    if (!this.isMean) {
      const answer = chosen.side === "query" ? readsOf(part, head, chosen.index) : readersOf(part, head, chosen.index);
      const weights = new Float32Array(part.numKeys);
      for (const entry of answer?.entries ?? []) weights[entry.index] = entry.weight;
      return { weights, exact: Boolean(answer?.exact) };
    }
    const weights = new Float64Array(part.numKeys);
    let exact = true;
    for (let query = 0; query < part.numQueries; query += 1) {
      const answer = readsOf(part, head, query);
      exact = exact && Boolean(answer?.exact);
      for (const entry of answer?.entries ?? []) weights[entry.index] += entry.weight / part.numQueries;
    }
    return { weights, exact };
  },

  paint() {
    const { first, rows, columns } = this.grid;
    const { weights, exact } = this.weights();
    this.onPatches = weights.slice(first, first + rows * columns);
    this.largest = this.onPatches.reduce((most, weight) => Math.max(most, weight), 0);
    const view = this.isMean ? "mean" : chosen.side;
    document.querySelectorAll("[name=image-view]").forEach((radio) => {
      radio.checked = radio.value === view;
    });
    this.draw();
    this.place(byId("image-chosen"), this.isMean ? null : this.patchOf(chosen.index));
    this.others.forEach(({ index, button, number }) => {
      button.setAttribute("aria-pressed", String(!this.isMean && index === chosen.index));
      number.textContent = formatWeight(weights[index]);
      paintShade(button, Math.sqrt(Math.min(1, weights[index])));
    });
    byId("image-largest").textContent = formatWeight(this.largest);
    byId("image-known").hidden = exact;
    this.say(weights);
    this.point(null);
  },

  // Each patch as strong as its weight beside the largest one: a weight says little where there are hundreds.
  draw() {
    const { rows, columns } = this.grid;
    const canvas = byId("image-overlay");
    Object.assign(canvas, { width: columns, height: rows });
    const marks = new ImageData(columns, rows);
    this.onPatches.forEach((weight, patch) => {
      const share = this.largest > 0 ? Math.sqrt(weight / this.largest) : 0;
      marks.data.set([...MARK, Math.round(255 * this.strength * share)], 4 * patch);
    });
    canvas.getContext("2d").putImageData(marks, 0, 0);
    byId("image-picture").style.filter = `grayscale(${this.strength})`;
    const ramp = byId("image-ramp");
    const steps = new ImageData(ramp.width, 1);
    for (let at = 0; at < ramp.width; at += 1) {
      steps.data.set([...MARK, Math.round(255 * this.strength * Math.sqrt(at / (ramp.width - 1)))], 4 * at);
    }
    ramp.getContext("2d").putImageData(steps, 0, 0);
  },

  place(frame, patch) {
    frame.hidden = !patch;
    if (!patch) return;
    const { rows, columns } = this.grid;
    frame.style.top = `${(100 * patch[0]) / rows}%`;
    frame.style.left = `${(100 * patch[1]) / columns}%`;
    frame.style.height = `${100 / rows}%`;
    frame.style.width = `${100 / columns}%`;
  },

  point(patch) {
    this.place(byId("image-pointed"), patch);
    byId("image-pointer").replaceChildren(
      ...(patch ? [make("span", { class: "end" }, `row ${patch[0]}, column ${patch[1]}`),
        make("strong", { class: "number" }, formatWeight(this.onPatches[patch[0] * this.grid.columns + patch[1]]))] : []),
    );
  },

  // What the colours show, in words and bars.
  say(weights) {
    const order = [...this.onPatches.keys()].sort((one, other) => this.onPatches[other] - this.onPatches[one] || one - other);
    const top = order.slice(0, NUM_TOP_PATCHES).filter((patch) => this.onPatches[patch] > 0);
    const tell = (patch) => [this.wordsFor(this.grid.first + patch), this.onPatches[patch]];
    const isReading = this.isMean || chosen.side === "query";
    const place = this.wordsFor(chosen.index);
    const start = this.isMean ? "All queries together read" : isReading ? `${place} reads` : `${place} is read by`;
    const strongest = top.map(tell).map(([words, weight]) => `${words} with ${formatWeight(weight)}`).join("; ");
    const beside = this.others.reduce((sum, { index }) => sum + weights[index], 0);
    const rest = isReading && this.others.length ? ` Tokens beside the patches get ${formatWeight(Math.min(1, beside))}.` : "";
    const text = `${start}: ${strongest || "no patch"}.${rest}`;
    byId("image-readout").textContent = text[0].toUpperCase() + text.slice(1);
    byId("image-top").replaceChildren(...top.map(tell).map(([words, weight]) => makeMeter(words, formatWeight(weight), Math.min(1, weight))));
  },
};
starters.push(() => byId(imagePanel.id) && imagePanel.start());
