// Run tasks in a worker.
import type { Trainer } from "../agent/agent";
import type { Dataset } from "../trainer/examples";
import type { Job, Outcome } from "../trainer/perform";
import type { Reply, Request } from "./worker";

declare const WORKER_URL: string; // set by the build

interface Pending {
  id: number;
  onStep(step: number, steps: number, loss: number): void;
  resolve(outcome: Outcome): void;
  reject(error: Error): void;
}

/** A worker that lives until `stop`, which ends it even within a step. */
export function openWorker(data: Dataset): Trainer {
  let worker: Worker | null = null;
  let pending: Pending | null = null;
  let tasks = 0;

  const start = (): Worker => {
    const made = new Worker(WORKER_URL, { type: "module" });
    made.onmessage = ({ data: reply }: MessageEvent<Reply>) => {
      if (!pending || reply.id !== pending.id) return;
      if ("step" in reply) pending.onStep(reply.step, reply.steps, reply.loss);
      else if ("outcome" in reply) pending.resolve(reply.outcome);
      else pending.reject(new Error(reply.error));
    };
    made.onerror = (event) => {
      pending?.reject(new Error(`the training stopped: ${event.message || "the browser ended it, perhaps for lack of memory"}`));
      stop();
    };
    made.postMessage({ data } satisfies Request);
    return made;
  };
  const stop = () => {
    worker?.terminate();
    worker = pending = null;
  };
  return {
    perform: (job: Job, onStep) =>
      new Promise((resolve, reject) => {
        tasks += 1;
        pending = { id: tasks, onStep, resolve, reject };
        worker ??= start();
        worker.postMessage({ id: tasks, job } satisfies Request);
      }),
    stop,
  };
}
