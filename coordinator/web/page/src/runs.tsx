/** All runs of the folder, and the accuracy of chosen ones side by side. */
import { useEffect, useState } from "preact/hooks";
import { readPart, type Rounds, type RunRow } from "./api";
import { linkTo } from "./address";
import { Lines, type Series } from "./charts";
import { Figure } from "./figure";
import { clock, ratio } from "./format";
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
                {["compare", "run", "state", "method", "model", "data", "rounds", "accuracy", "worst submodel", "last written"].map(
                  (title) => (
                    <th scope="col" key={title}>
                      {title}
                    </th>
                  ),
                )}
              </tr>
            </thead>
            <tbody>
              {[...runs].reverse().map((one) => (
                <tr key={one.run}>
                  <td>
                    <input
                      type="checkbox"
                      aria-label={`Compare ${one.run}`}
                      checked={compared.includes(one.run)}
                      onInput={(event) => choose(one.run, event.currentTarget.checked)}
                    />
                  </td>
                  <th scope="row">
                    <a href={linkTo(one.run)}>{one.run}</a>
                  </th>
                  <td>{one.error ? `${one.state}: ${one.error}` : one.state}</td>
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

function Comparison({ runs }: { runs: string[] }) {
  const [series, setSeries] = useState<Series[]>([]);
  useEffect(() => {
    void Promise.all(
      runs.map(async (name) => {
        const { scores } = await readPart<Rounds>(name, "rounds");
        const longest = groupScores(scores).reduce<Series | null>(
          (best, one) => (best && best.points.length > one.points.length ? best : one),
          null,
        );
        return { name: longest ? `${name}: ${longest.name}` : name, points: longest?.points ?? [] };
      }),
    ).then(setSeries, () => setSeries([]));
  }, [runs.join("\n")]);
  const rows = series.flatMap((one) =>
    one.points.map(([round, value]) => [one.name, round, Number(ratio(value))]),
  );
  return (
    <Figure
      title="Accuracy of each run"
      note="Of the submodel that was evaluated most often."
      numbers={{ head: ["run", "round", "accuracy"], rows }}
    >
      <Lines label="Accuracy of each run by round" series={series} show={ratio} most={1} />
    </Figure>
  );
}
