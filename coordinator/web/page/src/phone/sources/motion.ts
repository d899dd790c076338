// Windows of motion from the sensors of the device: acceleration, and rotation where a run learns it.
// They stay in the browser.
import type { Card } from "../../agent/messages";

const PATIENCE = 5000; // milliseconds until a device without any reading has no sensors
const RADIANS = Math.PI / 180;
const AXES = 3;

/** The permission that Safari asks for. */
interface Guarded {
  requestPermission?(): Promise<"granted" | "denied">;
}

/** Return whether windows of motion can be examples of a network: 3 or 6 channels of samples. */
export function takesMotion({ objective, inputs }: NonNullable<Card["network"]>): boolean {
  return objective === "class" && inputs.length === 2 && [AXES, 2 * AXES].includes(inputs[0] ?? 0);
}

/** Return whether the browser gives this page the motion sensors, which need HTTPS. */
export function hasMotion(): boolean {
  return typeof DeviceMotionEvent === "function";
}

/** Hand on one window after another until the signal aborts: [channels, samples], float32, with the
    acceleration in m/s² with gravity, then the rotation in rad/s, each along x, y and z. The samples come
    as often as the browser takes them. Throws an Error with words for the person. */
export async function watchMotion(inputs: number[], signal: AbortSignal, onWindow: (x: Float32Array) => void): Promise<void> {
  const { requestPermission } = DeviceMotionEvent as Guarded;
  if (requestPermission && (await requestPermission.call(DeviceMotionEvent)) !== "granted") {
    throw new Error("The browser does not let this page use the motion sensors. Allow it in the browser's settings, and try again.");
  }
  const [channels = 0, samples = 0] = inputs;
  let window = new Float32Array(channels * samples);
  let filled = 0;
  await new Promise<void>((resolve, reject) => {
    const giveUp = () => reject(new Error("The motion sensors of this device give nothing. Perhaps it has none."));
    let timer = setTimeout(giveUp, PATIENCE);
    const take = (event: DeviceMotionEvent) => {
      const sample = readSample(event, channels);
      if (!sample) return;
      clearTimeout(timer);
      timer = setTimeout(giveUp, PATIENCE);
      sample.forEach((value, channel) => { window[channel * samples + filled] = value; });
      filled += 1;
      if (filled < samples) return;
      onWindow(window);
      [window, filled] = [new Float32Array(channels * samples), 0];
    };
    addEventListener("devicemotion", take, { signal });
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); });
  });
}

/** Return the values of an event by channel; null if the device lacks a sensor. */
function readSample({ accelerationIncludingGravity: acceleration, rotationRate: rotation }: DeviceMotionEvent, channels: number): number[] | null {
  const found = [acceleration?.x, acceleration?.y, acceleration?.z];
  // browsers report the rotation around x, y and z as alpha, beta and gamma
  if (channels > AXES) found.push(...[rotation?.alpha, rotation?.beta, rotation?.gamma].map((one) => one == null ? one : one * RADIANS));
  return found.every((one) => typeof one === "number") ? (found as number[]) : null;
}
