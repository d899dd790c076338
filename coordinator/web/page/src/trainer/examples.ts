// The device's own examples, and the inputs of graphs that are made of them.
import * as ort from "onnxruntime-web/wasm";
import type { DataCard } from "../agent/messages";
import { type Graph, makeFloats, multiply, Refused, type Values } from "./graph";

/** Examples of one kind. x: [n, *inputs], raw; y: their classes. */
export interface Examples {
  x: Uint8Array | Float32Array;
  y: Int32Array;
}

/** All examples of a device. */
export interface Dataset {
  name: string;
  inputs: number[];
  outputs: number;
  train: Examples;
  held: Examples;
}

/** The classes of the training examples, ascending. */
export function listLabels(data: Dataset): number[] {
  return [...new Set(data.train.y)].sort((a, b) => a - b);
}

/** Describe a data set by sizes and by the moments of each channel; it contains no example. */
export function describeData(data: Dataset): DataCard {
  const { x, y } = data.train;
  const [channels = 1, ...rest] = data.inputs;
  const area = multiply(rest);
  const sums = new Float64Array(channels);
  const squares = new Float64Array(channels);
  x.forEach((value, at) => {
    const channel = Math.floor(at / area) % channels;
    sums[channel] = (sums[channel] as number) + value;
    squares[channel] = (squares[channel] as number) + value * value;
  });
  const count = y.length * area;
  const mean = [...sums].map((sum) => sum / count);
  // float64 holds the sums of squares of bytes exactly, and those of a sensor to 1e-12
  const std = [...squares].map((sum, at) => {
    const found = Math.sqrt(Math.max(0, sum / count - (mean[at] as number) ** 2));
    return found > 1e-6 * Math.abs(mean[at] as number) ? found : 1;
  });
  return {
    name: data.name,
    inputs: data.inputs,
    dtype: x instanceof Float32Array ? "float32" : "uint8",
    outputs: data.outputs,
    examples: y.length,
    held_out: data.held.y.length,
    mean,
    std,
    target: "class",
  };
}

/** Return (start, end) of each batch. A last batch of one example joins the one before it, since
    batch norm needs two. */
export function listBatches(examples: number, batch: number): [number, number][] {
  const starts: number[] = [];
  for (let at = 0; at < examples; at += batch) starts.push(at);
  if (starts.length > 1 && examples - (starts.at(-1) as number) === 1) starts.pop();
  return starts.map((start, at) => [start, starts[at + 1] ?? examples]);
}

/** Return the inputs x, y and weights of a graph, filled up with copies of the first example, whose
    weight is 0. Throws Refused if there are more examples than the graph takes. */
export function fill(graph: Graph, data: Examples, chosen: ArrayLike<number>): Values {
  const [slots, count] = [graph.batch, chosen.length];
  if (count > slots) throw new Refused(`${graph.title}: expected at most ${slots} examples per step, found ${count}`);
  const shape = graph.inputs.get("x") as number[];
  const size = multiply(shape.slice(1));
  const x = new Float32Array(slots * size);
  const y = new Int32Array(slots);
  for (let slot = 0; slot < slots; slot++) {
    const example = chosen[slot < count ? slot : 0] as number;
    x.set(data.x.subarray(example * size, (example + 1) * size), slot * size);
    y[slot] = data.y[example] as number;
  }
  const weights = Float32Array.from({ length: slots }, (_, slot) => Number(slot < count));
  return {
    x: makeFloats(x, shape),
    y: new ort.Tensor("int32", y, [slots]),
    weights: makeFloats(weights, [slots]),
  };
}
