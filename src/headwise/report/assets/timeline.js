// The step over time: the moment that is pointed at, tapped or reached by the slider, and the tensors alive then.
const KIND_NAMES = {
  parameter: "Parameters",
  gradient: "Gradients",
  optimizer: "Optimizer",
  kv_cache: "KV cache",
  input: "Inputs",
  saved: "Saved",
  temporary: "Temporary",
};

const makeName = (text) => {
  const name = make("bdi", { dir: "auto" });
  name.textContent = text;
  return name;
};

const makeKey = (kind) => make("span", { class: `key kind ${kind}`, title: KIND_NAMES[kind] });

const makeAmount = (label, size) => make("div", {}, make("dt", {}, ...label), make("dd", {}, size));

const startTimeline = () => {
  const element = byId("fit-data");
  if (!element) return;
  const { columns, tensors, peak } = JSON.parse(element.textContent);
  const drawing = byId("timeline");
  const slider = byId("moment");
  let shown = peak;

  const show = (position) => {
    shown = Math.max(0, Math.min(columns.length - 1, position));
    const column = columns[shown];
    slider.value = shown;
    slider.setAttribute("aria-valuetext", `${column.name}, ${column.total}`);
    byId("cursor").setAttribute("x", shown);
    byId("moment-name").replaceChildren(makeName(column.name));
    byId("to-peak").disabled = shown === peak;
    byId("moment-kinds").replaceChildren(
      ...Object.entries(column.kinds).map(([kind, size]) => makeAmount([makeKey(kind), KIND_NAMES[kind]], size)),
      makeAmount(["All"], column.total),
    );
    byId("tensors").tBodies[0].replaceChildren(...column.tensors.map((index) => makeRow(tensors[index])));
  };

  const makeRow = ([kind, owner, name, shape, dtype, each, all]) =>
    make("tr", {},
      make("th", { scope: "row" }, makeKey(kind), makeName(name), " ", make("small", {}, makeName(owner))),
      make("td", {}, shape, " ", make("small", {}, dtype)),
      make("td", {}, make("strong", { class: "number" }, all), " ", make("small", { class: "number" }, each)));

  const point = (event) => {
    const box = drawing.getBoundingClientRect();
    const position = Math.floor(((event.clientX - box.left) / box.width) * columns.length);
    if (position !== shown) show(position);
  };
  drawing.addEventListener("pointermove", point);
  drawing.addEventListener("pointerdown", point);
  slider.addEventListener("input", () => show(Number(slider.value)));
  byId("to-peak").addEventListener("click", () => show(peak));
  [slider.parentElement, byId("to-peak"), byId("timeline-hint")].forEach((part) => {
    part.hidden = false;
  });
  show(peak);
};
