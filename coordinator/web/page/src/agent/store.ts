// What a device keeps between visits of the page: weights, graphs, and updates without receipt.

/** A store of values by name, such as IndexedDB. All may fail, for example when the disk is full. */
export interface Store {
  get(key: string): Promise<unknown>;
  set(key: string, value: unknown): Promise<void>;
  delete(key: string): Promise<void>;
  keys(): Promise<string[]>;
}

/** A store in memory, which ends with the process. */
export function openMemoryStore(): Store {
  const values = new Map<string, unknown>();
  return {
    get: async (key) => values.get(key),
    set: async (key, value) => void values.set(key, value),
    delete: async (key) => void values.delete(key),
    keys: async () => [...values.keys()],
  };
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error); // DOMException is an Error, too
  if (error.name === "QuotaExceededError") return "its storage is full";
  return error.message || error.name;
}

/** A store that, while another one fails, keeps values in memory, and says so once.
    onFull: called with the reason. */
export function holdOn(store: Store, onFull: (reason: string) => void): Store {
  const memory = openMemoryStore();
  let told = false;
  const tell = (error: unknown) => {
    if (!told) onFull(describe(error));
    told = true;
  };
  return {
    async get(key) {
      return (await memory.get(key)) ?? store.get(key).catch(tell);
    },
    async set(key, value) {
      try {
        await store.set(key, value);
        await memory.delete(key);
      } catch (error) {
        tell(error);
        await memory.set(key, value);
      }
    },
    async delete(key) {
      await memory.delete(key);
      await store.delete(key).catch(tell);
    },
    async keys() {
      const kept = (await store.keys().catch(tell)) ?? [];
      return [...new Set([...kept, ...(await memory.keys())])];
    },
  };
}
