/** Duration and traffic of each round, and what each task of the latest rounds took. */
import { Part } from "./app";
import type { Rounds, Status, Task } from "./api";
import { Lines } from "./charts";
import { Figure } from "./figure";
import { bytes, seconds } from "./format";

const NONE = "No round has finished yet.";

export function RoundsView({ status }: { status: Status }) {
  return (
    <>
      <Part<Rounds> run={status.run} part="rounds" version={status.rounds_done}>
        {({ rounds, outcomes }) => (
          <>
            <Figure
              title="Seconds of each round"
              empty={NONE}
              numbers={{
                head: ["round", "seconds"],
                rows: rounds.map((one) => [one.round, Number(one.seconds.toFixed(3))]),
              }}
            >
              <Lines
                label="Seconds of each round"
                series={[{ name: "", points: rounds.map((one) => [one.round, one.seconds]) }]}
                show={(value) => (value ? seconds(value) : "0")}
              />
            </Figure>
            <Figure
              title="Bytes of each round"
              empty={NONE}
              numbers={{
                head: ["round", "from agents", "to agents"],
                rows: rounds.map((one) => [one.round, one.bytes_up, one.bytes_down]),
              }}
            >
              <Lines
                label="Bytes of each round"
                series={[
                  { name: "from agents", points: rounds.map((one) => [one.round, one.bytes_up]) },
                  { name: "to agents", points: rounds.map((one) => [one.round, one.bytes_down]) },
                ]}
                show={bytes}
              />
            </Figure>
            <Figure
              title="Outcomes of all tasks"
              empty={NONE}
              note="Folded, or why an update did not count."
              numbers={{ head: ["outcome", "tasks"], rows: outcomes }}
            />
          </>
        )}
      </Part>
      <Part<Task[]> run={status.run} part="tasks" version={status.rounds_done}>
        {(tasks) => <Tasks tasks={tasks} />}
      </Part>
    </>
  );
}

function Tasks({ tasks }: { tasks: Task[] }) {
  const head = [
    ...["agent", "round", "submodel", "outcome", "seconds", "step", "peak memory", "examples", "loss"],
  ];
  const rows = [...tasks].reverse().map((one) => [
    one.agent,
    one.round,
    one.submodel,
    one.outcome,
    one.seconds ? Number(one.seconds.toFixed(2)) : null,
    seconds(one.step),
    one.peak ? bytes(one.peak) : "–",
    one.samples || null,
    one.loss === null ? null : Number(one.loss.toPrecision(4)),
  ]);
  return <Figure title="Tasks of the latest rounds" empty={NONE} numbers={{ head, rows }} most={200} />;
}
