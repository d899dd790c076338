// The page of a phone: it joins, chooses data, and shows the training.
import { useEffect, useState } from "preact/hooks";
import type { Card } from "../agent/messages";
import { explainMisfit } from "../agent/misfit";
import type { Store } from "../agent/store";
import { type Dataset, describeData } from "../trainer/examples";
import { DataChoice } from "./data_choice";
import { explainLack } from "./device";
import { Lacks } from "./lacks";
import { join, keepData, makeDoor, type Membership, openStore, readCard, readData, readMembership, takeToken } from "./membership";
import { Participation } from "./participation";
import { TokenForm } from "./token_form";

/** What the page knows so far, in the order in which it learns it. */
interface Known {
  store?: Store;
  lasting?: boolean;
  membership?: Membership | null;
  card?: Card;
  data?: Dataset;
}

export function App() {
  const [known, setKnown] = useState<Known>({});
  const [trouble, setTrouble] = useState(explainLack);
  const learn = (more: Known) => setKnown((now) => ({ ...now, ...more }));
  const explain = (error: unknown) => setTrouble(error instanceof Error ? error.message : String(error));
  const { store, membership, card, data } = known;

  const enter = async (token: string) => {
    const opened = store ? { store } : await openStore();
    learn(opened);
    setTrouble(explainLack());
    const before = await readMembership(opened.store);
    // a code works once, and may be opened again on a device that has joined with it
    const joined = await join(token, opened.store).catch((error) => {
      if (!before) throw error;
      if (!token.startsWith(`${before.name}@`)) {
        setTrouble(`${error.message} The device goes on in the run ${before.run}, which it joined before.`);
      }
      return null;
    });
    if (joined && !(await readMembership(opened.store))) learn({ lasting: false });
    learn({ membership: joined ?? before });
  };
  useEffect(() => void (trouble || enter(takeToken()).catch((error) => { explain(error); learn({ membership: null }); })), []);
  useEffect(() => {
    if (!store || !membership) return;
    const begin = async () => {
      const found = await readCard(membership, setTrouble);
      const kept = await readData(store);
      const misfit = kept ? explainMisfit(found, describeData(kept)) : "";
      if (misfit) setTrouble(misfit);
      learn({ card: found, data: misfit ? undefined : kept ?? undefined });
    };
    begin().catch((error) => { explain(error); learn({ membership: null }); });
  }, [store, membership]);

  const choose = async (chosen: Dataset) => {
    const misfit = card && explainMisfit(card, describeData(chosen));
    if (misfit) return setTrouble(misfit);
    setTrouble("");
    if (store) {
      await keepData(store, chosen).catch(() => setTrouble("The browser's storage is full: choose your data again after a reload."));
    }
    learn({ data: chosen });
  };
  return (
    <main class="phone">
      <h1>Espalier</h1>
      {trouble && <p class="alert" role="alert">{trouble}</p>}
      {membership === null && <TokenForm onToken={(token) => enter(token).catch(explain)} />}
      {membership && !card && <p role="status">Looking for the run {membership.run} …</p>}
      {membership && card && !data && <DataChoice card={card} name={membership.name} onChoose={choose} />}
      {membership && data && card && store && (
        <Participation door={makeDoor(membership)} run={membership.run} data={data} store={store} />
      )}
      {membership && <Lacks lasting={known.lasting ?? true} />}
    </main>
  );
}
