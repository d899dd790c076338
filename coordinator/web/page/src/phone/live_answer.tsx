// Show what the network says again and again.
import { useEffect, useState } from "preact/hooks";

const STEADY = 1000; // milliseconds that words must last until screen readers hear it

/** text: what the network says, or what went wrong; name: its first class, empty if it says none. */
export interface Answer {
  text: string;
  name: string;
}

/** Name the three classes with the highest probabilities. */
export function describeChances(chances: number[]): Answer {
  const order = [...chances.keys()].sort((a, b) => (chances[b] as number) - (chances[a] as number));
  const [first, ...others] = order.slice(0, 3).map((label) => `${label} (${Math.round(100 * (chances[label] as number))} %)`);
  const text = others.length ? `class ${first}; otherwise ${others.join(" or ")}.` : `class ${first}.`;
  return { text, name: `class ${order[0]}` };
}

/** The whole answer changes too often to be read out. */
export function LiveAnswer({ text, name }: Answer) {
  const [heard, setHeard] = useState("");
  const words = name || text;
  useEffect(() => {
    const timer = setTimeout(() => setHeard(words), STEADY);
    return () => clearTimeout(timer);
  }, [words]);
  return (
    <>
      <p>{text}</p>
      <p role="status" class="heard">{heard}</p>
    </>
  );
}
