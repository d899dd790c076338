/** The latest events of the run's log. */
import { useState } from "preact/hooks";
import { Part } from "./app";
import type { LogEvent, Status } from "./api";
import { Figure } from "./figure";
import { clock } from "./format";

export function Log({ status }: { status: Status }) {
  const [word, setWord] = useState("");
  const [serious, setSerious] = useState(false);
  const fits = (event: LogEvent) =>
    (!serious || event.level !== "INFO") &&
    `${event.agent ?? ""} ${event.message}`.toLowerCase().includes(word.toLowerCase());
  return (
    <>
      <p class="control">
        <label for="word">Filter</label>
        <input id="word" value={word} onInput={(event) => setWord(event.currentTarget.value)} />
        <label>
          <input
            type="checkbox"
            checked={serious}
            onInput={(event) => setSerious(event.currentTarget.checked)}
          />
          warnings and errors only
        </label>
      </p>
      <Part<LogEvent[]> run={status.run} part="log" version={JSON.stringify(status.now?.tasks)}>
        {(events) => {
          const head = ["time", "level", "round", "message"];
          const rows = events
            .filter(fits)
            .map((one) => [clock(one.time), one.level, one.round ?? null, one.message]);
          return (
            <Figure title="Latest events" numbers={{ head, rows }} />
          );
        }}
      </Part>
    </>
  );
}
