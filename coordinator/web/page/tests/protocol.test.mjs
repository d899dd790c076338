// The parts of the protocol that another language must repeat exactly.
import assert from "node:assert/strict";
import test from "node:test";
import { decodeBlob, encodeBlob } from "../src/agent/blob.ts";
import { hash, Receiver, Sender } from "../src/agent/chunks.ts";
import { decode, encode, Malformed } from "../src/agent/envelope.ts";
import { heartbeatInterval, nameSubmodel } from "../src/agent/messages.ts";
import { Draws, encrypt } from "../src/agent/philox.ts";

// Random123, kat_vectors: counter, key, words of philox4x32-10
const KNOWN = [
  [[0, 0, 0, 0], [0, 0], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]],
  [
    [0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff],
    [0xffffffff, 0xffffffff],
    [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd],
  ],
  [
    [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
    [0xa4093822, 0x299f31d0],
    [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
  ],
];

test("the published vectors of Philox", () => {
  for (const [counter, key, words] of KNOWN) assert.deepEqual(encrypt(counter, key), words);
});

test("an order is the stable argsort of its words", () => {
  assert.deepEqual([...new Draws(0n).order(4, 0)], [0, 3, 2, 1]);
  const order = new Draws(5n + (1n << 40n)).order(1000, 7);
  assert.deepEqual([...order].sort((a, b) => a - b), [...Array(1000).keys()]);
});

test("a blob returns what it was made of", () => {
  const tensors = new Map([
    ["weight", { dtype: "float32", shape: [2, 3], data: Float32Array.of(1, -2, 3, 4, 5, 0.5) }],
    ["label", { dtype: "uint8", shape: [1], data: Uint8Array.of(7) }],
  ]);
  const blob = encodeBlob({ round: 3 }, tensors);
  const found = decodeBlob(blob);
  assert.equal(found.meta.round, 3);
  assert.deepEqual(found.tensors, tensors);
  assert.throws(() => decodeBlob(blob.subarray(0, blob.length - 1)), Malformed);
  assert.throws(() => decodeBlob(new Uint8Array(100)), Malformed);
});

test("a message of another version, or with a wrong field, is named", () => {
  assert.throws(() => decode(Uint8Array.of(0xc1)), Malformed);
  assert.throws(() => decode(encode("abort", { round: -1, attempt: 0, reason: "" })), /abort: round/);
  assert.equal(decode(encode("echo", { agent: "a", sent: 1 })), null);
  assert.equal(decode(encode("goodbye", { reason: "done", later: 1 })).body.reason, "done");
});

test("a receiver takes what a sender sends, in any order, and finds damage", () => {
  const data = Uint8Array.from({ length: 40 * 1024 - 3 }, (_, index) => index * 7);
  const manifest = { transfer: "1-1-train-w1", size: data.length, chunk: 1024, sha256: hash(data) };
  const sender = new Sender(manifest, data, 0);
  const receiver = new Receiver(manifest, { digest: manifest.sha256, size: data.length });
  assert.deepEqual(sender.nextChunks(), [], "nothing before the first grant");
  sender.takeGrant(new Uint8Array(), true, 1);
  const first = sender.nextChunks();
  assert.equal(first.length, 16, "the window");
  assert.throws(() => receiver.take({ ...first[0], data: data.subarray(1, 1025) }), Malformed);
  const bitmap = new Uint8Array(5);
  for (let chunks = first; chunks.length; chunks = sender.nextChunks()) {
    for (const chunk of chunks.reverse()) {
      assert.ok(receiver.take(chunk));
      bitmap[chunk.index >> 3] |= 1 << (chunk.index & 7);
    }
    sender.takeGrant(bitmap, true, 2);
  }
  assert.deepEqual(receiver.finish(), data);
  assert.equal(sender.progress, 1);
  assert.ok(!sender.checkStall(6));
  assert.ok(sender.checkStall(7), "the receipt may be lost");
});

test("heartbeats of a large fleet are as rare as its card says", () => {
  assert.equal(heartbeatInterval(0, 0, false), 15);
  assert.equal(heartbeatInterval(40, 0, false), 8);
  assert.equal(heartbeatInterval(40, 60, false), 60);
  assert.equal(heartbeatInterval(40, 60, true), 12);
  assert.equal(heartbeatInterval(40, 0, true), 0);
});

test("names of submodels", () => {
  const network = { label: "", family: "mlp", preset: "", inputs: [1], outputs: 2 };
  const plain = { network, width: 0.5, mask: [], features: [], branches: 1, owner: "" };
  assert.equal(nameSubmodel(plain), "w0.5");
  assert.equal(nameSubmodel({ ...plain, width: 1 / 3, mask: [[1, 1], [1, 0]] }), "w0.333333-d2.1");
  const mask = [[1, 0, 1, 1], [1, 1]];
  const whole = { ...plain, width: 1, mask, features: ["exits"], branches: 2, owner: "a0" };
  assert.equal(nameSubmodel(whole), "w1-b1011.11-exits-x2@a0");
  assert.equal(nameSubmodel(whole, false), "w1-b1011.11-exits-x2");
});
