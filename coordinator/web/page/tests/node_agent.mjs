// An agent without a page, for tests: node node_agent.mjs URL RUN NAME DATA [PASSWORD]. It prints
// each change of its activity and each loss as a line of JSON.
import { readFile } from "node:fs/promises";
import { Agent } from "../src/agent/agent.ts";
import { openMemoryStore } from "../src/agent/store.ts";
import { describeData } from "../src/trainer/examples.ts";
import { CAPABILITIES, perform } from "../src/trainer/perform.ts";
import { decodeDataset } from "../src/trainer/practice_data.ts";

const [url, run, name, file, password] = process.argv.slice(2);
const data = decodeDataset(new Uint8Array(await readFile(file)));
let last = "";
const agent = new Agent({
  door: { url, name, password },
  run,
  store: openMemoryStore(),
  trainer: {
    perform: (job, onStep) =>
      perform(job, data, (step, steps, loss) => {
        console.log(JSON.stringify({ round: job.task.round, step, loss }));
        onStep(step, steps, loss);
      }),
    stop: () => {},
  },
  data: describeData(data),
  device: { host: "node", system: "node", cpus: 1, memory: 2 ** 30, runtime: "onnxruntime-web 1.30.0 wasm" },
  capabilities: CAPABILITIES,
  onChange({ activity, link, reason, over, finished, problems }) {
    const line = JSON.stringify({ activity, link, reason, over, finished, problems });
    if (line !== last) console.log(line);
    last = line;
    if (over) process.exit(0);
  },
});
process.on("SIGTERM", () => agent.leave());
