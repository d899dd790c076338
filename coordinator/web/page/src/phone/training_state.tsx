// The state of the device in its run, in words and numbers.
import type { View } from "../agent/view";
import type { Dataset } from "../trainer/examples";
import type { Battery } from "./device";

const ACTIVITIES: Record<string, string> = {
  idle: "Waiting for a task",
  download: "Downloading the network",
  train: "Training",
  calibrate: "Measuring the network on your examples",
  evaluate: "Testing the network on your examples",
  send: "Sending the result",
};

export function TrainingState({ view, data, battery }: { view: View; data: Dataset; battery: Battery | null }) {
  const { card } = view;
  const title = describe(view);
  return (
    <section class="card">
      <h2 class="phase" aria-live="polite">{title}</h2>
      {view.over && <p>{view.over}</p>}
      {view.link === "down" && !view.over && (
        <p>The connection is lost{view.reason && ` (${view.reason})`}. The page connects again by itself, and goes on where it stopped.</p>
      )}
      {view.paused && !view.over && <p>Paused: {view.paused}.</p>}
      {title === ACTIVITIES[view.activity] && view.activity !== "idle" && <progress aria-label={title} max={1} value={view.done ?? undefined} />}
      <dl>
        <Row term="Run">{card ? `${card.run} (${card.model}, ${card.method})` : "unknown"}</Row>
        <Row term="Round">{view.round || "none yet"}</Row>
        <Row term="Loss">{Number.isFinite(view.loss) ? view.loss.toFixed(4) : "none yet"}</Row>
        <Row term="Trainings accepted">{view.finished}</Row>
        <Row term="Your examples">{`${data.train.y.length} to train, ${data.held.y.length} to test (${data.name})`}</Row>
        <Row term="Received">{formatBytes(view.received)}</Row>
        <Row term="Sent">{formatBytes(Object.values(view.sent).reduce((sum, one) => sum + one.bytes, 0))}</Row>
        {battery && <Row term="Battery">{`${Math.round(battery.level * 100)} %${battery.charging ? ", charging" : ""}`}</Row>}
      </dl>
      {view.losses.length > 1 && <Curve losses={view.losses} />}
    </section>
  );
}

function Row({ term, children }: { term: string; children: preact.ComponentChildren }) {
  return <div class="row"><dt>{term}</dt><dd>{children}</dd></div>;
}

function describe(view: View): string {
  if (view.over) return "Finished";
  if (view.link !== "up") return view.link === "down" ? "No connection" : "Connecting";
  if (view.paused) return "Paused";
  return ACTIVITIES[view.activity] ?? view.activity;
}

/** The losses of the last trainings, as a line. */
function Curve({ losses }: { losses: View["losses"] }) {
  const highest = Math.max(...losses.map((one) => one.loss), 1e-9);
  const points = losses.map((one, at) => `${(at / (losses.length - 1)) * 300},${78 - (one.loss / highest) * 72}`);
  const [first, last] = [losses[0], losses.at(-1)];
  const label = `Loss of your trainings: ${first?.loss.toFixed(3)} in round ${first?.round}, ${last?.loss.toFixed(3)} in round ${last?.round}`;
  return (
    <figure>
      <svg viewBox="0 0 300 80" role="img" aria-label={label} class="curve"><polyline points={points.join(" ")} /></svg>
      <figcaption class="quiet">{label}</figcaption>
    </figure>
  );
}

export function formatBytes(bytes: number): string {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 1e6 ? `${(bytes / 1000).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
