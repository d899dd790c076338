/** The page: sign-in, the address after `#`, and the view that it names. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { followRun, listRuns, readPart, Refusal, type RunRow, signIn, signOut, type Status } from "./api";
import { linkTo, readQuery } from "./address";
import { Devices } from "./devices";
import { Log } from "./log";
import { NetworkView } from "./network";
import { Overview } from "./overview";
import { ReleasesView } from "./releases";
import { RoundsView } from "./rounds";
import { Runs } from "./runs";
import { Settings } from "./settings";
import { Control } from "./steering";
import { RoundView } from "./timeline";

const VIEWS = {
  overview: "Overview",
  round: "This round",
  devices: "Devices",
  rounds: "Rounds",
  network: "Network",
  releases: "Releases",
  log: "Log",
  settings: "Settings",
} as const;
type View = keyof typeof VIEWS;

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a damaged link
  }
}

function readAddress(): { run: string; view: View; compared: string[] } {
  const [path = ""] = location.hash.slice(1).split("?");
  const [, run = "", view = ""] = path.split("/").map(decode);
  const compared = readQuery().getAll("run");
  return { run, view: view in VIEWS ? (view as View) : "overview", compared };
}

export function App() {
  const [address, setAddress] = useState(readAddress());
  const [runs, setRuns] = useState<RunRow[] | null>(null);
  const [problem, setProblem] = useState<Refusal | null>(null);
  const load = () =>
    listRuns().then(
      (found) => {
        setRuns(found);
        setProblem(null);
      },
      (error: Refusal) => setProblem(error),
    );
  useEffect(() => {
    const follow = () => setAddress(readAddress());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const known = runs?.some((one) => one.run === address.run);
  useEffect(() => void load(), [address.run]);
  // Preact keeps what `Run` showed when this component was last drawn, so it is drawn seldom
  useEffect(() => {
    if (known) return;
    const timer = setInterval(load, 5000);
    return () => clearInterval(timer);
  }, [known]);
  const title = address.run ? `${address.run}: ${VIEWS[address.view]}` : "Runs";
  useEffect(() => {
    document.title = `${title} - Espalier`;
  }, [title]);

  if (problem?.status === 401) return <SignIn done={load} ended={runs !== null} />;
  return (
    <>
      <header class="bar">
        <a href="#/" class="home">
          Espalier
        </a>
        <h1 class="crumb">{address.run || "Runs"}</h1>
        <button type="button" onClick={() => signOut().finally(load)}>
          Sign out
        </button>
      </header>
      {problem && <p role="alert" class="alert">{problem.message}</p>}
      <main>
        {runs &&
          (!address.run ? (
            <Runs runs={runs} compared={address.compared} />
          ) : known ? (
            <Run key={address.run} run={address.run} view={address.view} lost={load} />
          ) : (
            <p role="alert" class="alert">
              {`There is no run '${address.run}' in this folder. `}
              <a href="#/">All runs</a>
            </p>
          ))}
      </main>
    </>
  );
}

/** ended: whether an earlier sign-in of this page has ended. */
function SignIn({ done, ended }: { done: () => void; ended: boolean }) {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    signIn(token).then(done, (error: Refusal) => setProblem(error.message));
  };
  return (
    <main class="sign-in">
      <h1>Sign in to Espalier</h1>
      {ended && (
        <p role="status">
          Your sign-in has ended: it lasts 12 hours, or until the server restarts. Sign in again to
          return to the same view.
        </p>
      )}
      <form onSubmit={submit} class="card">
        <label for="token">Token</label>
        <input
          id="token"
          type="password"
          autocomplete="off"
          required
          value={token}
          onInput={(event) => setToken(event.currentTarget.value)}
        />
        <button type="submit">Sign in</button>
        <p class="quiet">
          <code>coordinator web</code> prints the name of the file that holds the tokens.
        </p>
        {problem && <p role="alert" class="alert">{problem}</p>}
      </form>
    </main>
  );
}

const RETRY = 5000; // milliseconds after a failure
const NEVER = Symbol("never");

/** A part of a run, read again when `version` changes. One request at a time: a server that needs
 * longer than the version lasts would answer none otherwise. */
export function usePart<T>(run: string, part: string, version: unknown): [T | null, string] {
  const [found, setFound] = useState<T | null>(null);
  const [problem, setProblem] = useState("");
  const [reading, setReading] = useState(false);
  const seen = useRef<unknown>(NEVER);
  useEffect(() => {
    if (reading || seen.current === version) return;
    seen.current = version;
    setReading(true);
    readPart<T>(run, part).then(
      (value) => {
        setFound(value);
        setProblem("");
        setReading(false);
      },
      (error: Refusal) => {
        setProblem(error.message);
        setTimeout(() => {
          seen.current = NEVER;
          setReading(false);
        }, RETRY);
      },
    );
  }, [version, reading]);
  return [found, problem];
}

/** A view of a part: an error, a wait, or what `children` makes of it. */
export function Part<T>(props: {
  run: string;
  part: string;
  version: unknown;
  children: (found: T) => ComponentChildren;
}) {
  const [found, problem] = usePart<T>(props.run, props.part, props.version);
  return (
    <>
      {problem && <p role="alert" class="alert">{problem}</p>}
      {found === null ? !problem && <p class="quiet">Loading…</p> : props.children(found)}
    </>
  );
}

function Run({ run, view, lost }: { run: string; view: View; lost: () => void }) {
  const [status, setStatus] = useState<Status | null>(null);
  const [away, setAway] = useState(false);
  useEffect(
    () =>
      followRun(run, setStatus, (isAway) => {
        setAway(isAway);
        if (isAway) lost();
      }),
    [run],
  );
  const shown = status !== null && !status.error;
  useEffect(() => {
    // on a phone, the links to the views need more room than there is
    document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [view, shown]);
  if (!status) return <p class="quiet">{away ? "The server does not answer; trying again…" : "Loading…"}</p>;
  if (status.error) return <p role="alert" class="alert">{status.error}</p>;
  return (
    <>
      {away && (
        <p role="alert" class="alert">
          The connection to the server is lost: the numbers below are old. The page reconnects by
          itself.
        </p>
      )}
      <nav aria-label="Views">
        {Object.entries(VIEWS).map(([key, title]) => (
          <a key={key} href={linkTo(run, key)} aria-current={key === view ? "page" : undefined}>
            {title}
          </a>
        ))}
      </nav>
      {view === "overview" && <Control status={status} />}
      {view === "overview" && <Overview status={status} />}
      {view === "round" && <RoundView status={status} />}
      {view === "devices" && <Devices status={status} />}
      {view === "rounds" && <RoundsView status={status} />}
      {view === "network" && <NetworkView status={status} />}
      {view === "releases" && <ReleasesView status={status} />}
      {view === "log" && <Log status={status} />}
      {view === "settings" && <Settings status={status} />}
    </>
  );
}
