// Train, calibrate and evaluate a submodel with its graphs, as
// federated/device/trainers/onnx_network.py does.
import type { Tensors } from "../agent/blob";
import { Draws, MASK } from "../agent/philox";
import type { Recipe } from "../agent/messages";
import { type Dataset, type Examples, fill, listBatches, listLabels } from "./examples";
import { type Graph, makeFloats, multiply, Refused, type Values } from "./graph";
import { add, listViews, type Tally, tally } from "./scores";

const BETAS = { c1: 0.9, c2: 0.999 }; // of Adam
const SCALARS = ["lr", "momentum", "decay", "pull", "clip"] as const;

/** Called after each step with the steps taken, the steps planned, and the loss. */
export type OnStep = (step: number, steps: number, loss: number) => Promise<void> | void;
export interface Trained {
  loss: number;
  steps: number;
}

export class Network {
  private readonly weights: Values = {};
  private readonly draws: Draws;

  /** weights: as received; those that no graph takes are ignored. */
  constructor(
    private readonly graphs: Map<string, Graph>,
    weights: Tensors,
    private readonly recipe: Recipe,
    seed: bigint,
  ) {
    this.draws = new Draws(seed);
    for (const graph of graphs.values()) {
      for (const [name, shape] of graph.inputs) this.load(graph, name, shape, weights);
    }
  }

  /** Train on all training examples. Throws Refused if the loss is not finite. */
  async train(data: Dataset, onStep: OnStep): Promise<Trained> {
    const graph = this.find("step");
    const { recipe } = this;
    let values = this.begin(graph, data);
    const bounds = listBatches(data.train.y.length, recipe.batch);
    const planned = recipe.epochs * bounds.length;
    const steps = recipe.steps ? Math.min(recipe.steps, planned) : planned;
    let [done, loss] = [0, 0];
    for (let epoch = 0; done < steps; epoch++) {
      const order = this.draws.order(data.train.y.length, epoch);
      let [summed, seen] = [0, 0];
      for (const [first, last] of bounds.slice(0, steps - done)) {
        const given = fill(graph, data.train, order.subarray(first, last));
        const out = await graph.run({ ...values, ...given, ...this.drawMasks(graph, done) });
        const found = out.loss?.data[0] as number;
        done += 1;
        if (!Number.isFinite(found)) throw new Refused(`the loss is ${found} after ${done} of ${steps} steps`);
        values = { ...values, ...rename(out) };
        summed += found * (last - first);
        seen += last - first;
        await onStep(done, steps, found);
      }
      loss = summed / seen;
    }
    for (const name of Object.keys(this.weights)) this.weights[name] = values[name] ?? (this.weights[name] as never);
    return { loss, steps };
  }

  /** Measure the statistics of batch norm in one shuffled pass. Return the number of batches. */
  async calibrate(data: Examples): Promise<{ tensors: Tensors; batches: number }> {
    const graph = this.find("calibration");
    const order = this.draws.order(data.y.length, 0);
    const bounds = listBatches(data.y.length, this.recipe.batch);
    const sums = new Map<string, { shape: number[]; sum: Float64Array }>();
    for (const [first, last] of bounds) {
      const out = await graph.run({ ...this.weights, ...fill(graph, data, order.subarray(first, last)) });
      for (const [name, value] of Object.entries(out)) {
        const known = sums.get(name) ?? { shape: [...value.dims], sum: new Float64Array(value.size) };
        (value.data as Float32Array).forEach((one, at) => { known.sum[at] = (known.sum[at] as number) + one; });
        sums.set(name, known);
      }
    }
    const tensors: Tensors = new Map();
    for (const [name, { shape, sum }] of sums) {
      const mean = Float32Array.from(sum, (one) => one / bounds.length);
      this.weights[name] = makeFloats(mean, shape);
      tensors.set(name.slice(2), { dtype: "float32", shape, data: mean });
    }
    return { tensors, batches: bounds.length };
  }

  /** Score examples. Return sums by view. labels: classes that the device holds; empty: any. */
  async evaluate(data: Examples, classes: number, labels: number[]): Promise<Record<string, Tally>> {
    const graph = this.find("evaluation");
    const tallies: Record<string, Tally> = {};
    for (let start = 0; start < data.y.length; start += this.recipe.batch) {
      const chosen = Array.from({ length: Math.min(this.recipe.batch, data.y.length - start) }, (_, at) => start + at);
      const out = await graph.run({ ...this.weights, ...fill(graph, data, chosen) });
      const outs = Object.keys(out).map((_, exit) => {
        const values = out[`out.${exit}`]?.data as Float32Array | undefined;
        if (!values || values.length < chosen.length * classes) throw new Refused(`${graph.title}: its outputs do not fit the network`);
        return values.slice(0, chosen.length * classes);
      });
      const truth = chosen.map((example) => data.y[example] as number);
      for (const [view, logits] of Object.entries(listViews(outs, classes, labels))) {
        tallies[view] = add(tallies[view], tally(logits, truth, classes, this.recipe.per_class));
      }
    }
    return tallies;
  }

  /** Return the probability of each class for one example. */
  async predict(x: Examples["x"], classes: number): Promise<number[]> {
    const graph = this.find("evaluation");
    const out = await graph.run({ ...this.weights, ...fill(graph, { x, y: Int32Array.of(0) }, [0]) });
    const logits = [...(out[`out.${Object.keys(out).length - 1}`]?.data as Float32Array).slice(0, classes)];
    const most = Math.max(...logits);
    const powers = logits.map((one) => Math.exp(one - most));
    const sum = powers.reduce((all, one) => all + one, 0);
    return powers.map((one) => one / sum);
  }

  /** Return the parameters, and the statistics if the recipe tracks them. */
  read(): Tensors {
    const kinds = this.recipe.norm === "tracked" ? ["p", "b"] : ["p"];
    const out: Tensors = new Map();
    for (const [name, value] of Object.entries(this.weights)) {
      if (!kinds.includes(name.slice(0, 1))) continue;
      out.set(name.slice(2), { dtype: "float32", shape: [...value.dims], data: value.data as Float32Array });
    }
    return out;
  }

  /** Whether the network has batch norm. */
  get hasStatistics(): boolean {
    return [...this.graphs.values()].some((graph) => [...graph.inputs.keys()].some((name) => name.startsWith("b.")));
  }

  private load(graph: Graph, name: string, shape: number[], weights: Tensors): void {
    if (!/^[pb]\./.test(name)) return;
    const tensor = weights.get(name.slice(2));
    if (!tensor) return; // `run` names what is missing
    if (tensor.dtype !== "float32" || tensor.shape.join() !== shape.join()) {
      throw new Refused(`${graph.title}: expected ${name.slice(2)} of shape [${shape}], found [${tensor.shape}]`);
    }
    this.weights[name] = makeFloats(tensor.data as Float32Array, shape);
  }

  private find(kind: string): Graph {
    const graph = this.graphs.get(kind);
    if (!graph) throw new Refused(`the task names no graph of the ${kind}`);
    return graph;
  }

  /** Return the inputs of a first step, except its examples. */
  private begin(graph: Graph, data: Dataset): Values {
    const values: Values = { ...this.weights };
    for (const name of graph.inputs.keys()) {
      const scalar = SCALARS.find((one) => one === name);
      if (/^[mv]\./.test(name)) values[name] = graph.zeros(name);
      else if (scalar) values[name] = makeScalar(this.recipe[scalar]);
      else if (name.startsWith("start.")) values[name] = this.weights[`p.${name.slice(6)}`] as never;
      else if (name.startsWith("option.")) values[name] = makeScalar(this.readOption(name.slice(7)));
      else if (name === "classes") values[name] = markClasses(data);
    }
    return values;
  }

  private readOption(name: string): number {
    const value = this.recipe.options[name];
    if (typeof value !== "number") throw new Refused(`the training graph reads the option '${name}', which the recipe lacks`);
    return value;
  }

  /** Return the inputs of a step, counted from 0, that depend on its number. */
  private drawMasks(graph: Graph, step: number): Values {
    const values: Values = {};
    const draws = JSON.parse(graph.properties.get("draws") ?? "[]") as [number[], number][];
    draws.forEach(([shape, keep], number) => {
      values[`draw.${number}`] = makeFloats(this.draws.ones(keep, multiply(shape), MASK, step, number), shape);
    });
    for (const [name, beta] of Object.entries(BETAS)) values[name] = makeScalar(1 - beta ** (step + 1));
    return values;
  }
}

function markClasses(data: Dataset): ReturnType<typeof makeFloats> {
  const held = new Set(listLabels(data));
  const marks = Float32Array.from({ length: data.outputs }, (_, label) => Number(held.has(label)));
  return makeFloats(marks, [data.outputs]);
}

function makeScalar(value: number): ReturnType<typeof makeFloats> {
  return makeFloats(Float32Array.of(value), []);
}

/** Return the outputs `next.NAME` of a step under the names of its inputs. */
function rename(out: Values): Values {
  return Object.fromEntries(
    Object.entries(out).filter(([name]) => name.startsWith("next.")).map(([name, value]) => [name.slice(5), value]),
  );
}
