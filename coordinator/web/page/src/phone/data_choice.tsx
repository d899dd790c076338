// Choose the examples that this device trains on.
import { useState } from "preact/hooks";
import type { Card } from "../agent/messages";
import type { Dataset } from "../trainer/examples";
import { decodeDataset } from "../trainer/practice_data";
import { guessWhite, type Labelled, makeDataset, takesPictures } from "./pictures";

interface Choice {
  card: Card;
  name: string;
  onChoose(data: Dataset): void;
}

export function DataChoice({ card, name, onChoose }: Choice) {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const attempt = async (make: () => Promise<Dataset>) => {
    setBusy(true);
    setProblem("");
    try {
      onChoose(await make());
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
    setBusy(false);
  };
  const { network } = card;
  return (
    <section class="card">
      <h2>Choose your data</h2>
      <p>The run {card.run} trains {card.model} with the method {card.method}. Your examples stay on this device.</p>
      {problem && <p class="alert" role="alert">{problem}</p>}
      <h3>Handwritten digits</h3>
      <p class="quiet">Practice data that the server gives to this device: a part of a public collection.</p>
      <button type="button" disabled={busy} onClick={() => attempt(() => fetchDigits(name))}>Train on digits</button>
      {network && takesPictures(network) && <Pictures network={network} busy={busy} onMake={attempt} />}
    </section>
  );
}

interface PictureChoice {
  network: NonNullable<Card["network"]>;
  busy: boolean;
  onMake(make: () => Promise<Dataset>): void;
}

/** Pictures of the person, a class at a time. */
function Pictures({ network, busy, onMake }: PictureChoice) {
  const [label, setLabel] = useState(0);
  const [chosen, setChosen] = useState<Labelled[]>([]);
  const [inverted, setInverted] = useState(false);
  const add = (files: FileList | null) => setChosen([...chosen, ...[...(files ?? [])].map((file) => ({ file, label }))]);
  const counts = new Map<number, number>();
  for (const one of chosen) counts.set(one.label, (counts.get(one.label) ?? 0) + 1);
  return (
    <>
      <h3>Your own pictures</h3>
      <p class="quiet">
        They are scaled to {network.inputs[2]} x {network.inputs[1]} points in the browser, and never leave it. Say what they show:
        one of {network.outputs} classes, counted from 0.
      </p>
      <label>
        Class
        <input type="number" min={0} max={network.outputs - 1} value={label} onInput={(event) => setLabel(event.currentTarget.valueAsNumber || 0)} />
      </label>
      <label>
        Pictures of this class
        <input type="file" accept="image/*" multiple disabled={busy || label < 0 || label >= network.outputs} onChange={(event) => { add(event.currentTarget.files); event.currentTarget.value = ""; }} />
      </label>
      <label class="box">
        <input type="checkbox" checked={inverted} onChange={(event) => setInverted(event.currentTarget.checked)} />
        Dark on light, such as a pen on paper
      </label>
      {chosen.length > 0 && (
        <p role="status">{[...counts].map(([one, count]) => `Class ${one}: ${count} pictures`).join(". ")}.</p>
      )}
      <button
        type="button"
        disabled={busy || chosen.length < 2}
        onClick={() => onMake(() => makeDataset(chosen, network, { inverted, white: guessWhite(network) }))}
      >
        Train on these pictures
      </button>
      {chosen.length > 0 && <button type="button" disabled={busy} onClick={() => setChosen([])}>Remove all pictures</button>}
    </>
  );
}

/** Return this device's part of the digits. `shard=I/N` in the page's address chooses another. */
async function fetchDigits(name: string): Promise<Dataset> {
  const query = new URLSearchParams({ agent: name });
  const shard = new URLSearchParams(location.search).get("shard");
  if (shard) query.set("shard", shard);
  const answer = await fetch(`digits?${query}`).catch(() => {
    throw new Error("The server does not answer. Check the connection of this device, and try again.");
  });
  if (!answer.ok) {
    const { error } = (await answer.json().catch(() => ({}))) as { error?: string };
    throw new Error(error ?? `The server has no digits (status ${answer.status}).`);
  }
  return decodeDataset(new Uint8Array(await answer.arrayBuffer()));
}
