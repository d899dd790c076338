// What the page can find out about its device, and what its browser lacks.

// the smallest module with an instruction on 128 bits
const SIMD = Uint8Array.of(
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
);
const RUNTIME = "onnxruntime-web 1.30.0 wasm";
const GIB = 2 ** 30;

/** A battery, as browsers describe it. level: 0 to 1. */
export interface Battery extends EventTarget {
  level: number;
  charging: boolean;
}

interface Extras {
  deviceMemory?: number;
  getBattery?(): Promise<Battery>;
  userAgentData?: { platform?: string; model?: string };
}

const extras = navigator as Navigator & Extras;

/** Return why this browser cannot train; empty if it can. */
export function explainLack(): string {
  if (typeof WebAssembly !== "object") return "This browser cannot run WebAssembly, which training needs.";
  if (!WebAssembly.validate(SIMD)) {
    return "This browser has no WebAssembly SIMD, which training needs. Use Chrome 91, Firefox 89, Safari 16.4, or a later version.";
  }
  return "";
}

/** Return the battery, or null where the browser hides it. */
export async function findBattery(): Promise<Battery | null> {
  return extras.getBattery ? extras.getBattery().catch(() => null) : null;
}

/** Return the fields of a profile that describe the device. One thread trains, whatever it has. */
export function describeDevice(battery: Battery | null): object {
  const system = extras.userAgentData?.platform || navigator.platform || "unknown";
  const power = battery ? (battery.charging ? "mains" : "battery") : "";
  return {
    host: "browser",
    system,
    cpus: 1,
    memory: Math.round(Math.min(2, (extras.deviceMemory ?? 2) / 2) * GIB),
    runtime: RUNTIME,
    board: { kind: /android/i.test(navigator.userAgent) ? "android" : "generic", model: "", gpu: "", shared: false, power },
  };
}

/** Keep the screen on, where the browser lets the page do so, until the returned function is called. */
export function keepAwake(): () => void {
  let lock: WakeLockSentinel | null = null;
  let over = false;
  const take = async () => {
    if (over || document.hidden) return;
    lock = (await navigator.wakeLock?.request("screen").catch(() => null)) ?? null;
    if (over) void lock?.release();
  };
  document.addEventListener("visibilitychange", take);
  void take();
  return () => {
    over = true;
    document.removeEventListener("visibilitychange", take);
    void lock?.release();
  };
}
