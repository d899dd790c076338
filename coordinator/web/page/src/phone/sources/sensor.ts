// A sensor that a person starts and stops. It keeps the screen on, and stops when the page is hidden.
import { useEffect, useRef, useState } from "preact/hooks";
import { keepAwake } from "../device";

export interface Sensor {
  on: boolean;
  problem: string;
  toggle(): void;
  stop(): void;
}

/** run: reads the sensor until the signal aborts; called within a click, as browsers demand. Its errors
    become the problem. */
export function useSensor(run: (signal: AbortSignal) => Promise<void>): Sensor {
  const [on, setOn] = useState(false);
  const [problem, setProblem] = useState("");
  const current = useRef<AbortController | null>(null);
  const stop = () => {
    current.current?.abort();
    current.current = null;
    setOn(false);
  };
  const start = () => {
    const ended = new AbortController();
    current.current = ended;
    setOn(true);
    setProblem("");
    run(ended.signal).catch((error) => {
      if (ended.signal.aborted) return;
      setProblem(error instanceof Error ? error.message : String(error));
      stop();
    });
  };
  useEffect(() => {
    document.addEventListener("visibilitychange", stop);
    return () => {
      document.removeEventListener("visibilitychange", stop);
      stop();
    };
  }, []);
  useEffect(() => (on ? keepAwake() : undefined), [on]);
  return { on, problem, toggle: on ? stop : start, stop };
}
