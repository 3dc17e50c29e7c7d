startTheme();
byId("no-script")?.remove();
if (parts.length && parts[0].heads.length) {
  headView.start();
  gridView.start();
  statisticsTable.start();
  startCsv();
  startParts();
  document.querySelectorAll(".held [data-layer]").forEach((button) => {
    button.addEventListener("click", () => headView.open(Number(button.dataset.layer), Number(button.dataset.head)));
  });
  starters.forEach((start) => start());
}
