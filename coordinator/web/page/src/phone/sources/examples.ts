// Examples that a person labelled.
import type { Dataset, Examples } from "../../trainer/examples";

const HELD = 5; // every fifth example is held out for testing

export interface Labelled {
  x: Examples["x"];
  y: number;
}

/** Return a data set of labelled examples, for a network of this shape. */
export function makeDataset(name: string, network: { inputs: number[]; outputs: number }, examples: Labelled[]): Dataset {
  const held = examples.filter((_, at) => at % HELD === HELD - 1);
  const train = examples.filter((_, at) => at % HELD !== HELD - 1);
  return { name, inputs: network.inputs, outputs: network.outputs, train: join(train), held: join(held) };
}

function join(examples: Labelled[]): Examples {
  const first = examples[0]?.x ?? new Uint8Array();
  const total = examples.length * first.length;
  const x = first instanceof Float32Array ? new Float32Array(total) : new Uint8Array(total);
  examples.forEach((one, at) => x.set(one.x, at * first.length));
  return { x, y: Int32Array.from(examples, (one) => one.y) };
}

/** Count examples by class, in words. unit: what one of them is called. */
export function countByClass(labels: number[], unit: string): string {
  const counts = new Map<number, number>();
  for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
  const parts = [...counts].sort(([a], [b]) => a - b);
  return `${parts.map(([label, count]) => `Class ${label}: ${count} ${unit}${count === 1 ? "" : "s"}`).join(". ")}.`;
}
