// Downloads never use damaged blobs, and those of a dropped task leave the next task's alone.
import assert from "node:assert/strict";
import test from "node:test";
import { hash } from "../src/agent/chunks.ts";
import { Downloads } from "../src/agent/downloads.ts";
import { openMemoryStore } from "../src/agent/store.ts";

const BLOB = new Uint8Array([1, 2, 3]);
const SOURCE = { base: "model/1/w1", key: "weights/1", digest: hash(BLOB), size: BLOB.length };

function setUp() {
  const topics = new Set();
  const link = { subscribe: (topic) => topics.add(topic), unsubscribe: (topic) => topics.delete(topic) };
  const store = openMemoryStore();
  return { topics, store, downloads: new Downloads(link, store, () => 0) };
}

test("a stored blob is used only if its digest is right", async () => {
  const { topics, store, downloads } = setUp();
  await store.set(SOURCE.key, BLOB);
  assert.deepEqual(await downloads.fetch(SOURCE), BLOB);
  assert.equal(topics.size, 0);
  await store.set(SOURCE.key, new Uint8Array([1, 2, 4]));
  void downloads.fetch(SOURCE);
  await new Promise(setImmediate);
  assert.ok(topics.has(`${SOURCE.base}/manifest`));
});

test("a blob that nothing wants any more stops no other download", async () => {
  const { topics, downloads } = setUp();
  void downloads.fetch(SOURCE);
  await new Promise(setImmediate);
  void downloads.fetch({ ...SOURCE, base: "model/graph/2", key: "graph/2" }, () => false);
  await new Promise(setImmediate);
  assert.deepEqual([...topics], [`${SOURCE.base}/manifest`]);
});

test("what a new connection requests is requested again if no answer comes", async () => {
  let now = 0;
  const requests = [];
  const link = { subscribe: (topic) => requests.push(topic), unsubscribe: () => {} };
  const downloads = new Downloads(link, openMemoryStore(), () => now);
  void downloads.fetch(SOURCE);
  await new Promise(setImmediate);
  now = 1;
  downloads.resume();
  assert.equal(requests.length, 2);
  now = 10;
  downloads.tick();
  assert.equal(requests.length, 3);
});
