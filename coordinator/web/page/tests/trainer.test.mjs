// Checks and sums of the trainer, with numbers made by hand.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";
import { describeData, listBatches } from "../src/trainer/examples.ts";
import { Graph, OPERATORS } from "../src/trainer/graph.ts";
import { OpenGraphs } from "../src/trainer/open_graphs.ts";
import { readOnnx } from "../src/trainer/onnx_file.ts";
import { makeDataset } from "../src/phone/sources/examples.ts";
import { add, listViews, tally } from "../src/trainer/scores.ts";

const PYTHON = "../../../federated/device/trainers/graph_checks.py";

test("a browser runs the operators that other devices run", async () => {
  const names = /NAMES = """([^"]*)"""/.exec(await readFile(PYTHON, "utf8"))[1];
  assert.deepEqual([...OPERATORS].sort(), names.trim().split(/\s+/).sort());
});

test("a file that is not the one that the task names, or no ONNX file, is refused", async () => {
  const data = Uint8Array.of(0x0f, 1, 2);
  assert.throws(() => readOnnx(data), /unknown type|cut short/);
  const other = Uint8Array.of(0x78, 0, 0x01, 0, ...Buffer.from("ORTM"), 0, 0, 0); // also protobuf
  assert.throws(() => readOnnx(other), /ONNX Runtime's own format/);
  const file = { kind: "step", digest: "0".repeat(64), data };
  await assert.rejects(Graph.load(file, "w1"), /its file is damaged/);
});

test("graphs in use stay open, and three others", async () => {
  const closed = [];
  const load = async (file) => ({ close: async () => closed.push(file.digest) });
  const graphs = new OpenGraphs(load);
  const files = ["a", "b", "c", "d", "e"].map((digest) => ({ kind: "step", digest }));
  const taken = await Promise.all([files[0], files[0]].map((file) => graphs.take(file, "w1")));
  assert.equal(taken[0], taken[1], "loaded once");
  await graphs.release(files[0], "w1");
  for (const file of files.slice(1)) {
    await graphs.take(file, "w1");
    await graphs.release(file, "w1");
  }
  assert.deepEqual(closed, ["b"], "a is in use");
  await graphs.release(files[0], "w1");
  assert.deepEqual(closed, ["b", "c"], "those that were used longest ago");
});

test("a graph that could not be loaded is loaded again", async () => {
  let loads = 0;
  const load = async () => {
    loads += 1;
    if (loads === 1) throw new Error("damaged");
    return { close: async () => undefined };
  };
  const graphs = new OpenGraphs(load);
  await assert.rejects(graphs.take({ kind: "step", digest: "a" }, "w1"), /damaged/);
  assert.ok(await graphs.take({ kind: "step", digest: "a" }, "w1"));
});

test("properties, operators and external data of a model", () => {
  const text = (number, value) => [(number << 3) | 2, value.length, ...Buffer.from(value)];
  const nest = (number, fields) => [(number << 3) | 2, fields.length, ...fields];
  const node = [...text(4, "Loop"), ...text(7, "odd")];
  const tensor = [(14 << 3) | 0, 1];
  const graph = [...nest(1, node), ...nest(1, text(4, "Add")), ...nest(5, tensor)];
  const model = [...nest(7, graph), ...nest(14, [...text(1, "kind"), ...text(2, "step")])];
  const found = readOnnx(Uint8Array.from(model));
  assert.deepEqual([...found.operators].sort(), ["Add", "odd:Loop"]);
  assert.equal(found.properties.get("kind"), "step");
  assert.ok(found.external);
});

test("batches: a last example joins the batch before it", () => {
  assert.deepEqual(listBatches(5, 2), [[0, 2], [2, 5]]);
  assert.deepEqual(listBatches(4, 2), [[0, 2], [2, 4]]);
  assert.deepEqual(listBatches(1, 2), [[0, 1]]);
});

test("a card has moments by channel, and no example", () => {
  const train = { x: Uint8Array.of(1, 3, 5, 5, 1, 3, 5, 5), y: Int32Array.of(0, 1) };
  const held = { x: new Uint8Array(), y: new Int32Array() };
  const card = describeData({ name: "two", inputs: [2, 1, 2], outputs: 2, train, held });
  assert.deepEqual([card.mean, card.std], [[2, 5], [1, 1]], "a constant channel is not scaled");
  assert.deepEqual([card.examples, card.held_out], [2, 0]);
});

test("labelled windows of motion become float32 examples, of which every fifth is held out", () => {
  const recorded = [0, 1, 2, 3, 4, 5].map((one) => ({ x: Float32Array.of(one, -one - 0.5), y: one % 2 }));
  const data = makeDataset("motion", { inputs: [2, 1], outputs: 2 }, recorded);
  assert.deepEqual([...data.train.x], [0, -0.5, 1, -1.5, 2, -2.5, 3, -3.5, 5, -5.5]);
  assert.deepEqual([[...data.train.y], [...data.held.x], [...data.held.y]], [[0, 1, 0, 1, 1], [4, -4.5], [0]]);
  const card = describeData(data);
  assert.deepEqual([card.dtype, card.inputs, card.mean], ["float32", [2, 1], [2.2, -2.7]]);
});

test("scores of two batches add up", () => {
  const sure = tally(Float32Array.of(0, 0, 0, 0), [0, 1], 2, true);
  assert.deepEqual(sure.right, [1]);
  assert.ok(Math.abs(sure.loss[0] - 2 * Math.log(2)) < 1e-12);
  const sum = add(sure, tally(Float32Array.of(0, 5), [1], 2, true));
  assert.deepEqual([sum.count, sum.right, sum.hits, sum.guessed, sum.true], [[3], [2], [1, 1], [2, 1], [1, 2]]);
  const views = listViews([Float32Array.of(4, 2), Float32Array.of(2, 6)], 2, [0]);
  assert.deepEqual([...views.ensemble], [3, 4]);
  assert.deepEqual([...views.labels], [2, 0]);
});
