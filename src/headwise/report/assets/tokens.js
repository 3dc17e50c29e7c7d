// The text as tokens: choose one, and what it reads, or who reads it, is shaded. Of a long text one page at a time.
const NUM_TOP_KEYS = 6;
const SMALLEST_TOP_WEIGHT = 0.001;
const TOKENS_A_PAGE = 256;

const tokenView = {
  part: null,
  head: null,
  pages: { query: 0, key: 0 },
  items: { query: [], key: [] },
  first: { query: 0, key: 0 },

  start() {
    this.lists = { query: byId("from-tokens"), key: byId("from-keys") };
    document.querySelectorAll("[name=direction]").forEach((radio) => {
      radio.addEventListener("change", () => {
        const count = radio.value === "query" ? this.part.numQueries : this.part.numKeys;
        chooseToken(radio.value, Math.min(chosen.index, count - 1));
      });
    });
    for (const side of ["query", "key"]) {
      const [back, forth] = [byId(`${side}-page-back`), byId(`${side}-page-forth`)];
      back.addEventListener("click", () => this.turn(side, this.pages[side] - 1));
      forth.addEventListener("click", () => this.turn(side, this.pages[side] + 1));
      byId(`${side}-page`).addEventListener("input", () => this.turn(side, Number(byId(`${side}-page`).value)));
    }
    onPart(() => {
      this.part = null;
    });
    onToken((token, head, part) => this.show(part, head));
    keepPainted(() => this.head && this.part && this.shade());
  },

  // Where queries and keys are the same tokens there is one list for both.
  listFor(side) {
    return this.part.isCross ? side : "query";
  },

  show(part, head) {
    const isNew = part !== this.part;
    Object.assign(this, { part, head });
    if (isNew) {
      byId("from-keys-box").hidden = !part.isCross;
      byId("from-queries-heading").hidden = !part.isCross;
      this.turn("query", 0, false);
      if (part.isCross) this.turn("key", 0, false);
    }
    const list = this.listFor(chosen.side);
    const page = Math.floor(chosen.index / TOKENS_A_PAGE);
    if (page !== this.pages[list]) this.turn(list, page, false);
    this.shade();
  },

  turn(list, page, repaint = true) {
    const tokens = tokensOf(this.part, list);
    const last = Math.max(0, Math.ceil(tokens.length / TOKENS_A_PAGE) - 1);
    this.pages[list] = Math.min(last, Math.max(0, page));
    const start = this.pages[list] * TOKENS_A_PAGE;
    const end = Math.min(tokens.length, start + TOKENS_A_PAGE);
    this.first[list] = start;
    byId(`${list}-pages`).hidden = last === 0;
    Object.assign(byId(`${list}-page`), { max: last, value: this.pages[list] });
    byId(`${list}-page`).setAttribute("aria-valuetext", `tokens ${start} to ${end - 1}`);
    byId(`${list}-page-back`).disabled = this.pages[list] === 0;
    byId(`${list}-page-forth`).disabled = this.pages[list] === last;
    byId(`${list}-page-readout`).textContent = `tokens ${start.toLocaleString("en")} to ${(end - 1).toLocaleString("en")} of ${tokens.length.toLocaleString("en")}`;
    const prompt = this.part.data.num_prompt_tokens;
    const children = [];
    const texts = [];
    this.items[list] = tokens.slice(start, end).map((text, offset) => {
      const index = start + offset;
      const written = list === "query" && isWritten(this.part, index);
      const item = make("span", { role: "option", "aria-selected": "false", class: written ? "written" : null }, makeToken(text));
      item.addEventListener("click", () => this.choose(list, index));
      if (list === "query" && index === prompt) {
        children.push(make("span", { class: "says", role: "presentation" }, "written by the model:"));
        texts.push(null);
      }
      children.push(item);
      texts.push(text);
      return item;
    });
    layTokens(this.lists[list], children, texts, directionOf(tokens));
    const items = this.items[list];
    roveFocus(this.lists[list], items, (key, at) => {
      if (key === "Enter" || key === " ") this.choose(list, start + at);
      const forth = this.lists[list].dir === "rtl" ? -1 : 1; // arrows go where they point
      return { ArrowLeft: at - forth, ArrowRight: at + forth, Home: 0, End: items.length - 1 }[key] ?? null;
    });
    if (repaint) this.shade();
  },

  choose(list, index) {
    chooseToken(this.part.isCross ? list : chosen.side, index);
  },

  shade() {
    const { part, head } = this;
    const { side, index } = chosen;
    const other = side === "query" ? "key" : "query";
    const answer = side === "query" ? readsOf(part, head, index) : readersOf(part, head, index);
    const weights = new Map((answer?.entries ?? []).map((entry) => [entry.index, entry.weight]));
    document.querySelectorAll("[name=direction]").forEach((radio) => {
      radio.checked = radio.value === side;
    });
    const [choosing, shading] = [this.listFor(side), this.listFor(other)];
    for (const list of part.isCross ? ["query", "key"] : ["query"]) {
      this.items[list].forEach((item, offset) => {
        const at = this.first[list] + offset;
        const weight = weights.get(at) ?? 0;
        paintShade(item, list === shading ? Math.sqrt(weight) : null);
        item.setAttribute("aria-selected", String(list === choosing && at === index));
        if (list === shading) item.title = answer?.exact || weight ? `weight ${formatWeight(weight)}` : "not among the heaviest keys";
        else item.removeAttribute("title");
      });
    }
    const focusable = this.items[choosing][index - this.first[choosing]];
    if (focusable) this.items[choosing].forEach((item) => (item.tabIndex = item === focusable ? 0 : -1));
    byId("from-heading").replaceChildren(side === "query" ? "From one token: " : "To one token: ", makePlace(part, side, index));
    byId("top-heading").textContent = side === "query" ? "What it reads most"
      : !answer || answer.exact ? "Who reads it most" : "Who reads it most, of those known";
    const top = (answer?.entries ?? []).filter((entry) => entry.weight >= SMALLEST_TOP_WEIGHT).slice(0, NUM_TOP_KEYS);
    const meters = top.map((entry) => makeMeter(makePlace(part, other, entry.index), formatWeight(entry.weight), entry.weight));
    if (side === "query" && answer) {
      const rest = answer.entries.slice(top.length).reduce((sum, entry) => sum + entry.weight, answer.rest);
      if (rest >= SMALLEST_TOP_WEIGHT) meters.push(makeMeter("the rest, all other keys", formatWeight(Math.min(1, rest)), rest, "rest"));
    }
    if (!answer) meters.push(make("p", { class: "hint" }, "This page does not hold the weights of that token."));
    byId("top-keys").replaceChildren(...meters);
  },
};
