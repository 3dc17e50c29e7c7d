// Sections of one part of several are shown with it; a head's name in any of them opens the head.
const startSections = () => {
  onPart((part) => {
    const boxes = [...document.querySelectorAll(".part-section")];
    new Set(boxes.map((box) => box.dataset.section)).forEach((section) => {
      const own = boxes.filter((box) => box.dataset.section === section);
      // a part that was not looked at so leaves the first one in its place, under its own name
      const shown = own.find((box) => Number(box.dataset.part) === part.index) ?? own[0];
      own.forEach((box) => { box.hidden = box !== shown; });
    });
  });
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-open-layer]");
    if (!opener) return;
    const index = Number(opener.closest(".part-section")?.dataset.part ?? 0);
    if (currentPart().index !== index) showPart(index);
    headView.open(Number(opener.dataset.openLayer), Number(opener.dataset.openHead));
  });
};

starters.push(() => {
  startSections();
  similarView.start();
});
