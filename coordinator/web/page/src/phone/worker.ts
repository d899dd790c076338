// The worker that trains, so that the page stays responsive.
import * as ort from "onnxruntime-web/wasm";
import { type Dataset } from "../trainer/examples";
import { type Job, type Outcome, perform, predict } from "../trainer/perform";

declare const WASM_URL: string; // set by the build

export type Request = { data: Dataset } | { id: number; job: Job } | { id: number; x: Uint8Array };
export type Reply =
  | { id: number; step: number; steps: number; loss: number }
  | { id: number; outcome: Outcome }
  | { id: number; chances: number[] }
  | { id: number; error: string };

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
    return;
  }
  const { id } = request;
  try {
    if (!data) throw new Error("this device has no data");
    if ("x" in request) return reply({ id, chances: await predict(request.x, data) });
    await (runtime ??= loadRuntime());
    const outcome = await perform(request.job, data, (step, steps, loss) => reply({ id, step, steps, loss }));
    reply({ id, outcome }, [outcome.update.buffer]);
  } catch (error) {
    runtime = ort.env.wasm.wasmBinary ? runtime : null;
    reply({ id, error: error instanceof Error ? error.message : String(error) });
  }
};
