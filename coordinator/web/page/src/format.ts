/** Numbers and times as text. */

export function bytes(count: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined || !(value > 0)) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1000).toPrecision(3)} ms`;
  if (value < 120) return `${value.toPrecision(3)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

export const ratio = (value: number | null | undefined) =>
  value === null || value === undefined ? "–" : value.toFixed(3);

export function clock(text: string): string {
  const when = new Date(text);
  return Number.isNaN(when.getTime()) ? text : when.toLocaleString();
}

export function plain(value: unknown): string {
  if (value === null || value === undefined) return "none";
  return typeof value === "string" ? value || "empty" : JSON.stringify(value);
}

/** Rows as CSV (RFC 4180). A cell that a spreadsheet would run as a formula gets a quote in front. */
export function csv(head: string[], rows: Cell[][]): string {
  const cell = (value: Cell) => {
    const text = String(value ?? "");
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

export type Cell = string | number | null;
