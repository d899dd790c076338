/** Requests to the server, and the records that it answers with (see `run_page_data.py`). */

export interface RunRow {
  run: string;
  state: string;
  error?: string;
  method?: string;
  model?: string;
  data?: string;
  rounds_done?: number;
  rounds?: number;
  accuracy?: number | null;
  worst_accuracy?: number | null;
  updated?: string;
}

export interface Score {
  round: number;
  submodel: string;
  view: string;
  accuracy: number;
  loss: number | null;
  examples: number;
  trained_updates: number | null;
}

export interface Member {
  agent: string;
  state: string;
  submodel: string;
  task: string;
  loss: number | null;
  reason: string;
  condition: { celsius: number | null; throttled: boolean | null; power: string };
}

/** A task of the phase; times are seconds since the phase began. */
export interface TaskCourse {
  agent: string;
  submodel: string;
  stages: [stage: string, begin: number][];
  due: number | null;
  late: boolean;
}

export interface Now {
  phase: string;
  round: number;
  rounds: number;
  wanted: number;
  elapsed: number;
  limit: number | null;
  courses: TaskCourse[];
  reason: string;
  epsilon: number | null;
  broker_lost: string;
  store_lost: string;
  members: Member[];
  agents: Record<string, number>;
  tasks: Record<string, number>;
  receiving: number;
  waiting: number;
  queued: number;
  spool_files: number;
  spool_bytes: number;
}

export interface LogEvent {
  time: string;
  level: string;
  message: string;
  agent?: string | null;
  round?: number | null;
  /** Kind of the event, by which people filter. */
  event?: string | null;
}

export interface Status {
  error?: string;
  run: string;
  method: string;
  model: string;
  data: string;
  state: string;
  rounds_done: number;
  rounds: number;
  eta: number | null;
  scores: { round: number; values: Score[] };
  bytes_up: number;
  bytes_down: number;
  requests: { paused: boolean; stop: string; seen: boolean; pins: Record<string, string> } | null;
  silent: number | null;
  now: Now | null;
  errors: LogEvent[];
}

export interface Agent {
  agent: string;
  round: number;
  state: string;
  submodel: string;
  reason: string;
  predicted: { step: number; seconds: number; memory: number };
  measured: null | {
    round: number;
    submodel: string;
    outcome: string;
    step: number | null;
    seconds: number | null;
    memory: number | null;
  };
  /** misses: late rounds in a row. */
  standing: { misses: number };
  profile: null | {
    labels: string[];
    host: string;
    system: string;
    cpus: number;
    memory: number;
    uplink: number;
    runtime: string;
    examples: number;
    board: { kind: string; model: string; power: string };
  };
}

export interface Rounds {
  rounds: { round: number; seconds: number; bytes_up: number; bytes_down: number }[];
  scores: Score[];
  outcomes: [outcome: string, tasks: number][];
}

export interface Faults {
  since: string;
  faults: { fault: string; reason: string; times: number; agents: number; last: string }[];
}

export interface Task {
  round: number;
  agent: string;
  submodel: string;
  outcome: string;
  task: number;
  samples: number;
  seconds: number;
  step: number;
  peak: number;
  loss: number | null;
  position: number;
}

export interface Network {
  name: string;
  submodels: { name: string; width: number; depths: number[]; updates: number | null }[];
  trained: { agent: string; submodel: string; updates: number; last: number; regions: string[] }[];
}

export interface Releases {
  stable: string;
  previous: string;
  canary: string;
  agents: string[];
  versions: Record<string, { round: number; submodels: string[]; untrained: string[] }>;
  events: { time: string; version: string; what: string; reasons: string[]; agents: string[] }[];
  reports: {
    agent: string;
    state: string;
    version: string;
    submodel: string;
    variant: string;
    p50: number | null;
    p90: number | null;
    accuracy: number | null;
    accuracy_before: number | null;
    answered: number;
    failed: number;
    refused: string;
    reason: string;
  }[];
}

export interface Setting {
  key: string;
  value: unknown;
  default: unknown;
  description: string;
}

/** An answer of the server that is not what was asked for. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

async function request<T>(path: string, body?: Record<string, string>): Promise<T> {
  let response: Response;
  try {
    response = await fetch(
      path,
      body && {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(body),
      },
    );
  } catch {
    throw new Refusal(0, "The server does not answer. Is `coordinator web` still running?");
  }
  const found: unknown = await response.json().catch(() => ({}));
  if (!response.ok) {
    const why = (found as { error?: string }).error ?? response.statusText;
    throw new Refusal(response.status, why);
  }
  return found as T;
}

const at = (run: string) => `/api/runs/${encodeURIComponent(run)}`;

export const signIn = (token: string) => request<object>("/api/sign-in", { token });
export const signOut = () => request<object>("/api/sign-out", {});
export const listRuns = () => request<RunRow[]>("/api/runs");
export const readPart = <T>(run: string, part: string) => request<T>(`${at(run)}/${part}`);
/** Send a command with its fields and the token; the answer says what happened, in lines. */
export const sendCommand = (run: string, fields: Record<string, string>) =>
  request<{ asked: string; lines: string[] }>(`${at(run)}/request`, fields);

const RETRY = 5000; // milliseconds

/** Call `receive` with each new status of a run, until the returned function is called. A hidden
 * page closes its connection, of which a browser allows few. */
export function followRun(
  run: string,
  receive: (status: Status) => void,
  lose: (lost: boolean) => void,
): () => void {
  let source: EventSource | undefined;
  let retry: ReturnType<typeof setTimeout> | undefined;
  const close = () => {
    clearTimeout(retry);
    source?.close();
  };
  const open = () => {
    close();
    if (document.hidden) return;
    const made = new EventSource(`${at(run)}/stream`);
    made.onopen = () => lose(false);
    made.onmessage = (event) => receive(JSON.parse(event.data as string) as Status);
    made.onerror = () => {
      lose(true);
      // after an answer with an error, the browser does not try again
      if (made.readyState === EventSource.CLOSED) retry = setTimeout(open, RETRY);
    };
    source = made;
  };
  document.addEventListener("visibilitychange", open);
  open();
  return () => {
    document.removeEventListener("visibilitychange", open);
    close();
  };
}
