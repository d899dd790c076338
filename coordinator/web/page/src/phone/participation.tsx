// Take part in a run, and show how it goes.
import { useEffect, useRef, useState } from "preact/hooks";
import { Agent, ELSEWHERE, LEFT } from "../agent/agent";
import type { Door } from "../agent/link";
import type { Store } from "../agent/store";
import { EMPTY, type View } from "../agent/view";
import { type Dataset, describeData } from "../trainer/examples";
import { CAPABILITIES } from "../trainer/perform";
import { type Battery, describeDevice, findBattery, keepAwake } from "./device";
import { forget } from "./membership";
import { SentTable } from "./sent_table";
import { TrainingState } from "./training_state";
import { TryOut } from "./try_out";
import { openWorker, type TrainingWorker } from "./worker_client";

const HIDDEN = "the page is in the background";
const PERSON = "someone pressed Pause";

interface Place {
  door: Door;
  run: string;
  data: Dataset;
  store: Store;
}

/** Whether an agent ended whose page is of no further use. */
function isGone(over: string): boolean {
  return over === LEFT || over === ELSEWHERE;
}

export function Participation({ door, run, data, store }: Place) {
  const [view, setView] = useState<View>(EMPTY);
  const [battery, setBattery] = useState<Battery | null>(null);
  const [paused, setPaused] = useState(false);
  const [hidden, setHidden] = useState(document.hidden);
  const agent = useRef<Agent | null>(null);
  const reason = paused ? PERSON : hidden ? HIDDEN : "";
  const wanted = useRef(reason);
  const [worker] = useState<TrainingWorker>(() => openWorker(data));

  useEffect(() => {
    let open = true;
    void findBattery().then((found) => {
      if (!open) return;
      setBattery(found);
      const device = describeDevice(found);
      const card = describeData(data);
      const equipment = { door, run, store, trainer: worker, data: card, device, capabilities: CAPABILITIES };
      const onChange = (next: View) => {
        if (isGone(next.over)) worker.close();
        setView(next);
      };
      agent.current = new Agent({ ...equipment, onChange });
      agent.current.pause(wanted.current); // the page may have been opened in the background
    });
    const others = new BroadcastChannel("espalier");
    others.onmessage = () => void agent.current?.leave(ELSEWHERE);
    others.postMessage("opened"); // the page that was opened last goes on
    const look = () => setHidden(document.hidden);
    document.addEventListener("visibilitychange", look);
    return () => {
      open = false;
      others.close();
      document.removeEventListener("visibilitychange", look);
      void agent.current?.leave();
    };
  }, []);
  useEffect(() => {
    wanted.current = reason;
    agent.current?.pause(reason);
  }, [reason]);
  const working = !reason && !view.over;
  useEffect(() => (working ? keepAwake() : undefined), [working]);

  const leave = async () => {
    await agent.current?.leave();
    await forget(store);
    if (view.over) location.reload();
  };
  return (
    <>
      <TrainingState view={view} data={data} battery={battery} />
      <div class="control">
        {!view.over && <button type="button" aria-pressed={paused} onClick={() => setPaused(!paused)}>{paused ? "Continue" : "Pause"}</button>}
        {!isGone(view.over) && <button type="button" onClick={leave}>{view.over ? "Delete what this page stored" : "Leave the run"}</button>}
      </div>
      {view.problems.length > 0 && (
        <section class="card" role="log" aria-label="Problems">
          <h2>Problems</h2>
          {view.problems.map((problem, at) => <p key={at}>{problem}</p>)}
        </section>
      )}
      {view.card && !isGone(view.over) && <TryOut card={view.card} worker={worker} />}
      <SentTable view={view} />
    </>
  );
}
