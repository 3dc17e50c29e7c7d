// A text that the model wrote, token by token: at each step the row from which the next token was made.
const STEP_MILLISECONDS = 900;

const stepper = {
  timer: null,

  start() {
    this.slider = byId("step");
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    byId("step-back").addEventListener("click", () => this.go(this.step - 1));
    byId("step-forth").addEventListener("click", () => this.go(this.step + 1));
    byId("step-play").addEventListener("click", () => (this.timer === null ? this.play() : this.stop()));
    // whoever asked for less motion steps by hand
    byId("step-play").hidden = matchMedia("(prefers-reduced-motion: reduce)").matches;
    byId("head").addEventListener("close", () => this.stop());
    onToken((token, head, part) => this.follow(token, part));
  },

  get numSteps() {
    return this.part.numQueries - this.part.data.num_prompt_tokens;
  },

  show(part, drawn) {
    this.part = part;
    const prompt = part.data.num_prompt_tokens;
    this.isShown = drawn && prompt !== null && prompt > 0 && part.numQueries > prompt;
    byId("steps").hidden = !this.isShown;
    if (this.isShown) this.slider.max = this.numSteps;
  },

  // Step t writes token prompt + t - 1, from the row of the token before it.
  go(step) {
    const kept = Math.min(this.numSteps, Math.max(1, step));
    chooseToken("query", this.part.data.num_prompt_tokens + kept - 2);
  },

  follow(token, part) {
    if (!this.isShown || part !== this.part) return;
    const step = token.index + 2 - part.data.num_prompt_tokens;
    const isStep = token.side === "query" && step >= 1 && step <= this.numSteps;
    this.step = isStep ? step : 0;
    this.slider.value = Math.max(1, this.step);
    byId("step-back").disabled = this.step <= 1;
    byId("step-forth").disabled = this.step >= this.numSteps;
    const written = part.data.num_prompt_tokens + step - 1;
    byId("step-readout").replaceChildren(...(isStep
      ? [`Step ${step} of ${this.numSteps}: the model writes `, makePlace(part, "query", written), ", made from the row of ", makePlace(part, "query", token.index), ", the last token it had."]
      : [`${counted(part.data.num_prompt_tokens, "token")} ${part.data.num_prompt_tokens === 1 ? "was" : "were"} given, the model wrote ${this.numSteps}: step through them.`]));
    this.slider.setAttribute("aria-valuetext", byId("step-readout").textContent);
    if (this.step >= this.numSteps) this.stop();
  },

  play() {
    this.timer = setInterval(() => this.go(this.step + 1), STEP_MILLISECONDS);
    byId("step-play").textContent = "Pause";
    this.go(this.step >= this.numSteps ? 1 : this.step + 1); // last: at the end of the text it stops
  },

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    byId("step-play").textContent = "Play";
  },
};
