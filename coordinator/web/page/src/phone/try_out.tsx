// Try the network on a picture, or on what the camera sees. Both stay in the browser.
import { useState } from "preact/hooks";
import type { Card } from "../agent/messages";
import { Camera } from "./camera";
import { guessWhite, readPicture, takesPictures } from "./pictures";
import type { TrainingWorker } from "./worker_client";

export function TryOut({ card, worker }: { card: Card; worker: TrainingWorker }) {
  const [answer, setAnswer] = useState("");
  const [inverted, setInverted] = useState(false);
  const { network } = card;
  if (!network || !takesPictures(network)) return null;
  const look = async (source: ImageBitmapSource, name: string, heading = "") => {
    try {
      const x = await readPicture(source, name, network.inputs, { inverted, white: guessWhite(network) });
      setAnswer(heading + describe(await worker.predict(x)));
    } catch (error) {
      setAnswer(error instanceof Error ? error.message : String(error));
    }
  };
  const choose = (file: File | undefined) => {
    if (!file) return;
    setAnswer("Looking …");
    void look(file, file.name, `${file.name}: `);
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
        <input type="file" accept="image/*" onChange={(event) => choose(event.currentTarget.files?.[0])} />
      </label>
      <Camera onPicture={(video) => look(video, "the camera's picture")} />
      <p role="status">{answer}</p>
    </section>
  );
}

/** Name the three classes with the highest probabilities. */
function describe(chances: number[]): string {
  const order = [...chances.keys()].sort((a, b) => (chances[b] as number) - (chances[a] as number));
  const [first, ...others] = order.slice(0, 3).map((label) => `${label} (${Math.round(100 * (chances[label] as number))} %)`);
  return `class ${first}; otherwise ${others.join(" or ")}.`;
}
