// How alike the heads of each layer are: one square a layer, heads down and across, and the pair that is pointed at.
const LARGEST_DIVERGENCE = Math.log(2);

const similarView = {
  start() {
    document.querySelectorAll(".similar-ramp").forEach((canvas) => keepPainted(() => paintRamp(canvas)));
    document.querySelectorAll(".similar-layers").forEach((box) => {
      const part = parts[Number(box.closest(".part-section").dataset.part)];
      const readout = box.parentElement.querySelector(".similar-readout");
      box.append(...(part.data.divergences ?? []).map((layer) => this.makeLayer(layer, part, readout)));
      box.parentElement.hidden = false;
    });
  },

  makeLayer({ layer, heads, bytes: packed }, part, readout) {
    const bytes = unpack(packed, heads.length ** 2);
    const canvas = make("canvas", { "aria-hidden": "true" });
    const box = make("div", {
      class: "similar-map",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "square of divergences",
      "aria-label": `Layer ${layer}: how far apart its ${counted(heads.length, "head")} ${heads.length === 1 ? "is" : "are"}`,
      "aria-describedby": `similar-hint-${part.index}`,
    }, canvas);
    let at = [0, Math.min(1, heads.length - 1)];
    const read = (row, column) => {
      const inside = (value) => Math.min(heads.length - 1, Math.max(0, value));
      at = [inside(row), inside(column)];
      const nats = (bytes[at[0] * heads.length + at[1]] / 255) * LARGEST_DIVERGENCE;
      readout.replaceChildren(
        make("span", { class: "end" }, `Layer ${layer}`),
        ` heads ${heads[at[0]]} and ${heads[at[1]]}`,
        make("strong", { class: "number" }, `${nats.toFixed(2)} nats`),
      );
    };
    box.addEventListener("pointermove", (event) => {
      const area = canvas.getBoundingClientRect();
      const place = (offset, length) => Math.floor((offset / length) * heads.length);
      read(place(event.clientY - area.top, area.height), place(event.clientX - area.left, area.width));
    });
    box.addEventListener("focus", () => read(...at));
    box.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      read(at[0] + step[0], at[1] + step[1]);
    });
    keepPainted(() => paintMap(canvas, { numQueries: heads.length, numKeys: heads.length, bytes }));
    return make("figure", { class: "similar-layer" }, box, make("figcaption", {}, `L${layer}`));
  },
};
