startTheme();
byId("no-script")?.remove();
if (data && data.heads.length) {
  headView.start();
  gridView.start();
  statisticsTable.start();
  startCsv();
  document.querySelectorAll("#held [data-layer]").forEach((button) => {
    button.addEventListener("click", () => headView.open(Number(button.dataset.layer), Number(button.dataset.head)));
  });
  if (byId("text")) byId("text").append(...data.tokens.map((text) => make("span", {}, makeToken(text))));
}
