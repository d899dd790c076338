// The graphs in memory. The tasks of one submodel share them, since loading takes long.
import type { Graph, GraphFile } from "./graph";

const SPARE = 3; // graphs that stay open without a user: those of one submodel

type Load = (file: GraphFile, submodel: string) => Promise<Graph>;
interface Entry {
  graph: Promise<Graph>;
  users: number;
}

export class OpenGraphs {
  private readonly entries = new Map<string, Entry>(); // by name, the last released one last

  constructor(private readonly load: Load) {}

  /** Return a graph, which stays open until `release`. Throws what `load` throws. */
  async take(file: GraphFile, submodel: string): Promise<Graph> {
    const key = name(file, submodel);
    const entry = this.entries.get(key) ?? { graph: this.load(file, submodel), users: 0 };
    entry.users += 1;
    this.entries.set(key, entry);
    try {
      return await entry.graph;
    } catch (error) {
      if (this.entries.get(key) === entry) this.entries.delete(key);
      throw error;
    }
  }

  /** Close a graph that `take` returned, unless others use it or it is among the last ones without a user. */
  async release(file: GraphFile, submodel: string): Promise<void> {
    const key = name(file, submodel);
    const entry = this.entries.get(key);
    if (!entry) return;
    entry.users -= 1;
    this.entries.delete(key);
    this.entries.set(key, entry);
    const surplus = [...this.entries].filter(([, one]) => one.users === 0).slice(0, -SPARE);
    for (const [key] of surplus) this.entries.delete(key);
    for (const [, one] of surplus) await (await one.graph).close();
  }
}

function name(file: GraphFile, submodel: string): string {
  return `${file.digest}/${file.kind}/${submodel}`;
}
