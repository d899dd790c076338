// The worker that trains, so that the page stays responsive.
import * as ort from "onnxruntime-web/wasm";
import type { Dataset, Examples } from "../trainer/examples";
import { type Job, type Outcome, perform, predict, remember } from "../trainer/perform";

declare const WASM_URL: string; // set by the build

/** tested: the last test, performed by an earlier worker. */
export type Request = { data: Dataset; tested: Job | null } | { id: number; job: Job } | { id: number; x: Examples["x"] };
export type Reply =
  | { id: number; step: number; steps: number; loss: number }
  | { id: number; outcome: Outcome }
  | { id: number; chances: number[] }
  | { id: number; error: string };

const BREATH = 50; // milliseconds of training after which predictions get a turn

let data: Dataset | null = null;
let runtime: Promise<void> | null = null;

/** Load ONNX Runtime. One thread: more need a page that is isolated from others, over HTTPS. */
async function loadRuntime(): Promise<void> {
  const answer = await fetch(new URL(WASM_URL, location.href));
  if (!answer.ok) throw new Error(`the server sent no ONNX Runtime (status ${answer.status}): reload the page`);
  ort.env.wasm.wasmBinary = await answer.arrayBuffer();
  ort.env.wasm.numThreads = 1;
}

function reply(message: Reply, transfer: Transferable[] = []): void {
  self.postMessage(message, { transfer });
}

self.onmessage = async ({ data: request }: MessageEvent<Request>) => {
  if ("data" in request) {
    data = request.data;
    if (request.tested) void remember(request.tested);
    return;
  }
  const { id } = request;
  try {
    if (!data) throw new Error("this device has no data");
    await (runtime ??= loadRuntime());
    if ("x" in request) return reply({ id, chances: await predict(request.x, data) });
    let paused = performance.now();
    const outcome = await perform(request.job, data, async (step, steps, loss) => {
      reply({ id, step, steps, loss });
      if (performance.now() - paused < BREATH) return;
      await new Promise((resolve) => setTimeout(resolve));
      paused = performance.now();
    });
    reply({ id, outcome }, [outcome.update.buffer]);
  } catch (error) {
    runtime = ort.env.wasm.wasmBinary ? runtime : null;
    reply({ id, error: error instanceof Error ? error.message : String(error) });
  }
};
