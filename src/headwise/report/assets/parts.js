// Which of several parts is shown: a list to choose from, and what the page says of each. The whole text as tokens.
const startParts = () => {
  const select = byId("part");
  select.append(...parts.map((part) => make("option", { value: part.index }, part.name ?? `part ${part.index + 1}`)));
  byId("part-box").hidden = parts.length === 1;
  select.addEventListener("change", () => showPart(Number(select.value)));
  onPart((part) => {
    select.value = String(part.index);
    document.querySelectorAll("[data-part]:not(.part-section)").forEach((element) => {
      element.hidden = Number(element.dataset.part) !== part.index;
    });
  });
  if (byId("text-box")) startText();
};

// A long text is put on the page when it is asked for.
const startText = () => {
  const box = byId("text-box");
  const fill = () => {
    const part = currentPart();
    if (byId("text").childElementCount) return;
    const lay = (place, tokens, isMarked) => {
      const items = tokens.map((text, index) => make("span", { class: isMarked(index) ? "written" : null }, makeToken(text)));
      layTokens(byId(place), items, tokens, directionOf(tokens));
    };
    lay("text", part.tokens, (index) => isWritten(part, index));
    byId("text-keys-heading").hidden = !part.isCross;
    if (part.isCross) lay("text-keys", part.keyTokens, () => false);
  };
  onPart((part) => {
    Object.assign(box, { hidden: !part.tokens.length, open: false });
    byId("text").replaceChildren();
    byId("text-keys").replaceChildren();
  });
  box.firstElementChild.addEventListener("click", fill);
  box.addEventListener("toggle", () => box.open && fill());
};
