/** Charts as SVG. Series differ in colour, dashes and a label, so that no chart needs colour. */
import { scaleLinear } from "d3-scale";
import { useEffect, useRef, useState } from "preact/hooks";

export interface Series {
  name: string;
  points: [number, number][];
}

/** Rows that a chart shows at most; its table and CSV have all. */
export const MOST_ROWS = 60;
const HEIGHT = 240;
const EDGE = { top: 12, bottom: 28, left: 62 };
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const COLOURS = 8;

/** Neighbouring series differ in their dashes, and all of the first 32 in colour and dashes. */
const dash = (index: number) => DASHES[(index + Math.floor(index / COLOURS)) % DASHES.length];

/** The width of an element, which follows the window. */
export function useWidth() {
  const ref = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(600);
  useEffect(() => {
    const place = ref.current;
    if (!place) return;
    const observer = new ResizeObserver(() => setWidth(place.clientWidth));
    observer.observe(place);
    return () => observer.disconnect();
  }, []);
  return { ref, width: Math.max(width, 240) };
}

/** A name that fits into this many pixels. */
export function shorten(name: string, width: number): string {
  const most = Math.max(Math.floor((width - 8) / 6.6), 2);
  return name.length > most ? `${name.slice(0, most - 1)}…` : name;
}

function Axes(props: {
  x: ReturnType<typeof scaleLinear<number, number>>;
  y: ReturnType<typeof scaleLinear<number, number>>;
  right: number;
  show: (value: number) => string;
}) {
  const { x, y, right, show } = props;
  const whole = x.ticks(6).filter((tick) => Number.isInteger(tick));
  return (
    <g class="axes">
      {y.ticks(5).map((tick) => (
        <g key={tick}>
          <line x1={EDGE.left} x2={right} y1={y(tick)} y2={y(tick)} />
          <text x={EDGE.left - 6} y={y(tick) + 4} text-anchor="end">
            {show(tick)}
          </text>
        </g>
      ))}
      {whole.map((tick) => (
        <text key={tick} x={x(tick)} y={HEIGHT - 8} text-anchor="middle">
          {tick}
        </text>
      ))}
      <text x={0} y={HEIGHT - 8}>
        round
      </text>
    </g>
  );
}

/** Lines over rounds, with a legend of those that have a name. */
export function Lines(props: {
  label: string;
  series: Series[];
  show: (value: number) => string;
  most?: number;
}) {
  const { label, series, show, most } = props;
  const { ref, width } = useWidth();
  const all = series.flatMap((one) => one.points);
  const rounds = all.map(([round]) => round);
  const [first, last] = [Math.min(...rounds), Math.max(...rounds)];
  const right = width - 12;
  const x = scaleLinear([first, Math.max(last, first + 1)], [EDGE.left, right]);
  const top = most ?? (Math.max(...all.map(([, value]) => value)) || 1);
  const y = scaleLinear([0, top], [HEIGHT - EDGE.bottom, EDGE.top]);
  return (
    <div ref={ref}>
      <svg width={width} height={HEIGHT} role="img" aria-label={label}>
        <Axes x={x} y={y} right={right} show={show} />
        {series.map((one, index) => (
          <g key={one.name} class={`series c${index % COLOURS}`}>
            <polyline
              points={one.points.map(([round, value]) => `${x(round)},${y(value)}`).join(" ")}
              stroke-dasharray={dash(index)}
            />
            {one.points.map(([round, value]) => (
              <circle key={round} cx={x(round)} cy={y(value)} r={one.points.length > 60 ? 0 : 3}>
                <title>{`${one.name && `${one.name}, `}round ${round}: ${show(value)}`}</title>
              </circle>
            ))}
          </g>
        ))}
      </svg>
      <Legend names={series.map((one) => one.name).filter(Boolean)} />
    </div>
  );
}

export function Legend({ names }: { names: string[] }) {
  return (
    <ul class="legend">
      {names.map((name, index) => (
        <li key={name} class={`c${index % COLOURS}`}>
          <svg width="22" height="10" aria-hidden="true">
            <line
              x1="0"
              x2="22"
              y1="5"
              y2="5"
              stroke-dasharray={dash(index)}
            />
          </svg>
          {name}
        </li>
      ))}
    </ul>
  );
}

/** Which submodel each device trained in each round. A cross marks an update that did not count. */
export function Assignment(props: {
  label: string;
  names: string[];
  rows: { agent: string; cells: Map<number, { submodel: string; folded: boolean }> }[];
  rounds: number[];
}) {
  const { label, names, rows, rounds } = props;
  const { ref, width } = useWidth();
  const left = width < 500 ? 92 : 130;
  const step = Math.max(18, Math.min(28, (width - left - 8) / Math.max(rounds.length, 1)));
  const shown = rounds.slice(-Math.floor((width - left - 8) / step));
  const height = rows.length * 20 + 24;
  return (
    <div ref={ref}>
      <svg width={width} height={height} role="img" aria-label={label}>
        {rows.map((row, line) => (
          <g key={row.agent}>
            <text x={left - 8} y={line * 20 + 14} text-anchor="end">
              {shorten(row.agent, left)}
              <title>{row.agent}</title>
            </text>
            {shown.map((round, column) => {
              const cell = row.cells.get(round);
              if (!cell) return null;
              const index = names.indexOf(cell.submodel);
              const [x, y] = [left + column * step, line * 20 + 1];
              return (
                <g key={round} class={`cell c${Math.max(index, 0) % COLOURS}`}>
                  <rect x={x} y={y} width={step - 2} height={17} />
                  <text x={x + (step - 2) / 2} y={y + 13} text-anchor="middle">
                    {index + 1}
                  </text>
                  {!cell.folded && (
                    <path d={`M${x} ${y} l${step - 2} 17 m0 -17 l${2 - step} 17`} />
                  )}
                  <title>
                    {`${row.agent}, round ${round}: ${cell.submodel}` +
                      (cell.folded ? "" : ", its update did not count")}
                  </title>
                </g>
              );
            })}
          </g>
        ))}
        <text class="axes" x={left} y={height - 4}>{`round ${shown[0]} to ${shown.at(-1)}`}</text>
      </svg>
      <ul class="legend">
        {names.map((name, index) => (
          <li key={name} class={`c${index % COLOURS}`}>
            <span class="key">{index + 1}</span>
            {name}
          </li>
        ))}
      </ul>
    </div>
  );
}

/** How often each device trained each region: a row per device, a column per submodel. */
export function Trainings(props: {
  label: string;
  names: string[];
  rows: { agent: string; counts: number[] }[];
}) {
  const { label, names, rows } = props;
  const { ref, width } = useWidth();
  const left = width < 500 ? 92 : 130;
  const step = Math.max(24, Math.min(56, (width - left - 8) / Math.max(names.length, 1)));
  const most = Math.max(1, ...rows.flatMap((row) => row.counts));
  return (
    <div ref={ref}>
      <div class="scroll" tabIndex={0} role="region" aria-label={label}>
        <svg
          width={left + names.length * step + 4}
          height={rows.length * 20 + 22}
          role="img"
          aria-label={label}
          class="wide"
        >
          {names.map((name, column) => (
            <text key={name} x={left + (column + 0.5) * step} y={13} text-anchor="middle" class="axes">
              {column + 1}
              <title>{name}</title>
            </text>
          ))}
          {rows.map((row, line) => (
            <g key={row.agent} class="corner">
              <text x={left - 8} y={line * 20 + 34} text-anchor="end">
                {shorten(row.agent, left)}
                <title>{row.agent}</title>
              </text>
              {row.counts.map((count, column) => {
                const [x, y] = [left + column * step, line * 20 + 21];
                return (
                  <g key={names[column]}>
                    <rect x={x} y={y} width={step - 2} height={17} fill-opacity={0.5 * (count / most)} />
                    <text x={x + (step - 2) / 2} y={y + 13} text-anchor="middle">
                      {count}
                    </text>
                    <title>{`${row.agent} trained ${names[column]} ${count} times`}</title>
                  </g>
                );
              })}
            </g>
          ))}
        </svg>
      </div>
      <ol class="legend">
        {names.map((name, column) => (
          <li key={name}>
            <span class="key">{column + 1}</span>
            {name}
          </li>
        ))}
      </ol>
    </div>
  );
}

interface Corner {
  name: string;
  width: number;
  depth: number;
  updates: number | null;
}

/** The share of the width at the right of a corner that the next narrower one leaves visible. */
const findStrip = (one: Corner, all: Corner[]) =>
  one.width - Math.max(0, ...all.filter((other) => other.width < one.width).map((other) => other.width));

/** The network as nested corners: a rectangle per submodel, as wide as its channels and as high as
 * its blocks. */
export function Corners(props: { label: string; submodels: Corner[] }) {
  const { ref, width } = useWidth();
  const deepest = Math.max(...props.submodels.map((one) => one.depth), 1);
  const size = Math.min(width - 2, 640);
  const tall = size < 420 ? 0.7 : 0.4;
  const largest = [...props.submodels].sort((a, b) => b.width * b.depth - a.width * a.depth);
  const most = Math.max(...props.submodels.map((one) => one.updates ?? 0), 1);
  return (
    <div ref={ref}>
      <svg width={size + 2} height={size * tall + 2} role="img" aria-label={props.label}>
        {largest.map((one) => {
          const [w, h] = [one.width * size, (one.depth / deepest) * size * tall];
          return (
            <g key={one.name} class="corner">
              <rect x={1} y={1} width={w} height={h} class="ground" />
              <rect
                x={1}
                y={1}
                width={w}
                height={h}
                fill-opacity={0.06 + 0.5 * ((one.updates ?? 0) / most)}
              >
                <title>{`${one.name}: trained by ${one.updates ?? "an unknown number of"} updates`}</title>
              </rect>
              <text x={w - 4} y={h - 20} text-anchor="end">
                {shorten(one.name, findStrip(one, props.submodels) * size)}
              </text>
              <text x={w - 4} y={h - 5} text-anchor="end">
                {one.updates ?? "?"}
              </text>
            </g>
          );
        })}
      </svg>
    </div>
  );
}
