// The table of all heads as a file for a spreadsheet.
const startCsv = () => {
  const button = byId("save-csv");
  if (!button) return;
  const field = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  button.addEventListener("click", () => {
    const names = data.statistics.map((statistic) => (statistic.role ? `role: ${statistic.label}` : statistic.label));
    const rows = data.heads.map((head) => [head.layer, head.head, ...head.values.map((value) => value ?? "")]);
    const lines = [["layer", "head", ...names], ...rows].map((row) => row.map((one) => field(String(one))).join(","));
    const link = make("a", { download: "heads.csv" });
    link.href = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
    link.click();
    URL.revokeObjectURL(link.href);
  });
};
