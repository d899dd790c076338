// Try the network on a picture that stays in the browser.
import { useState } from "preact/hooks";
import type { Card } from "../agent/messages";
import { guessWhite, readPicture, takesPictures } from "./pictures";
import type { TrainingWorker } from "./worker_client";

export function TryOut({ card, worker }: { card: Card; worker: TrainingWorker }) {
  const [answer, setAnswer] = useState("");
  const [inverted, setInverted] = useState(false);
  const { network } = card;
  if (!network || !takesPictures(network)) return null;
  const look = async (file: File | undefined) => {
    if (!file) return;
    setAnswer("Looking …");
    try {
      const x = await readPicture(file, file.name, network.inputs, { inverted, white: guessWhite(network) });
      setAnswer(describe(await worker.predict(x)));
    } catch (error) {
      setAnswer(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <section class="card">
      <h2>Try the network</h2>
      <p class="quiet">It says what a picture shows. The picture stays in this browser.</p>
      <label class="box">
        <input type="checkbox" checked={inverted} onChange={(event) => setInverted(event.currentTarget.checked)} />
        Dark on light, such as a pen on paper
      </label>
      <label>
        Picture to try
        <input type="file" accept="image/*" onChange={(event) => look(event.currentTarget.files?.[0])} />
      </label>
      <p role="status">{answer}</p>
    </section>
  );
}

/** Name the three classes with the highest probabilities. */
function describe(chances: number[]): string {
  const order = [...chances.keys()].sort((a, b) => (chances[b] as number) - (chances[a] as number));
  const [first, ...others] = order.slice(0, 3).map((label) => `${label} (${Math.round(100 * (chances[label] as number))} %)`);
  return `Class ${first}; otherwise ${others.join(" or ")}.`;
}
