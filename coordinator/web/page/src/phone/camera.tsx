// Show the camera, and hand its pictures on one at a time. They stay in the browser.
import { useEffect, useRef, useState } from "preact/hooks";

const PAUSE = 200; // milliseconds between two pictures, so that training gets on

/** onPicture: called with the running video, again when it has settled. */
export function Camera({ onPicture }: { onPicture(video: HTMLVideoElement): Promise<void> }) {
  const [on, setOn] = useState(false);
  const [problem, setProblem] = useState("");
  const video = useRef<HTMLVideoElement>(null);
  const latest = useRef(onPicture);
  latest.current = onPicture;

  useEffect(() => {
    const element = video.current;
    if (!on || !element) return;
    const ended = new AbortController();
    const end = () => setOn(false);
    document.addEventListener("visibilitychange", end, { signal: ended.signal }); // a hidden page films nothing
    run(element, ended.signal, (shown) => latest.current(shown)).catch((error) => {
      if (!ended.signal.aborted) setProblem(explain(error));
      end();
    });
    return () => ended.abort();
  }, [on]);

  if (!navigator.mediaDevices) return null; // the page says elsewhere that it needs HTTPS
  return (
    <>
      <button type="button" aria-pressed={on} onClick={() => { setProblem(""); setOn(!on); }}>
        {on ? "Stop the camera" : "Use the camera"}
      </button>
      {problem && <p class="alert" role="alert">{problem}</p>}
      <video ref={video} hidden={!on} muted playsInline aria-label="What the camera sees" />
    </>
  );
}

/** Film until the signal aborts. Throws the browser's error if it gives no camera. */
async function run(video: HTMLVideoElement, signal: AbortSignal, show: (video: HTMLVideoElement) => Promise<void>): Promise<void> {
  const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  const stop = () => { for (const track of stream.getTracks()) track.stop(); };
  if (signal.aborted) return stop();
  signal.addEventListener("abort", () => { stop(); video.srcObject = null; });
  video.srcObject = stream;
  await video.play();
  while (!signal.aborted) {
    await show(video);
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
}

function explain(error: unknown): string {
  const { name, message } = error instanceof Error ? error : new Error(String(error));
  if (name === "NotAllowedError") return "The browser does not let this page use the camera. Allow it in the browser's settings, and try again.";
  if (name === "NotFoundError") return "This device has no camera. Choose a picture instead.";
  return `The camera does not work: ${message}`;
}
