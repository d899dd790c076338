// Transfers over HTTP go on where they were interrupted, and end where they are refused.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import test from "node:test";
import { hash } from "../src/agent/chunks.ts";
import { Downloads } from "../src/agent/downloads.ts";
import { HttpDownload, HttpUpload } from "../src/agent/http.ts";
import { Outbox } from "../src/agent/outbox.ts";
import { openMemoryStore } from "../src/agent/store.ts";

const DATA = Uint8Array.from({ length: 100_000 }, (_, index) => index * 7);
const WANTED = { digest: hash(DATA), size: DATA.length };

/** Serve requests, given their bodies, and return the address. */
async function serve(t, answer) {
  const server = createServer((request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", () => answer(request, response, Buffer.concat(parts)));
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  t.after(() => { server.closeAllConnections(); server.close(); });
  return `http://127.0.0.1:${server.address().port}/`;
}

async function ended(transfer) {
  while (transfer.running) await new Promise((done) => setTimeout(done, 5));
  return transfer;
}

test("a download that is cut goes on where it stopped", async (t) => {
  const ranges = [];
  const warnings = [];
  const url = await serve(t, (request, response) => {
    ranges.push(request.headers.range);
    const start = Number(/\d+/.exec(request.headers.range ?? "0")[0]);
    response.writeHead(start ? 206 : 200, { "Content-Length": DATA.length - start });
    if (start) response.end(DATA.subarray(start));
    else response.write(DATA.subarray(0, 60_000), () => response.destroy());
  });
  const download = new HttpDownload(WANTED, (problem) => warnings.push(problem));
  download.begin(url);
  await ended(download);
  assert.deepEqual(download.whole, DATA);
  assert.equal(ranges.length, 2);
  assert.match(ranges[1], /^bytes=[1-9]\d*-$/);
  assert.equal(warnings.length, 1);
});

test("a server that never answers is asked again", async (t) => {
  let asked = 0;
  const url = await serve(t, (_, response) => { asked += 1; if (asked === 2) response.end(DATA); });
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const wait = async (condition) => { while (!condition()) await new Promise((done) => setImmediate(done)); };
  const download = new HttpDownload(WANTED, () => {});
  download.begin(url);
  await wait(() => asked === 1);
  t.mock.timers.tick(30_000);
  await wait(() => { t.mock.timers.tick(100); return download.whole; });
  assert.equal(asked, 2);
});

test("other bytes than the promised ones are refused", async (t) => {
  const url = await serve(t, (_, response) => response.end(new Uint8Array(DATA.length)));
  const download = new HttpDownload(WANTED, () => {});
  download.begin(url);
  assert.match((await ended(download)).failure, /another digest/);
  assert.deepEqual([download.whole, download.bytes], [null, 0]);
  const larger = await serve(t, (_, response) => response.end(new Uint8Array(DATA.length + 1)));
  download.begin(larger);
  assert.match((await ended(download)).failure, /found more/);
});

test("after a refusal a download asks for another address", async (t) => {
  let now = 0;
  const refusing = await serve(t, (_, response) => { response.statusCode = 403; response.end("expired"); });
  const serving = await serve(t, (_, response) => response.end(DATA));
  const topics = [];
  const link = { subscribe: (topic) => topics.push(topic), unsubscribe: () => {} };
  const downloads = new Downloads(link, openMemoryStore(), () => now);
  let data = null;
  void downloads.fetch({ base: "m", key: "weights/1", ...WANTED }).then((found) => { data = found; });
  const manifest = (url) => ({ kind: "manifest", body: { transfer: "t", size: DATA.length, chunk: 2 ** 18, sha256: WANTED.digest, url } });
  const wait = async (condition) => { while (!condition()) await new Promise((done) => setTimeout(done, 5)); };
  await wait(() => topics.length === 1);
  downloads.take("m/manifest", manifest(refusing));
  await wait(() => { now += 6; downloads.tick(); return topics.length === 2; });
  downloads.take("m/manifest", manifest(serving));
  await wait(() => { downloads.tick(); return data !== null; });
  assert.deepEqual(data, DATA);
});

test("an upload to the server goes on where it stopped", async (t) => {
  let there = DATA.subarray(0, 30_000);
  let away = true;
  const url = await serve(t, (request, response, body) => {
    if (request.method === "HEAD") {
      response.writeHead(204, { "Upload-Offset": there.length });
    } else if (away) {
      away = false;
      response.statusCode = 503;
    } else {
      assert.equal(request.headers["content-range"], "bytes 30000-99999/100000");
      there = Buffer.concat([there, body]);
      response.statusCode = 204;
    }
    response.end();
  });
  const upload = new HttpUpload(DATA, () => {}, () => {});
  upload.sendWhole(url);
  assert.equal((await ended(upload)).failure, "");
  assert.deepEqual(new Uint8Array(there), DATA);
});

test("parts go to their addresses, and an expired one is replaced by the next grant's", async (t) => {
  const stored = new Map();
  const url = await serve(t, (request, response, body) => {
    if (request.url === "/expired") response.statusCode = 403;
    else stored.set(request.url, body);
    response.end();
  });
  let now = 0;
  const offers = [];
  const network = { label: "", family: "mlp", preset: "", inputs: [1], outputs: 2 };
  const task = { run: "r", round: 1, attempt: 1, work: "train", submodel: { network, width: 1, mask: [], features: [], branches: 1, owner: "" } };
  const outbox = new Outbox(openMemoryStore(), "a", () => now, { count: () => {}, warn: () => {} });
  const { http, sender } = await outbox.add(task, DATA, 2 ** 16, {});
  const { transfer } = sender.manifest;
  const send = () => outbox.send((kind) => offers.push(kind), { say: "say", upload: () => "up" });
  const grant = (...names) => {
    const size = DATA.length / 2;
    const parts = names.map((name, index) => ({ start: index * size, size, url: url + name }));
    outbox.takeGrant({ transfer, have: new Uint8Array(), open: true, url: "", parts });
  };
  grant("1", "expired");
  await ended(http);
  send();
  assert.deepEqual([offers, [...stored.keys()]], [[], ["/1"]], "it waits before it asks again");
  now = 5;
  send();
  assert.deepEqual(offers, ["offer"]);
  grant("1", "2");
  await ended(http);
  send();
  assert.deepEqual(offers, ["offer", "offer"], "the coordinator looks for it at once");
  assert.deepEqual(new Uint8Array(Buffer.concat([stored.get("/1"), stored.get("/2")])), DATA);
  stored.clear();
  now = 6;
  grant("1", "2");
  assert.equal(http.running, false, "the coordinator has not noticed yet");
  now = 9;
  grant("1", "2");
  await ended(http);
  assert.equal(stored.size, 2, "what it still lacks was lost");
  assert.throws(() => {
    now = 20;
    send();
    outbox.takeGrant({ transfer, have: new Uint8Array(), open: true, url: "", parts: [{ start: DATA.length, size: 1, url }] });
  }, /after the update/);
});
