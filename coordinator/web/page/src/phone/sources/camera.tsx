// Show the camera, and hand its pictures on one at a time. They stay in the browser.
import { useRef } from "preact/hooks";
import { useSensor } from "./sensor";

const PAUSE = 200; // milliseconds between two pictures, so that training gets on

/** onPicture: called with the running video, again when it has settled. */
export function Camera({ onPicture }: { onPicture(video: HTMLVideoElement): Promise<void> }) {
  const video = useRef<HTMLVideoElement>(null);
  const latest = useRef(onPicture);
  latest.current = onPicture;
  const { on, problem, toggle } = useSensor((signal) =>
    film(video.current as HTMLVideoElement, signal, (shown) => latest.current(shown)).catch((error) => { throw explain(error); }),
  );
  if (!navigator.mediaDevices) return null; // the page says elsewhere that it needs HTTPS
  return (
    <>
      <button type="button" aria-pressed={on} onClick={toggle}>{on ? "Stop the camera" : "Use the camera"}</button>
      {problem && <p class="alert" role="alert">{problem}</p>}
      <video ref={video} hidden={!on} muted playsInline aria-label="What the camera sees" />
    </>
  );
}

/** Film until the signal aborts. Throws the browser's error if it gives no camera. */
async function film(video: HTMLVideoElement, signal: AbortSignal, show: (video: HTMLVideoElement) => Promise<void>): Promise<void> {
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

function explain(error: unknown): Error {
  const { name, message } = error instanceof Error ? error : new Error(String(error));
  if (name === "NotAllowedError") return new Error("The browser does not let this page use the camera. Allow it in the browser's settings, and try again.");
  if (name === "NotFoundError") return new Error("This device has no camera. Choose a picture instead.");
  return new Error(`The camera does not work: ${message}`);
}
