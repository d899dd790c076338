/** What the run does now, and whether it gets better. */
import { Part } from "./app";
import type { Rounds, Score, Status } from "./api";
import { Lines, type Series } from "./charts";
import { Figure } from "./figure";
import { bytes, clock, ratio, seconds } from "./format";

const SILENT = 10; // seconds without news of the coordinator after which the page says so

export function describePhase(status: Status): string {
  const now = status.now;
  if (status.state === "dead") return "The coordinator crashed or was killed; the run can be resumed.";
  if (status.state === "failed") return `Failed: ${now?.reason ?? "unknown reason"}`;
  if (status.state !== "running") return status.state === "over" ? "Finished." : "Stopped.";
  if (!now) return "Starting.";
  if (now.broker_lost) return "Waiting for the broker.";
  if (now.store_lost) return "Waiting for the store.";
  if (now.phase === "waiting") return `Waiting for ${now.wanted} agents.`;
  if (now.phase === "paused") return `Paused after round ${now.round}.`;
  if (now.phase === "between") return now.round ? `Between rounds, after round ${now.round}.` : "Starting.";
  return `In round ${now.round} of ${now.rounds}: ${now.phase}.`;
}

/** What people asked of the run and it has not done yet. */
function describeRequests({ now, requests }: Status): string {
  if (!requests) return "";
  if (requests.stop) return requests.stop === "stop" ? "It stops after this round." : "It stops now.";
  return requests.paused && now?.phase !== "paused" ? "It pauses after this round." : "";
}

export function Overview({ status }: { status: Status }) {
  const { now } = status;
  const facts: [string, string][] = [
    ["Method", status.method],
    ["Model", status.model],
    ["Data", status.data],
    ["Rounds done", `${status.rounds_done} of ${status.rounds}`],
    ["Time left", status.eta ? `about ${seconds(status.eta)}` : "–"],
    ["From agents", bytes(status.bytes_up)],
    ["To agents", bytes(status.bytes_down)],
  ];
  if (now?.epsilon !== null && now?.epsilon !== undefined) {
    facts.push(["Epsilon", now.epsilon.toPrecision(4)]);
  }
  return (
    <>
      <section class="card">
        <h2 class="phase" aria-live="polite">{`${describePhase(status)} ${describeRequests(status)}`}</h2>
        <progress max={status.rounds} value={status.rounds_done} aria-label="Rounds done" />
        {status.state === "running" && now?.broker_lost && (
          <p class="alert">
            {`The coordinator lost its connection to the broker: ${now.broker_lost}. ` +
              "The run continues when the broker is back."}
          </p>
        )}
        {status.state === "running" && now?.store_lost && (
          <p class="alert">
            {`The coordinator cannot reach the store: ${now.store_lost}. ` +
              "The run continues when the store is back."}
          </p>
        )}
        {(status.silent ?? 0) > SILENT && (
          <p class="alert">{`The coordinator has not reported for ${seconds(status.silent)}.`}</p>
        )}
        <dl class="facts">
          {facts.map(([title, value]) => (
            <div key={title}>
              <dt>{title}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      </section>
      <Part<Rounds> run={status.run} part="rounds" version={status.rounds_done}>
        {(found) => <Accuracy scores={found.scores} />}
      </Part>
      {status.state === "running" && now && (
        <Figure
          title="Agents now"
          empty="No agent has joined yet."
          most={200}
          numbers={{
            head: ["agent", "submodel", "state", "task", "training loss", "reason"],
            rows: now.members.map((one) => [
              one.agent,
              one.submodel,
              one.state,
              one.task,
              one.loss === null ? null : Number(one.loss.toPrecision(4)),
              one.reason,
            ]),
          }}
        />
      )}
      {status.errors.length > 0 && (
        <section class="card">
          <h2>Recent warnings and errors</h2>
          <ul class="events">
            {status.errors.map((event, index) => (
              <li key={index}>
                <time>{clock(event.time)}</time> <b>{event.level}</b> {event.message}
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}

/** The view that most rounds were scored in: on the coordinator's data, or on the devices'. */
export function selectView(scores: Score[]): string {
  const views = new Set(scores.map((one) => one.view));
  return ["central", "devices", "labels"].find((view) => views.has(view)) ?? "";
}

export function groupScores(scores: Score[]): Series[] {
  const view = selectView(scores);
  const found = new Map<string, [number, number][]>();
  for (const one of scores) {
    if (one.view !== view) continue;
    const points = found.get(one.submodel) ?? [];
    points.push([one.round, one.accuracy]);
    found.set(one.submodel, points);
  }
  return [...found]
    .sort(([one], [other]) => one.localeCompare(other, undefined, { numeric: true }))
    .map(([name, points]) => ({ name, points }));
}

function Accuracy({ scores }: { scores: Score[] }) {
  const view = selectView(scores);
  const series = groupScores(scores);
  const where = view === "central" ? "the coordinator's held-out data" : "the devices' held-out data";
  return (
    <Figure
      title="Accuracy by submodel"
      note={`On ${where}.`}
      empty="No round has been evaluated yet."
      numbers={{
        head: ["round", "submodel", "accuracy", "loss", "examples", "trained by updates"],
        rows: scores
          .filter((one) => one.view === view)
          .map((one) => [
            one.round,
            one.submodel,
            Number(ratio(one.accuracy)),
            one.loss === null ? null : Number(one.loss.toPrecision(4)),
            one.examples,
            one.trained_updates,
          ]),
      }}
    >
      <Lines label="Accuracy of each submodel by round" series={series} show={ratio} most={1} />
    </Figure>
  );
}
