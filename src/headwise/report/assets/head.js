// One head, opened: its map, the lines between tokens, its statistics and roles, and the text read from one token.
const chosen = { side: "query", index: 0 };
const tokenReaders = [];
const onToken = (callback) => tokenReaders.push(callback);

// Choose a token of one side, and tell all who draw it.
const chooseToken = (side, index) => {
  const part = currentPart();
  const count = side === "query" ? part.numQueries : part.numKeys;
  chosen.side = side;
  chosen.index = Math.min(count - 1, Math.max(0, index));
  tokenReaders.forEach((callback) => callback(chosen, headView.head, part));
};

const tokensOf = (part, side) => (side === "query" ? part.tokens : part.keyTokens);
const isWritten = (part, index) => part.data.num_prompt_tokens !== null && index >= part.data.num_prompt_tokens;

// A token with its number, in running text.
const makePlace = (part, side, index) =>
  make("span", { class: "end" }, makeToken(tokenAt(tokensOf(part, side), index)), make("sub", {}, String(index)));

const headView = {
  position: 0,
  head: null,

  start() {
    this.dialog = byId("head");
    bigMap.start();
    lineView.start();
    tokenView.start();
    stepper.start();
    byId("head-close").addEventListener("click", () => this.dialog.close());
    byId("head-previous").addEventListener("click", () => this.show(this.position - 1));
    byId("head-next").addEventListener("click", () => this.show(this.position + 1));
    byId("without-first").addEventListener("change", () => {
      reading.withoutFirst = byId("without-first").checked;
      this.show(this.position);
    });
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // the backdrop, not what lies on it
    });
    byId("map-ticks").append(
      ...[0, 0.01, 0.1, 0.25, 0.5, 1].map((weight) => {
        const tick = make("span", {}, String(weight));
        tick.style.left = `${100 * Math.sqrt(weight)}%`;
        return tick;
      }),
    );
    keepPainted(() => paintRamp(byId("map-ramp")));
    onPart((part) => {
      if (this.dialog.open) this.dialog.close();
      chosen.side = "query";
      // the row that the first token was written from; else in the middle of things: the first token is seldom typical
      const prompt = part.data.num_prompt_tokens;
      chosen.index = prompt ? Math.min(prompt, part.numQueries) - 1 : Math.floor(part.numQueries / 3);
    });
  },

  open(layer, head) {
    const { heads } = currentPart();
    const position = heads.findIndex((entry) => entry.layer === layer && entry.head === head);
    if (position < 0) return; // the part that is shown has no such head
    this.dialog.showModal();
    this.show(position);
    this.dialog.scrollTop = 0;
  },

  show(position) {
    const part = currentPart();
    const head = part.heads[position];
    if (!head) return;
    this.position = position;
    this.head = head;
    const title = `Layer ${head.layer}, head ${head.head}`;
    byId("head-title").replaceChildren(title, ...(part.name !== null && parts.length > 1 ? [" ", make("bdi", { class: "of-part", dir: "auto" }, part.name)] : []));
    byId("head-previous").disabled = position === 0;
    byId("head-next").disabled = position === part.heads.length - 1;
    byId("head-roles").replaceChildren(
      ...head.held.map((index) =>
        make("span", { class: "chip" }, make("span", { class: "role" }, statistics[index].label), " ",
          make("span", { class: "number" }, format(head.values[index], statistics[index]))),
      ),
    );
    this.fill("head-statistics", head, (statistic) => !statistic.role);
    this.fill("head-scores", head, (statistic) => statistic.role);
    byId("head-scores-heading").hidden = !byId("head-scores").childElementCount;

    const drawn = part.hasMap(head) || part.topOf(head) !== null;
    this.dialog.classList.toggle("without-map", !drawn);
    byId("from-token").hidden = !drawn || !part.tokens.length;
    byId("line-side").hidden = !drawn || !part.tokens.length;
    byId("first-box").hidden = !drawn;
    byId("without-first-note").hidden = !reading.withoutFirst;
    stepper.show(part, drawn);
    if (drawn) {
      bigMap.show(part, head, title);
      chooseToken(chosen.side, chosen.index);
    }
    headPanels.forEach((panel) => panel.show(head, part));
  },

  fill(id, head, wanted) {
    byId(id).replaceChildren(
      ...statistics.flatMap((statistic, index) => {
        if (!wanted(statistic) || !currentPart().shown[index]) return [];
        const value = head.values[index];
        const extra = head.held.includes(index) ? "holds" : "";
        return [makeMeter(capitalised(statistic.label), format(value, statistic, true), fractionOf(value, statistic), extra)];
      }),
    );
  },
};
