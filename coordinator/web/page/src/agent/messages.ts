// The messages of the protocol (docs/protocol.md) that a device receives, checked, and the fields of
// those that it sends.
import * as v from "valibot";

const name = v.pipe(v.string(), v.regex(/^(?!\.\.?$)[A-Za-z0-9_.-]{1,64}$/));
const transfer = v.pipe(v.string(), v.regex(/^(?!\.\.?$)[A-Za-z0-9_.-]{1,225}$/));
const digest = v.pipe(v.string(), v.regex(/^[0-9a-f]{64}$/));
const natural = v.pipe(v.number(), v.safeInteger(), v.minValue(0));
const words = v.pipe(v.string(), v.maxLength(1000));
const bytes = v.custom<Uint8Array>((given) => given instanceof Uint8Array, "expected bytes");
const url = v.pipe(v.string(), v.maxLength(4096));
const work = v.picklist(["calibrate", "evaluate", "train"]);
const floats = v.array(v.number());

const network = v.object({
  family: v.string(),
  preset: v.string(),
  inputs: v.array(natural),
  outputs: natural,
  mean: v.optional(floats, [0]),
  std: v.optional(floats, [1]),
  objective: v.optional(v.picklist(["class", "masked", "next", "value"]), "class"),
  shift: v.optional(floats, []),
  scale: v.optional(floats, []),
  label: v.optional(v.string(), ""),
});

const submodel = v.object({
  network,
  width: v.pipe(v.number(), v.gtValue(0), v.maxValue(1)),
  mask: v.array(v.array(v.picklist([0, 1]))),
  features: v.optional(v.array(v.string()), []),
  branches: v.optional(natural, 1),
  owner: v.optional(v.string(), ""),
});

const recipe = v.object({
  epochs: v.optional(natural, 1),
  steps: v.optional(natural, 0),
  batch: v.optional(v.pipe(natural, v.minValue(1)), 32),
  optimiser: v.optional(v.picklist(["adam", "adamw", "sgd"]), "sgd"),
  lr: v.optional(v.number(), 0.05),
  momentum: v.optional(v.number(), 0.9),
  decay: v.optional(v.number(), 0),
  clip: v.optional(v.number(), 0),
  masked: v.optional(v.boolean(), false),
  labels: v.optional(v.boolean(), false),
  norm: v.optional(v.picklist(["static", "tracked"]), "static"),
  augment: v.optional(v.array(v.string()), []),
  scores: v.optional(v.boolean(), false),
  per_class: v.optional(v.boolean(), false),
  pull: v.optional(v.number(), 0),
  variate: v.optional(v.string(), ""),
  keep: v.optional(v.array(v.string()), []),
  frozen: v.optional(v.array(v.string()), []),
  hook: v.optional(v.string(), ""),
  options: v.optional(v.record(v.string(), v.unknown()), {}),
  seed: v.optional(v.pipe(v.number(), v.safeInteger()), 0),
});

const MAX_GRAPH = 16 * 2 ** 20; // bytes
const MAX_WEIGHTS = 512 * 2 ** 20; // bytes that a browser can hold
const graph = v.object({
  kind: v.picklist(["calibration", "evaluation", "step"]),
  digest,
  size: v.pipe(natural, v.maxValue(MAX_GRAPH, "a training graph of more than 16 MiB")),
});

const task = v.object({
  run: name,
  round: natural,
  attempt: natural,
  agent: name,
  work,
  submodel,
  version: name,
  digest,
  size: v.pipe(natural, v.maxValue(MAX_WEIGHTS, "weights of more than 512 MiB")),
  recipe,
  deadline: v.pipe(v.number(), v.gtValue(0)),
  lease: v.optional(v.number(), 0),
  slot: v.optional(name, "0"),
  codec: v.optional(v.string(), "raw"),
  graphs: v.optional(v.pipe(v.array(graph), v.maxLength(3)), []),
});

const card = v.object({
  run: name,
  method: v.string(),
  model: v.string(),
  network: v.nullish(network, null),
  session: name,
  codec: v.optional(v.string(), "raw"),
  heartbeat: v.optional(v.pipe(v.number(), v.finite(), v.minValue(0)), 0),
});

const manifest = v.object({
  transfer,
  size: natural,
  chunk: v.pipe(natural, v.minValue(1024), v.maxValue(2 ** 26)),
  sha256: digest,
  url: v.optional(url, ""),
});

const part = v.object({ start: natural, size: v.pipe(natural, v.minValue(1)), url });

export const SCHEMAS = {
  abort: v.object({ round: natural, attempt: natural, reason: words }),
  chunk: v.object({ transfer, index: natural, total: natural, size: natural, crc32: natural, data: bytes }),
  goodbye: v.object({ reason: words }),
  grant: v.object({
    transfer,
    have: bytes,
    open: v.boolean(),
    url: v.optional(url, ""),
    parts: v.optional(v.pipe(v.array(part), v.maxLength(16)), []),
  }),
  manifest,
  receipt: v.object({ transfer, accepted: v.boolean(), reason: v.optional(words, "") }),
  refusal: v.object({ reason: words, about: v.optional(words, "") }),
  run: card,
  status: v.object({ agent: name, session: name, online: v.boolean(), paused: v.optional(words, "") }),
  task,
} as const;

type Schemas = typeof SCHEMAS;
export type Kind = keyof Schemas;
export type Body<K extends Kind> = v.InferOutput<Schemas[K]>;
/** A message that was checked. epoch: of the coordinator that sent it; 0: none. */
export type Message = { [K in Kind]: { kind: K; body: Body<K>; epoch: number } }[Kind];
export type Task = Body<"task">;
export type Card = Body<"run">;
export type Chunk = Body<"chunk">;
export type Manifest = Omit<Body<"manifest">, "url">;
export type Part = Body<"grant">["parts"][number];
export type Submodel = Task["submodel"];
export type Recipe = Task["recipe"];

/** Sizes and moments of a device's data, without any example. */
export interface DataCard {
  name: string;
  inputs: number[];
  dtype: string;
  outputs: number;
  examples: number;
  held_out: number;
  mean: number[];
  std: number[];
  target: "class";
}

/** Seconds until the next heartbeat. lease: of the task; 0: none. least: of the run's card.
 * changed: whether the activity is another one than in the last heartbeat. */
export function heartbeatInterval(lease: number, least: number, changed: boolean): number {
  if (changed) return least / 5;
  return Math.max(least, lease ? Math.min(15, Math.max(3, lease / 5)) : 15);
}

/** Return the reason of a goodbye as a sentence. */
export function explainGoodbye({ reason }: Body<"goodbye">): string {
  const words = reason || "the run is over";
  return `${words[0]?.toUpperCase()}${words.slice(1).replace(/\.$/, "")}.`;
}

/** Name of the transfer of a task's update. */
export function nameTransfer(task: Task): string {
  const submodel = nameSubmodel(task.submodel).replaceAll("@", "_");
  return `${task.round}-${task.attempt}-${task.work}-${submodel}`;
}

export function nameSubmodel(submodel: Submodel, owned = true): string {
  const { mask } = submodel;
  const parts = submodel.network.label ? [submodel.network.label] : [];
  parts.push(`w${formatWidth(submodel.width)}`);
  if (mask.length) {
    const gaps = mask.some((section) => /01/.test(section.join("")));
    const counts = mask.map((section) => section.filter(Boolean).length);
    parts.push(gaps ? `b${mask.map((one) => one.join("")).join(".")}` : `d${counts.join(".")}`);
  }
  parts.push(...submodel.features);
  if (submodel.branches > 1) parts.push(`x${submodel.branches}`);
  return parts.join("-") + (owned && submodel.owner ? `@${submodel.owner}` : "");
}

/** Write a number as C's %g does. */
function formatWidth(width: number): string {
  const short = Number(width.toPrecision(6));
  if (short >= 1e-4) return String(short);
  return short.toExponential().replace(/e-(\d)$/, "e-0$1");
}
