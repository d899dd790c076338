/** All runs of the folder, and accuracy and settings of chosen ones side by side. */
import { useEffect, useState } from "preact/hooks";
import { readPart, type Refusal, type Rounds, type RunRow, type Setting } from "./api";
import { linkTo } from "./address";
import { Lines, type Series } from "./charts";
import { Figure } from "./figure";
import { clock, plain, ratio } from "./format";
import { groupScores } from "./overview";

export function Runs({ runs, compared }: { runs: RunRow[]; compared: string[] }) {
  if (!runs.length) {
    return (
      <section class="card">
        <h2>No run in this folder yet.</h2>
        <p>
          Start one with <code>coordinator start --method fedfa</code>.
        </p>
      </section>
    );
  }
  const choose = (run: string, wanted: boolean) => {
    const chosen = wanted ? [...compared, run] : compared.filter((name) => name !== run);
    location.hash = `#/?${chosen.map((name) => `run=${encodeURIComponent(name)}`).join("&")}`;
  };
  return (
    <>
      <section class="card">
        <div class="scroll" tabIndex={0} role="region" aria-label="Runs">
          <table>
            <thead>
              <tr>
                {["run", "compare", "state", "method", "model", "data", "rounds", "accuracy", "worst submodel", "last written"].map(
                  (title) => (
                    <th scope="col" key={title} class={/accuracy|worst/.test(title) ? "number" : undefined}>
                      {title}
                    </th>
                  ),
                )}
              </tr>
            </thead>
            <tbody>
              {[...runs].reverse().map((one) => (
                <tr key={one.run}>
                  <th scope="row">
                    <a href={linkTo(one.run)}>{one.run}</a>
                  </th>
                  <td>
                    <input
                      type="checkbox"
                      aria-label={`Compare ${one.run}`}
                      checked={compared.includes(one.run)}
                      onInput={(event) => choose(one.run, event.currentTarget.checked)}
                    />
                  </td>
                  <td class={one.error && "text"}>{one.error ? `${one.state}: ${one.error}` : one.state}</td>
                  <td>{one.method}</td>
                  <td>{one.model}</td>
                  <td>{one.data}</td>
                  <td>{one.error ? "" : `${one.rounds_done} of ${one.rounds}`}</td>
                  <td class="number">{ratio(one.accuracy)}</td>
                  <td class="number">{ratio(one.worst_accuracy)}</td>
                  <td>{one.updated && clock(one.updated)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </section>
      {compared.length > 0 && <Comparison runs={compared} />}
    </>
  );
}

interface Compared {
  run: string;
  longest: Series | null;
  settings: Map<string, string>;
  problem: string;
}

async function readRun(run: string): Promise<Compared> {
  try {
    const [{ scores }, settings] = await Promise.all([
      readPart<Rounds>(run, "rounds"),
      readPart<Setting[]>(run, "settings"),
    ]);
    const longest = groupScores(scores).reduce<Series | null>(
      (best, one) => (best && best.points.length > one.points.length ? best : one),
      null,
    );
    return { run, longest, settings: new Map(settings.map((one) => [one.key, plain(one.value)])), problem: "" };
  } catch (error) {
    return { run, longest: null, settings: new Map(), problem: (error as Refusal).message };
  }
}

function Comparison({ runs }: { runs: string[] }) {
  const [found, setFound] = useState<Compared[]>([]);
  useEffect(() => {
    let current = true;
    void Promise.all(runs.map(readRun)).then((all) => current && setFound(all));
    return () => {
      current = false;
    };
  }, [runs.join("\n")]);
  const read = found.filter((one) => !one.problem);
  const series = read.map(({ run, longest }) => ({
    name: longest ? `${run}: ${longest.name}` : run,
    points: longest?.points ?? [],
  }));
  const rows = series.flatMap((one) =>
    one.points.map(([round, value]) => [one.name, round, Number(ratio(value))]),
  );
  return (
    <>
      {found.filter((one) => one.problem).map((one) => (
        <p role="alert" class="alert" key={one.run}>
          {`${one.run}: ${one.problem}`}
        </p>
      ))}
      <Figure
        title="Accuracy of each run"
        note="Of the submodel that was evaluated most often."
        empty={found.length ? "None of these runs has been evaluated yet." : "Loading…"}
        numbers={{ head: ["run", "round", "accuracy"], rows }}
      >
        <Lines label="Accuracy of each run by round" series={series} show={ratio} most={1} />
      </Figure>
      {read.length > 1 && <Differences runs={read} />}
    </>
  );
}

/** The settings that differ between runs. */
function Differences({ runs }: { runs: Compared[] }) {
  const keys = [...new Set(runs.flatMap((one) => [...one.settings.keys()]))];
  const rows = keys
    .map((key) => [key, ...runs.map((one) => one.settings.get(key) ?? "–")])
    .filter(([, ...values]) => new Set(values).size > 1);
  return <Figure title="Settings that differ" empty="The settings of these runs are the same." numbers={{ head: ["setting", ...runs.map((one) => one.run)], rows }} />;
}
