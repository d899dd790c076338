/** The latest events of the run's log. */
import { useChoice } from "./address";
import { Part } from "./app";
import type { LogEvent, Status } from "./api";
import { Figure } from "./figure";
import { clock } from "./format";

const FAULTS: Record<string, string> = {
  went: "an agent left",
  came: "an agent restarted",
  "lease expired": "a lease expired",
  failed: "a task failed",
  refused: "a message or an update was refused",
  "turned away": "an agent was turned away",
  delayed: "a round was delayed",
};

/** Count the faults by kind and reason, without the name that a message begins with. */
function countFaults(events: LogEvent[]): [string, string, number][] {
  const found = new Map<string, [string, string, number]>();
  for (const { event, message, agent } of events) {
    const fault = FAULTS[event ?? ""];
    if (!fault || (event === "came" && !message.endsWith("restarted"))) continue;
    const reason = event === "refused" ? message.replace(/^rejected from [^:]*: /, "") : message;
    const plain = agent && reason.startsWith(agent) ? reason.slice(agent.length).replace(/^[: ]+/, "") : reason;
    const row = found.get(`${fault} ${plain}`) ?? [fault, plain, 0];
    row[2] += 1;
    found.set(`${fault} ${plain}`, row);
  }
  return [...found.values()].sort((one, other) => other[2] - one[2]);
}

export function Log({ status }: { status: Status }) {
  const [word, setWord] = useChoice("word");
  const [level, setLevel] = useChoice("level");
  const serious = level === "warning";
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
            onInput={(event) => setLevel(event.currentTarget.checked ? "warning" : "")}
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
            <>
              <Figure
                title="Faults and refusals among the latest events"
                numbers={{ head: ["fault", "reason", "times"], rows: countFaults(events) }}
              />
              <Figure title="Latest events" numbers={{ head, rows }} />
            </>
          );
        }}
      </Part>
    </>
  );
}
