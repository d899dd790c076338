// Record motion by activity, as examples to train on.
import { useState } from "preact/hooks";
import type { Card } from "../../agent/messages";
import type { Dataset } from "../../trainer/examples";
import { ClassField, isClass } from "./class_field";
import { countByClass, type Labelled, makeDataset } from "./examples";
import { hasMotion, watchMotion } from "./motion";
import { useSensor } from "./sensor";

interface MotionChoice {
  network: NonNullable<Card["network"]>;
  busy: boolean;
  onMake(make: () => Promise<Dataset>): void;
}

export function MotionChoice({ network, busy, onMake }: MotionChoice) {
  const [label, setLabel] = useState(0);
  const [recorded, setRecorded] = useState<Labelled[]>([]);
  const { on, problem, toggle, stop } = useSensor((signal) =>
    watchMotion(network.inputs, signal, (x) => setRecorded((known) => [...known, { x, y: label }])),
  );
  const train = () => {
    stop();
    onMake(async () => makeDataset("motion", network, recorded));
  };
  return (
    <>
      <h3>Your own motion</h3>
      <p class="quiet">
        The motion sensors while you do something, in pieces of {network.inputs[1]} samples, which never leave the browser. Say what you do:
        one of {network.outputs} classes, counted from 0. Record each class for a minute or more.
      </p>
      {!hasMotion() && <p>The browser gives a page the motion sensors only over HTTPS.</p>}
      <ClassField label={label} count={network.outputs} disabled={on} onChange={setLabel} />
      <button type="button" aria-pressed={on} disabled={!hasMotion() || busy || !isClass(label, network.outputs)} onClick={toggle}>
        {on ? "Stop recording" : "Record this class"}
      </button>
      {problem && <p class="alert" role="alert">{problem}</p>}
      {recorded.length > 0 && <p>{countByClass(recorded.map((one) => one.y), "piece")}</p>}
      <button type="button" disabled={busy || recorded.length < 2} onClick={train}>Train on this motion</button>
      {recorded.length > 0 && <button type="button" disabled={busy || on} onClick={() => setRecorded([])}>Remove all recordings</button>}
    </>
  );
}
