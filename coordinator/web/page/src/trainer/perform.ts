// Perform a task on the device's own data, and encode the update that it sends.
import { sha256 } from "@noble/hashes/sha2.js";
import { utf8ToBytes } from "@noble/hashes/utils.js";
import { decodeBlob, encodeBlob, type Tensors } from "../agent/blob";
import { nameSubmodel, type Task } from "../agent/messages";
import { type Dataset, type Examples, listLabels } from "./examples";
import { Graph, type GraphFile, Refused } from "./graph";
import { Network, type OnStep } from "./network";
import { OpenGraphs } from "./open_graphs";
import type { Tally } from "./scores";

/** What the trainer supports beyond what every one does; docs/protocol.md lists all. */
export const CAPABILITIES = ["adam", "adamw", "clip", "frozen", "graphs", "masked", "pull", "tracked"];

/** A task with all that it needs. weights: the encoded weights. */
export interface Job {
  task: Task;
  weights: Uint8Array;
  graphs: GraphFile[];
}

/** An encoded update. loss: NaN without a training. */
export interface Outcome {
  update: Uint8Array<ArrayBuffer>;
  loss: number;
  seconds: number;
}

interface Work {
  samples: number;
  steps: number;
  tensors: Tensors;
  notes: Record<string, unknown>;
}

/** A network with its graphs in memory, until `close`. */
interface Opened {
  network: Network;
  close(): Promise<void>;
}

/** A test, whose network has running statistics. opened: its network; null: not needed so far. */
interface Tested {
  job: Job;
  opened: Promise<Opened> | null;
}

let tested: Tested | null = null; // the last one
const graphs = new OpenGraphs(Graph.load);

/** Throws Refused with the reason for the coordinator, Malformed for weights that are not valid. */
export async function perform(job: Job, data: Dataset, onStep: OnStep): Promise<Outcome> {
  const { task } = job;
  refuseRecipe(task);
  const begun = performance.now();
  const opened = await openNetwork(job);
  const work = await WORKS[task.work](opened.network, task, data, onStep).catch(async (error) => {
    await opened.close();
    throw error;
  });
  if (task.work === "evaluate") await remember(job, Promise.resolve(opened));
  else await opened.close();
  const { tensors, ...counts } = work;
  const { run, round, attempt, agent, submodel, version } = task;
  const head = { run, round, attempt, agent, work: task.work, submodel, version, ...counts, tensors: {} };
  const loss = typeof work.notes.loss === "number" ? work.notes.loss : Number.NaN;
  return { update: encodeBlob(head, tensors), loss, seconds: (performance.now() - begun) / 1000 };
}

async function openNetwork({ task, weights, graphs: files }: Job): Promise<Opened> {
  const submodel = nameSubmodel(task.submodel, false);
  const taken: GraphFile[] = [];
  const close = async () => { for (const file of taken) await graphs.release(file, submodel); };
  try {
    const loaded = new Map<string, Graph>();
    for (const file of files) {
      loaded.set(file.kind, await graphs.take(file, submodel));
      taken.push(file);
    }
    return { network: new Network(loaded, decodeBlob(weights).tensors, task.recipe, makeSeed(task)), close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Predict with the network of a test that was performed before, perhaps by an earlier worker. */
export async function remember(job: Job, opened: Tested["opened"] = null): Promise<void> {
  const before = tested;
  tested = { job, opened };
  await before?.opened?.then((one) => one.close(), () => undefined);
}

/** Return the probability of each class for one example, by the network that was tested last. Throws
    Refused before the first test. */
export async function predict(x: Examples["x"], data: Dataset): Promise<number[]> {
  if (!tested) throw new Refused("The network was not tested on this device yet: try again after the next round.");
  const last = tested;
  last.opened ??= openNetwork(last.job).catch((error: unknown) => {
    last.opened = null; // so that the next attempt tries again
    throw error;
  });
  const { network } = await last.opened;
  return network.predict(x, data.outputs);
}

const WORKS = {
  async train(network: Network, task: Task, data: Dataset, onStep: OnStep): Promise<Work> {
    const { recipe } = task;
    const before = await scoreOwn(network, task, data);
    const begun = performance.now();
    let first = 0; // milliseconds of the first step, which also prepares the graph
    const done = await network.train(data, (step, steps, loss) => {
      first ||= performance.now() - begun;
      return onStep(step, steps, loss);
    });
    const ended = performance.now();
    const after = await scoreOwn(network, task, data);
    const notes: Record<string, unknown> = { loss: done.loss, seconds: (ended - begun) / 1000 };
    if (done.steps > 1) notes.step = (ended - begun - first) / (done.steps - 1) / 1000;
    if (before && after) notes.tallies = { before, after };
    if (recipe.labels) notes.labels = listLabels(data);
    return { samples: data.train.y.length, steps: done.steps, tensors: network.read(), notes };
  },

  async calibrate(network: Network, _: Task, data: Dataset): Promise<Work> {
    const { tensors, batches } = await network.calibrate(data.train);
    return { samples: data.train.y.length, steps: 0, tensors, notes: { batches } };
  },

  async evaluate(network: Network, task: Task, data: Dataset): Promise<Work> {
    const labels = task.submodel.network.objective === "class" ? listLabels(data) : [];
    const tallies = await network.evaluate(data.held, data.outputs, labels);
    return { samples: data.held.y.length, steps: 0, tensors: new Map(), notes: { tallies } };
  },
};

/** Score the device's held-out examples, if the recipe asks for it. */
async function scoreOwn(network: Network, task: Task, data: Dataset): Promise<Tally | undefined> {
  if (!task.recipe.scores || !data.held.y.length) return undefined;
  if (task.recipe.norm === "static" && network.hasStatistics) await network.calibrate(data.train);
  return (await network.evaluate(data.held, data.outputs, [])).all;
}

function refuseRecipe(task: Task): void {
  const { recipe } = task;
  const lacking = [
    recipe.augment.length ? "augment" : "",
    recipe.keep.length ? "keep" : "",
    recipe.variate,
  ].filter(Boolean);
  if (task.work === "train" && lacking.length) {
    throw new Refused(`round ${task.round}: the recipe requires ${lacking.join(", ")}, which a browser lacks`);
  }
  if (task.work === "train" && task.codec !== "raw") {
    throw new Refused(`round ${task.round}: expected the codec raw, found ${task.codec}`);
  }
}

/** The first 8 bytes of sha256("SEED/ROUND/AGENT"), big-endian, shifted right by one bit. */
function makeSeed(task: Task): bigint {
  const digest = sha256(utf8ToBytes(`${task.recipe.seed}/${task.round}/${task.agent}`));
  return new DataView(digest.buffer, digest.byteOffset).getBigUint64(0) >> 1n;
}
