// The table of all heads, of all parts, as a file for a spreadsheet.
const startCsv = () => {
  const button = byId("save-csv");
  if (!button) return;
  const field = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  button.addEventListener("click", () => {
    const names = statistics.map((statistic) => (statistic.role ? `role: ${statistic.label}` : statistic.label));
    const own = (part) => (parts.length > 1 ? [part.name ?? `part ${part.index + 1}`] : []);
    const rows = parts.flatMap((part) => part.heads.map((head) => [...own(part), head.layer, head.head, ...head.values.map((value) => value ?? "")]));
    const first = parts.length > 1 ? ["part"] : [];
    const lines = [[...first, "layer", "head", ...names], ...rows].map((row) => row.map((one) => field(String(one))).join(","));
    const link = make("a", { download: "heads.csv" });
    link.href = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
    link.click();
    URL.revokeObjectURL(link.href);
  });
};
