// What left the device.
import type { View } from "../agent/view";
import { formatBytes } from "./training_state";

const MEANINGS: Record<string, string> = {
  profile: "what the page measured of this device, and sizes and averages of your data, but no example",
  status: "that this device takes part",
  heartbeat: "what it does now",
  offer: "that a result is ready",
  chunk: "results: the weights that it trained, or sums of scores",
  upload: "results, as in chunks, over HTTP to the server or the store of the run",
  failure: "that a task failed, and why",
};

export function SentTable({ view }: { view: View }) {
  const kinds = Object.entries(view.sent);
  return (
    <section class="card">
      <h2>What leaves this device</h2>
      <p>These messages to the coordinator of the run, a test of the connection's speed with random bytes, and the names of what the page downloads. Your examples stay in this browser.</p>
      {kinds.map(([kind, { count, bytes, last }]) => (
        <details key={kind}>
          <summary>{`${kind}: ${count} ${count === 1 ? "message" : "messages"}, ${formatBytes(bytes)}`}</summary>
          <p class="quiet">{MEANINGS[kind] ?? ""}</p>
          {last !== null && (
            <>
              <p class="quiet">The last one:</p>
              <pre tabindex={0} aria-label={`The last ${kind}`}>{JSON.stringify(last, null, 1)}</pre>
            </>
          )}
        </details>
      ))}
    </section>
  );
}
