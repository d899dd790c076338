// Join a run with the token of a code, and remember the answer for the next visit.
import { bytesToHex } from "@noble/hashes/utils.js";
import { createStore, del, get, keys, set } from "idb-keyval";
import { decode } from "../agent/envelope";
import { type Door, openLink } from "../agent/link";
import { type Card, explainGoodbye } from "../agent/messages";
import { openMemoryStore, type Store } from "../agent/store";
import { Topics } from "../agent/topics";
import type { Dataset } from "../trainer/examples";

/** How this browser connects as an agent of a run. */
export interface Membership {
  name: string;
  password: string;
  run: string;
}

/** A request to join without answer so far. */
interface Attempt {
  token: string;
  nonce: string;
}

const MEMBERSHIP = "membership";
const ATTEMPT = "attempt";
const DATA = "data";
const LONGEST_PAUSE = 4; // seconds between two requests to join

/** Return the browser's own store; one in memory if it has none, as in some private windows. */
export async function openStore(): Promise<{ store: Store; lasting: boolean }> {
  try {
    const place = createStore("espalier", "device");
    await keys(place);
    const store: Store = {
      get: (key) => get(key, place),
      set: (key, value) => set(key, value, place),
      delete: (key) => del(key, place),
      keys: async () => (await keys(place)).map(String),
    };
    return { store, lasting: true };
  } catch {
    return { store: openMemoryStore(), lasting: false };
  }
}

/** Take the token out of the address, so that it stays in no history. */
export function takeToken(): string {
  const found = location.hash.slice(1);
  if (found) history.replaceState(null, "", location.pathname + location.search);
  return readToken(found);
}

/** Return the token of a text: of the address in a code, of its fragment, or of the token itself. */
export function readToken(text: string): string {
  const found = text.trim().replace(/^.*#/, "");
  try {
    return decodeURIComponent(found);
  } catch {
    return found; // the server says that it is no token
  }
}

/** Join with a token; the empty one continues an attempt without answer. Return null if there is none.
    Throws an Error with words for the person. */
export async function join(token: string, store: Store): Promise<Membership | null> {
  const attempt = await beginAttempt(token, store);
  if (!attempt) return null;
  const answer = await ask(attempt);
  const found = (await answer.json().catch(() => ({}))) as Partial<Membership> & { error?: string };
  const { name, password, run } = found;
  if (!answer.ok || !name || !password || !run) {
    if (isFinal(answer.status)) await store.delete(ATTEMPT).catch(() => undefined); // it would be refused again
    const reason = found.error ?? `status ${answer.status}`;
    throw new Error(`The server refused the code: ${reason}.`);
  }
  const membership = { name, password, run };
  const before = await readMembership(store);
  if (before && before.run !== run) await forget(store); // data of another run may not fit this one
  await store.set(MEMBERSHIP, membership).catch(() => undefined); // the page says that it does not last
  await store.delete(ATTEMPT).catch(() => undefined);
  return membership;
}

/** Keep a token with a new nonce before they are sent: the server answers the same pair again, if its
    first answer is lost. */
async function beginAttempt(token: string, store: Store): Promise<Attempt | null> {
  const before = ((await store.get(ATTEMPT).catch(() => null)) as Attempt | undefined) ?? null;
  if (!token || before?.token === token) return before;
  const attempt = { token, nonce: bytesToHex(crypto.getRandomValues(new Uint8Array(32))) };
  await store.set(ATTEMPT, attempt).catch(() => undefined);
  return attempt;
}

/** Whether a server that refused a request would refuse it again. */
function isFinal(status: number): boolean {
  return status >= 400 && status < 500 && ![408, 429].includes(status);
}

/** Send an attempt, again while no answer comes or the server is busy. */
async function ask(attempt: Attempt): Promise<Response> {
  for (let pause = 1; ; pause *= 2) {
    const answer = await fetch("join", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(attempt),
    }).catch(() => null);
    if (answer && (answer.ok || isFinal(answer.status) || pause > LONGEST_PAUSE)) return answer;
    if (pause > LONGEST_PAUSE) {
      throw new Error("The server does not answer. Check that this device is in the right network, and reload the page.");
    }
    await new Promise((resolve) => setTimeout(resolve, pause * 1000));
  }
}

export async function readMembership(store: Store): Promise<Membership | null> {
  return ((await store.get(MEMBERSHIP).catch(() => null)) as Membership | undefined) ?? null;
}

/** Remove everything that this page stored. */
export async function forget(store: Store): Promise<void> {
  for (const key of await store.keys().catch(() => [])) await store.delete(key).catch(() => undefined);
}

export async function readData(store: Store): Promise<Dataset | null> {
  return ((await store.get(DATA).catch(() => null)) as Dataset | undefined) ?? null;
}

/** Throws if the browser's storage is full. */
export async function keepData(store: Store, data: Dataset): Promise<void> {
  await store.set(DATA, data);
}

export function makeDoor({ name, password }: Membership): Door {
  const url = new URL("../mqtt", location.href); // a proxy may serve the page below a path of its own
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return { url: url.href, name, password };
}

/** Wait for the card of a run. onTrouble: called with words for the person while it does not come. */
export function readCard(membership: Membership, onTrouble: (words: string) => void): Promise<Card> {
  const topic = new Topics(membership.run, membership.name).card;
  return new Promise((resolve, reject) => {
    let found = false;
    let lost = false;
    const giveUp = (words: string) => void link.close().then(() => reject(new Error(words)));
    const link = openLink(makeDoor(membership), {
      up: () => {
        if (lost) onTrouble("");
        lost = false;
        link.subscribe(topic);
      },
      down: (_, refused) => {
        if (refused) giveUp("The server no longer accepts this device. Ask for a new code, and scan it.");
        else if (!found && !lost) onTrouble("The connection is lost. The page connects again by itself.");
        lost = true;
      },
      message: (_, payload) => {
        try {
          const message = payload.length ? decode(payload) : null;
          if (message?.kind === "goodbye") giveUp(explainGoodbye(message.body));
          if (message?.kind !== "run") return;
          found = true;
          void link.close().then(() => resolve(message.body));
        } catch (error) {
          giveUp(error instanceof Error ? error.message : String(error));
        }
      },
    });
  });
}
