// Small helpers to build the page. Text goes in as text, never as HTML.
const byId = (id) => document.getElementById(id);

const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
};

// The user's text, kept from changing the direction of what stands beside it.
// Blanks get a visible mark from the style sheet; the text itself stays what it is.
const BLANKS = { "\n": "↵", "\r": "↵", "\t": "⇥", "\u2028": "↵", "\u2029": "↵" };
const makeToken = (text) => {
  const token = make("bdi", { dir: "auto", class: "token" });
  token.textContent = text;
  if (text.trim() === "") {
    token.dataset.mark = Array.from(text, (character) => BLANKS[character] || "␣").join("") || "∅";
  }
  return token;
};

// Which way a text is read: as most of its letters are; null where nothing tells, as the name of a special token.
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const wayOf = (text) => {
  if (/^(\[.*\]|<.*>)$/.test(text)) return null;
  let balance = 0;
  for (const letter of text.match(/\p{L}/gu) ?? []) balance += RIGHT_TO_LEFT.test(letter) ? 1 : -1;
  return balance > 0 ? "rtl" : balance < 0 ? "ltr" : null;
};
const directionOf = (tokens) => wayOf(tokens.filter((text) => wayOf(text)).join("")) ?? "ltr";

// Lay tokens out as their text is read, each run of the other direction in its own; one that is null is of ours. Signs
// between two words of a run are in it. In a text from right to left a number is read from left to right.
const layTokens = (box, items, texts, direction) => {
  const other = direction === "rtl" ? "ltr" : "rtl";
  const ways = texts.map((text) => (text === null ? direction : wayOf(text)));
  const isNumber = (at) => direction === "rtl" && ways[at] === null && texts[at] !== null && /\p{Nd}/u.test(texts[at]);
  const isOther = (at) => ways[at] === other || isNumber(at);
  const children = [];
  for (let start = 0; start < items.length; ) {
    let end = start + 1; // of the run: just past its last token of the other direction
    for (let at = end; isOther(start) && at < items.length && ways[at] !== direction; at += 1) {
      if (!isOther(at)) continue;
      if (at > end && (isNumber(at) || isNumber(end - 1))) break;
      end = at + 1;
    }
    const run = items.slice(start, end);
    children.push(...(run.length > 1 ? [make("span", { class: "run", dir: other, role: "presentation" }, ...run)] : run));
    start = end;
  }
  box.dir = direction;
  box.replaceChildren(...children);
};

// Not by the style sheet: where it draws a first letter of its own, a name of one letter is none for a screen reader.
const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// A number with what is counted: 1 head, 1,024 heads.
const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// A labelled number with a bar; `fraction` from 0 to 1, null where the number is not known.
const makeMeter = (label, text, fraction, extra = "") => {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "bar");
  svg.setAttribute("width", "100%");
  svg.setAttribute("height", "6");
  svg.setAttribute("aria-hidden", "true");
  for (const [name, share] of [["track", 1], ["fill", fraction || 0]]) {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    bar.setAttribute("class", name);
    bar.setAttribute("width", `${(100 * Math.min(1, share)).toFixed(2)}%`);
    bar.setAttribute("height", "6");
    bar.setAttribute("rx", "2");
    svg.append(bar);
  }
  return make("div", { class: `meter ${extra}` }, make("dt", {}, label), make("dd", {}, text), svg);
};

// One stop for the Tab key in a group of many; arrows move inside. `stepOf` turns a key into a new index or null.
const roveFocus = (container, items, stepOf) => {
  const current = () => Math.max(0, items.findIndex((item) => item.tabIndex === 0));
  const moveTo = (index) => {
    items[current()].tabIndex = -1;
    items[index].tabIndex = 0;
  };
  items.forEach((item, index) => {
    item.tabIndex = index === 0 ? 0 : -1;
    item.onfocus = () => moveTo(index); // one alone: the same items may come again in another order
  });
  container.onkeydown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !items.length) return;
    const next = stepOf(event.key, current());
    if (next === null) return;
    event.preventDefault();
    items[Math.min(items.length - 1, Math.max(0, next))].focus();
  };
};
