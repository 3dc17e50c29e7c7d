// One head, opened: its map, its statistics and roles, and the text read from one token.
const headView = {
  position: 0,

  start() {
    this.dialog = byId("head");
    const choose = (query) => {
      tokenView.choose(query);
      bigMap.follow(query);
    };
    bigMap.start(choose);
    tokenView.start(choose);
    byId("head-close").addEventListener("click", () => this.dialog.close());
    byId("head-previous").addEventListener("click", () => this.show(this.position - 1));
    byId("head-next").addEventListener("click", () => this.show(this.position + 1));
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
  },

  open(layer, head) {
    this.show(data.heads.findIndex((entry) => entry.layer === layer && entry.head === head));
    this.dialog.showModal();
    this.dialog.scrollTop = 0;
  },

  show(position) {
    const head = data.heads[position];
    if (!head) return;
    this.position = position;
    const title = `Layer ${head.layer}, head ${head.head}`;
    byId("head-title").textContent = title;
    byId("head-previous").disabled = position === 0;
    byId("head-next").disabled = position === data.heads.length - 1;
    byId("head-roles").replaceChildren(
      ...head.held.map((index) =>
        make("span", { class: "chip" }, make("span", { class: "role" }, data.statistics[index].label), " ",
          make("span", { class: "number" }, format(head.values[index], data.statistics[index]))),
      ),
    );
    this.fill("head-statistics", head, (statistic) => !statistic.role);
    this.fill("head-scores", head, (statistic) => statistic.role);
    byId("head-scores-heading").hidden = !data.statistics.some((statistic) => statistic.role);

    const map = maps.get(nameOf(head.layer, head.head));
    this.dialog.classList.toggle("without-map", !map);
    byId("from-token").hidden = !map || !data.tokens.length;
    if (map) {
      bigMap.show(map, title);
      tokenView.show(map);
    }
  },

  fill(id, head, wanted) {
    byId(id).replaceChildren(
      ...data.statistics.flatMap((statistic, index) => {
        if (!wanted(statistic)) return [];
        const value = head.values[index];
        const extra = head.held.includes(index) ? "holds" : "";
        return [makeMeter(statistic.label, format(value, statistic, true), fractionOf(value, statistic), extra)];
      }),
    );
  },
};
