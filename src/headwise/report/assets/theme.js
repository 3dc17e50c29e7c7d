// Light or dark: as the system says, until the button says otherwise; light on paper.
const root = document.documentElement;
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const repaints = [];

const currentTheme = () => root.dataset.theme || (systemDark.matches ? "dark" : "light");

const themeChanged = () => {
  const other = currentTheme() === "dark" ? "light" : "dark";
  byId("theme").textContent = other === "dark" ? "☾ Dark" : "☀ Light";
  byId("theme").setAttribute("aria-label", `Switch to ${other} colours`);
  repaints.forEach((repaint) => repaint());
};

const setTheme = (theme) => {
  if (theme) root.dataset.theme = theme;
  else delete root.dataset.theme;
  themeChanged();
};

// Paint now, and again whenever the colours change.
const keepPainted = (repaint) => {
  repaints.push(repaint);
  repaint();
};

const startTheme = () => {
  byId("theme").hidden = false;
  byId("theme").addEventListener("click", () => setTheme(currentTheme() === "dark" ? "light" : "dark"));
  systemDark.addEventListener("change", themeChanged);
  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    setTheme("light");
  });
  addEventListener("afterprint", () => setTheme(before));
  themeChanged();
};
