/** Faults of the run, and the latest events of its log. */
import { useChoice } from "./address";
import { Part } from "./app";
import type { Faults, LogEvent, Status } from "./api";
import { Figure } from "./figure";
import { clock } from "./format";

const EVERY = 10; // seconds between two counts of the faults while a phase lasts

function FaultTable({ status }: { status: Status }) {
  const version = `${status.state} ${status.rounds_done} ${Math.floor((status.now?.elapsed ?? 0) / EVERY)}`;
  return (
    <Part<Faults> run={status.run} part="faults" version={version}>
      {({ since, faults }) => (
        <Figure
          title="Faults survived"
          empty="No fault so far."
          note={since && `In the log, which goes back to ${clock(since)}. The reason is that of the last one.`}
          numbers={{
            head: ["fault", "times", "agents", "last", "reason"],
            rows: faults.map((one) => [one.fault, one.times, one.agents, clock(one.last), one.reason]),
          }}
        />
      )}
    </Part>
  );
}

export function Log({ status }: { status: Status }) {
  const [word, setWord] = useChoice("word");
  const [level, setLevel] = useChoice("level");
  const serious = level === "warning";
  const version = JSON.stringify([status.state, status.now?.phase, status.now?.tasks, status.errors.at(-1)]);
  const fits = (event: LogEvent) =>
    (!serious || event.level !== "INFO") &&
    `${event.agent ?? ""} ${event.message}`.toLowerCase().includes(word.toLowerCase());
  return (
    <>
      <FaultTable status={status} />
      <p class="control">
        <label for="word">Filter</label>
        <input id="word" value={word} onInput={(event) => setWord(event.currentTarget.value)} />
        <label>
          <input
            type="checkbox"
            checked={serious}
            onInput={(event) => setLevel(event.currentTarget.checked ? "warning" : "")}
          />
          warnings and errors only
        </label>
      </p>
      <Part<LogEvent[]> run={status.run} part="log" version={version}>
        {(events) => {
          const head = ["time", "level", "round", "message"];
          const rows = events
            .filter(fits)
            .map((one) => [clock(one.time), one.level, one.round ?? null, one.message]);
          const empty = events.length ? "No event matches the filter." : "The run has no log yet.";
          return <Figure title="Latest events" empty={empty} numbers={{ head, rows }} />;
        }}
      </Part>
    </>
  );
}
