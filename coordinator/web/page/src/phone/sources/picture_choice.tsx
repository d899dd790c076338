// Choose pictures by class, as examples to train on.
import { useState } from "preact/hooks";
import type { Card } from "../../agent/messages";
import type { Dataset } from "../../trainer/examples";
import { ClassField, isClass } from "./class_field";
import { countByClass, type Labelled, makeDataset } from "./examples";
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
    const examples: Labelled[] = [];
    const failed = new Map<Chosen, string>(); // with the reasons
    for (const one of chosen) { // one at a time, since pictures are large
      await read(one).then((example) => examples.push(example), (error) => failed.set(one, String(error.message)));
    }
    if (!failed.size) return makeDataset("pictures", network, examples);
    setChosen(chosen.filter((one) => !failed.has(one)));
    const [reason] = failed.values();
    throw new Error(`${reason} ${failed.size === 1 ? "It was" : `It and ${failed.size - 1} more were`} left out.`);
  };
  return (
    <>
      <h3>Your own pictures</h3>
      <p class="quiet">
        They are scaled to {network.inputs[2]} x {network.inputs[1]} points in the browser, and never leave it. Say what they show:
        one of {network.outputs} classes, counted from 0.
      </p>
      <ClassField label={label} count={network.outputs} onChange={setLabel} />
      <label>
        Pictures of this class
        <input type="file" accept="image/*" multiple disabled={busy || !isClass(label, network.outputs)} onChange={(event) => { add(event.currentTarget.files); event.currentTarget.value = ""; }} />
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
