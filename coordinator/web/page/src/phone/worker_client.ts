// Run tasks and predictions in a worker.
import type { Trainer } from "../agent/tasks";
import type { Dataset, Examples } from "../trainer/examples";
import type { Job, Outcome } from "../trainer/perform";
import type { Reply, Request } from "./worker";

declare const WORKER_URL: string; // set by the build

/** A trainer that also predicts. */
export interface TrainingWorker extends Trainer {
  /** Return the probability of each class for an example. */
  predict(x: Examples["x"]): Promise<number[]>;
  /** End for good. Neither tasks nor predictions in progress, nor later ones, ever end. */
  close(): void;
}

interface Pending {
  request: Request;
  onStep?(step: number, steps: number, loss: number): void;
  resolve(result: never): void;
  reject(error: Error): void;
}

/** A worker that lives until `stop`, which ends training even within a step. Predictions go on in the
    next worker, since choosing a picture may hide the page, which stops training. */
export function openWorker(data: Dataset): TrainingWorker {
  let worker: Worker | null = null;
  let closed = false;
  let requests = 0;
  let tested: Job | null = null;
  const pending = new Map<number, Pending>();

  const take = (reply: Reply) => {
    const known = pending.get(reply.id);
    if ("step" in reply) return known?.onStep?.(reply.step, reply.steps, reply.loss);
    pending.delete(reply.id);
    if ("error" in reply) known?.reject(new Error(reply.error));
    else known?.resolve(("outcome" in reply ? reply.outcome : reply.chances) as never);
  };
  const stop = () => {
    worker?.terminate();
    worker = null;
    for (const [id, one] of pending) {
      if (one.onStep) pending.delete(id);
      else post(one.request);
    }
  };
  const post = (request: Request) => {
    if (!closed) (worker ??= start()).postMessage(request);
  };
  const start = (): Worker => {
    const made = new Worker(WORKER_URL, { type: "module" });
    made.onmessage = ({ data: reply }: MessageEvent<Reply>) => take(reply);
    made.onerror = (event) => {
      const lost = [...pending.values()];
      pending.clear();
      stop();
      const reason = event.message || "the browser ended it, perhaps for lack of memory";
      for (const one of lost) one.reject(new Error(`the training stopped: ${reason}`));
    };
    made.postMessage({ data, tested } satisfies Request);
    return made;
  };
  const ask = <Result>(make: (id: number) => Request, onStep?: Pending["onStep"]): Promise<Result> =>
    new Promise((resolve, reject) => {
      requests += 1;
      const request = make(requests);
      pending.set(requests, { request, onStep, resolve, reject });
      post(request);
    });
  return {
    async perform(job, onStep) {
      const outcome = await ask<Outcome>((id) => ({ id, job }), onStep);
      if (job.task.work === "evaluate") tested = job;
      return outcome;
    },
    predict: (x) => ask<number[]>((id) => ({ id, x })),
    stop,
    close() {
      closed = true;
      stop();
    },
  };
}
