// The table of all heads, of all parts, as a file for a spreadsheet.
const startCsv = () => {
  const button = byId("save-csv");
  if (!button) return;
  // one line a head, and no field that a spreadsheet would run
  const asName = (text) => text.replaceAll(/[\r\n]/g, " ").replace(/^(?=[=+\-@\t])/, "'");
  const field = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  button.addEventListener("click", () => {
    // as `--out` with .csv writes them: statistics, what the page does not show, roles
    const numMeasured = statistics.filter((statistic) => !statistic.role).length;
    const inOrder = (ofStatistics, saved) => [...ofStatistics.slice(0, numMeasured), ...saved, ...ofStatistics.slice(numMeasured)];
    const names = inOrder(statistics.map((statistic) => statistic.name), data.saved);
    const own = (part) => (parts.length > 1 ? [asName(part.name ?? `part ${part.index + 1}`)] : []);
    const rows = parts.flatMap((part) => part.heads.map((head) =>
      [...own(part), head.layer, head.head, ...inOrder(head.values, head.saved).map((value) => value ?? "")]));
    const first = parts.length > 1 ? ["part"] : [];
    const lines = [[...first, "layer", "head", ...names], ...rows].map((row) => row.map((one) => field(String(one))).join(","));
    const link = make("a", { download: "heads.csv" });
    link.href = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
    link.click();
    URL.revokeObjectURL(link.href);
  });
};
