// Choose the examples that this device trains on.
import { useState } from "preact/hooks";
import type { Card } from "../agent/messages";
import type { Dataset } from "../trainer/examples";
import { decodeDataset } from "../trainer/practice_data";
import { takesMotion } from "./sources/motion";
import { MotionChoice } from "./sources/motion_choice";
import { PictureChoice } from "./sources/picture_choice";
import { takesPictures } from "./sources/pictures";

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
  const [pictures, motion] = [network && takesPictures(network), network && takesMotion(network)];
  return (
    <section class="card">
      <h2>Choose your data</h2>
      <p>The run {card.run} trains {card.model} with the method {card.method}. Your examples stay on this device.</p>
      {problem && <p class="alert" role="alert">{problem}</p>}
      {(!network || pictures) && (
        <>
          <h3>Handwritten digits</h3>
          <p class="quiet">Practice data that the server gives to this device: a part of a public collection.</p>
          <button type="button" disabled={busy} onClick={() => attempt(() => fetchDigits(name))}>Train on digits</button>
        </>
      )}
      {network && pictures && <PictureChoice network={network} busy={busy} onMake={attempt} />}
      {network && motion && <MotionChoice network={network} busy={busy} onMake={attempt} />}
      {network && !pictures && !motion && (
        <p class="alert">It learns from examples of shape {network.inputs.join(" x ")}, which this page cannot make.</p>
      )}
    </section>
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
