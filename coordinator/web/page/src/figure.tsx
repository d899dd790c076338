/** A chart with its numbers: shown as a table on request, and saved as CSV. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { type Cell, csv } from "./format";

export interface Numbers {
  head: string[];
  rows: Cell[][];
}

const SAMPLE = 50; // rows that decide what a column has
const LONG = 30; // characters of a text that may need several lines
const AMOUNT = /^[\d.]+( (B|kB|MB|GB|TB|µs|ms|s|min|h|°C)(\/s)?)?$/;

/** What a column has: numbers, perhaps with units, which are aligned at their right, or long texts,
 * which are broken into lines. */
function findKind(rows: Cell[][], column: number): "number" | "text" | undefined {
  const cells = rows.slice(0, SAMPLE).map((row) => row[column]);
  const known = cells.filter((cell) => cell !== null && cell !== undefined && cell !== "–");
  const numeric = known.every((cell) => typeof cell === "number" || AMOUNT.test(String(cell)));
  if (known.length && numeric) return "number";
  return known.some((cell) => String(cell).length > LONG) ? "text" : undefined;
}

export function Table({ title, head, rows }: Numbers & { title: string }) {
  const kinds = head.map((_, column) => (column ? findKind(rows, column) : undefined));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={`Table: ${title}`}>
      <table>
        <thead>
          <tr>
            {head.map((title, column) => (
              <th scope="col" key={title} class={kinds[column]}>
                {title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              {row.map((cell, column) =>
                column ? (
                  <td key={column} class={kinds[column]}>
                    {cell ?? "–"}
                  </td>
                ) : (
                  <th scope="row" key={column}>
                    {cell ?? "–"}
                  </th>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function save(name: string, text: string) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = `${name}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Without children, the numbers are always shown as a table: of at most `most` rows. */
export function Figure(props: {
  title: string;
  /** Name of the CSV file; by default made of the title. */
  file?: string;
  note?: string;
  numbers: Numbers;
  /** Text in place of a table without rows. */
  empty?: string;
  most?: number;
  children?: ComponentChildren;
}) {
  const { title, note, numbers, empty = "Nothing to show yet.", most = 1000, children } = props;
  const [open, setOpen] = useState(false);
  if (!numbers.rows.length) {
    return (
      <section class="card">
        <h2>{title}</h2>
        <p class="quiet">{empty}</p>
      </section>
    );
  }
  const file = props.file ?? title.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-");
  return (
    <section class="card">
      <header>
        <h2>{title}</h2>
        <span class="tools">
          {children && (
            <button type="button" aria-pressed={open} onClick={() => setOpen(!open)}>
              Table
            </button>
          )}
          <button type="button" onClick={() => save(file, csv(numbers.head, numbers.rows))}>
            CSV
          </button>
        </span>
      </header>
      {note && <p class="quiet">{note}</p>}
      {children && !open ? (
        children
      ) : (
        <Table title={title} head={numbers.head} rows={numbers.rows.slice(0, most)} />
      )}
      {numbers.rows.length > most && (!children || open) && (
        <p class="quiet">{`The CSV has all ${numbers.rows.length} rows.`}</p>
      )}
    </section>
  );
}
