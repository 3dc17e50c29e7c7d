// The text as tokens: choose one, and what it reads is shaded.
const NUM_TOP_KEYS = 6;
const SMALLEST_TOP_WEIGHT = 0.001;

const tokenView = {
  query: Math.floor((data?.tokens.length ?? 0) / 3), // in the middle of things: the first token is seldom typical
  map: null,

  start(onChoose) {
    this.items = data.tokens.map((text, index) => {
      const item = make("span", { role: "option", "aria-selected": "false" }, makeToken(text));
      item.addEventListener("click", () => onChoose(index));
      return item;
    });
    byId("from-tokens").append(...this.items);
    roveFocus(byId("from-tokens"), this.items, (key, index) => {
      if (key === "Enter" || key === " ") onChoose(index);
      return { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: this.items.length - 1 }[key] ?? null;
    });
    keepPainted(() => this.map && this.choose(this.query));
  },

  show(map) {
    this.map = map;
    this.choose(Math.min(this.query, map.numQueries - 1));
  },

  choose(query) {
    if (query >= this.map.numQueries) return;
    this.query = query;
    const { numKeys, bytes } = this.map;
    const row = bytes.subarray(query * numKeys, (query + 1) * numKeys);
    this.items.forEach((item, key) => {
      const byte = row[key] ?? 0;
      paintShade(item, byte / 255);
      item.setAttribute("aria-selected", String(key === query));
      item.title = `weight ${formatWeight(weightOf(byte))}`;
    });
    byId("from-heading").replaceChildren("From one token: ", makeToken(tokenAt(query)), make("sub", {}, String(query)));
    const top = Array.from(row.keys()).sort((one, other) => row[other] - row[one]).slice(0, NUM_TOP_KEYS);
    byId("top-keys").replaceChildren(
      ...top.filter((key) => weightOf(row[key]) >= SMALLEST_TOP_WEIGHT).map((key) => {
        const weight = weightOf(row[key]);
        const label = make("span", {}, makeToken(tokenAt(key)), make("sub", {}, String(key)));
        return makeMeter(label, formatWeight(weight), weight);
      }),
    );
  },
};
