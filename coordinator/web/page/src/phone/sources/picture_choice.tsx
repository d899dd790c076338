// Choose pictures by class, as examples to train on.
import { useState } from "preact/hooks";
import type { Card } from "../../agent/messages";
import type { Dataset } from "../../trainer/examples";
import { countByClass, makeDataset } from "./examples";
import { guessWhite, readPicture } from "./pictures";

interface PictureChoice {
  network: NonNullable<Card["network"]>;
  busy: boolean;
  onMake(make: () => Promise<Dataset>): void;
}

interface Chosen {
  file: File;
  label: number;
}

export function PictureChoice({ network, busy, onMake }: PictureChoice) {
  const [label, setLabel] = useState(0);
  const [chosen, setChosen] = useState<Chosen[]>([]);
  const [inverted, setInverted] = useState(false);
  const add = (files: FileList | null) => setChosen([...chosen, ...[...(files ?? [])].map((file) => ({ file, label }))]);
  const read = async ({ file, label }: Chosen) => ({
    x: await readPicture(file, file.name, network.inputs, { inverted, white: guessWhite(network) }),
    y: label,
  });
  const train = async () => {
    const examples = [];
    for (const one of chosen) examples.push(await read(one)); // one at a time, since pictures are large
    return makeDataset("pictures", network, examples);
  };
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
      {chosen.length > 0 && <p role="status">{countByClass(chosen.map((one) => one.label), "picture")}</p>}
      <button type="button" disabled={busy || chosen.length < 2} onClick={() => onMake(train)}>Train on these pictures</button>
      {chosen.length > 0 && <button type="button" disabled={busy} onClick={() => setChosen([])}>Remove all pictures</button>}
    </>
  );
}
