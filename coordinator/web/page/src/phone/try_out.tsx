// Try the network on a picture, on what the camera sees, or on what the device feels. All stay in the
// browser.
import { useState } from "preact/hooks";
import type { Card } from "../agent/messages";
import { type Answer, describeChances, LiveAnswer } from "./live_answer";
import { Camera } from "./sources/camera";
import { hasMotion, takesMotion, watchMotion } from "./sources/motion";
import { guessWhite, readPicture, takesPictures } from "./sources/pictures";
import { useSensor } from "./sources/sensor";
import type { TrainingWorker } from "./worker_client";

const NOTHING: Answer = { text: "", name: "" };

interface Trial {
  network: NonNullable<Card["network"]>;
  worker: TrainingWorker;
}

export function TryOut({ card, worker }: { card: Card; worker: TrainingWorker }) {
  const { network } = card;
  if (network && takesPictures(network)) return <PictureTrial network={network} worker={worker} />;
  if (network && takesMotion(network)) return <MotionTrial network={network} worker={worker} />;
  return null;
}

function PictureTrial({ network, worker }: Trial) {
  const [answer, setAnswer] = useState(""); // about a file
  const [live, setLive] = useState(NOTHING); // about the camera's picture
  const [inverted, setInverted] = useState(false);
  const look = (source: ImageBitmapSource, name: string) =>
    ask(worker, () => readPicture(source, name, network.inputs, { inverted, white: guessWhite(network) }));
  const choose = (file: File | undefined) => {
    if (!file) return;
    setAnswer("Looking …");
    void look(file, file.name).then(({ text, name }) => setAnswer(name ? `${file.name}: ${text}` : text));
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
      <p role="status">{answer}</p>
      <Camera onPicture={(video) => look(video, "the camera's picture").then(setLive)} />
      <LiveAnswer {...live} />
    </section>
  );
}

function MotionTrial({ network, worker }: Trial) {
  const [live, setLive] = useState(NOTHING);
  const { on, problem, toggle } = useSensor((signal) =>
    watchMotion(network.inputs, signal, (x) => void ask(worker, async () => x).then(setLive)),
  );
  return (
    <section class="card">
      <h2>Try the network</h2>
      <p class="quiet">It says what you do, from the motion sensors. What they measure stays in this browser.</p>
      <button type="button" aria-pressed={on} disabled={!hasMotion()} onClick={toggle}>
        {on ? "Stop the motion sensors" : "Use the motion sensors"}
      </button>
      {problem && <p class="alert" role="alert">{problem}</p>}
      <LiveAnswer {...live} />
    </section>
  );
}

/** Return what the network says about an example, or what went wrong. */
async function ask(worker: TrainingWorker, read: () => Promise<Uint8Array | Float32Array>): Promise<Answer> {
  try {
    return describeChances(await worker.predict(await read()));
  } catch (error) {
    return { text: error instanceof Error ? error.message : String(error), name: "" };
  }
}
