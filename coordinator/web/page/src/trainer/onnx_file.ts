// Read from the protobuf encoding of an ONNX file what ONNX Runtime does not tell: its properties,
// its operators, and whether it reads numbers from other files.

type Field = [number: number, value: Uint8Array | number];

// message -> number of a field -> the message in it; only those on the way to nodes and tensors
const MESSAGES: Record<string, Record<number, string>> = {
  model: { 7: "graph", 14: "property", 20: "training", 25: "function" },
  training: { 1: "graph", 2: "graph" },
  graph: { 1: "node", 5: "tensor", 15: "sparse" },
  node: { 5: "attribute" },
  function: { 7: "node", 11: "attribute" },
  attribute: { 5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse" },
  sparse: { 1: "tensor", 2: "tensor" },
};
const EXTERNAL_DATA = 13;
const DATA_LOCATION = 14;
// from the fifth byte on: a graph in ONNX Runtime's own format, which may be protobuf, too
const RUNTIME_FORMAT = "ORTM";

/** What a file contains. operators: DOMAIN:NAME, ONNX's own without a domain. */
export interface OnnxContents {
  properties: Map<string, string>;
  operators: Set<string>;
  external: boolean;
}

/** Throws an Error for bytes that are not protobuf, or that the runtime would read as another format. */
export function readOnnx(data: Uint8Array): OnnxContents {
  if (decodeText(data.subarray(4, 8)) === RUNTIME_FORMAT) throw new Error("it is a graph in ONNX Runtime's own format");
  const found: OnnxContents = { properties: new Map(), operators: new Set(), external: false };
  const waiting: [string, Uint8Array][] = [["model", data]];
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const [kind, bytes] = next;
    const fields = [...readFields(bytes)];
    const texts = (number: number) =>
      fields.filter(([n, value]) => n === number && typeof value !== "number").map(([, value]) => decodeText(value));
    if (kind === "property") found.properties.set(texts(1).at(-1) ?? "", texts(2).at(-1) ?? "");
    if (kind === "node") {
      const domain = texts(7).find((one) => one && one !== "ai.onnx");
      for (const name of texts(4)) found.operators.add(domain ? `${domain}:${name}` : name);
    }
    if (kind === "tensor") {
      found.external ||= fields.some(([n, value]) => n === EXTERNAL_DATA || (n === DATA_LOCATION && value !== 0));
    }
    for (const [number, value] of fields) {
      const inner = MESSAGES[kind]?.[number];
      if (inner && typeof value !== "number") waiting.push([inner, value]);
    }
  }
  return found;
}

function decodeText(value: Uint8Array | number): string {
  return new TextDecoder().decode(value as Uint8Array);
}

function* readFields(data: Uint8Array): Generator<Field> {
  let at = 0;
  const varint = (): number => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = data[at++];
      if (byte === undefined || scale > 2 ** 63) throw new Error("it is cut short");
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) return value;
    }
  };
  while (at < data.length) {
    const tag = varint();
    const [number, wire] = [Math.floor(tag / 8), tag % 8];
    if (wire === 0) {
      yield [number, varint()];
      continue;
    }
    if (![1, 2, 5].includes(wire)) throw new Error(`a field of the unknown type ${wire}`);
    const size = wire === 2 ? varint() : wire === 1 ? 8 : 4;
    if (at + size > data.length) throw new Error("it is cut short");
    yield [number, data.subarray(at, at + size)];
    at += size;
  }
}
