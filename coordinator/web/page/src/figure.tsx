/** A chart with its numbers: shown as a table on request, and saved as CSV. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { type Cell, csv } from "./format";

export interface Numbers {
  head: string[];
  rows: Cell[][];
}

export function Table({ title, head, rows }: Numbers & { title: string }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={`Table: ${title}`}>
      <table>
        <thead>
          <tr>
            {head.map((title, column) => (
              <th
                scope="col"
                key={title}
                class={typeof rows[0]?.[column] === "number" && column ? "number" : undefined}
              >
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
                  <td key={column} class={typeof cell === "number" ? "number" : undefined}>
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
  most?: number;
  children?: ComponentChildren;
}) {
  const { title, note, numbers, most = 1000, children } = props;
  const [open, setOpen] = useState(false);
  if (!numbers.rows.length) {
    return (
      <section class="card">
        <h2>{title}</h2>
        <p class="quiet">Nothing to show yet.</p>
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
