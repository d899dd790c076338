/** The round under way: each device's task from stage to stage, with its lease and the deadline. */
import { scaleLinear } from "d3-scale";
import type { Now, Status, TaskCourse } from "./api";
import { MOST_ROWS, shorten, useWidth } from "./charts";
import { Figure } from "./figure";
import { seconds } from "./format";
import { describePhase } from "./overview";

const ROW = 22;
const STAGES: [stage: string, letter: string, meaning: string][] = [
  ["fetch", "F", "fetches the weights"],
  ["train", "T", "trains"],
  ["calibrate", "C", "calibrates"],
  ["evaluate", "E", "evaluates"],
  ["send", "S", "sends the update"],
  ["wait", "W", "waits for its turn to be folded"],
  ["lost", "L", "is not connected"],
];

export interface Span {
  stage: string;
  from: number;
  to: number;
}

const isOpen = (course: TaskCourse) => STAGES.some(([stage]) => stage === course.stages.at(-1)?.[0]);

/** The stages of a task with their ends; the last one of an open task lasts until now. */
export function listSpans(course: TaskCourse, elapsed: number): Span[] {
  const ends = [...course.stages.slice(1).map(([, begin]) => begin), Math.max(elapsed, 0)];
  return course.stages
    .map(([stage, from], index) => ({ stage, from, to: Math.max(ends[index] ?? from, from) }))
    .filter((span) => STAGES.some(([stage]) => stage === span.stage));
}

export function RoundView({ status }: { status: Status }) {
  const now = status.now;
  if (!now?.courses.length) {
    return (
      <section class="card">
        <h2>{describePhase(status)}</h2>
        <p class="quiet">No task to show yet.</p>
      </section>
    );
  }
  return (
    <Figure
      title={`Tasks of round ${now.round}`}
      file="tasks-now"
      note={describeTimes(status, now)}
      numbers={listNumbers(now)}
    >
      <Chart now={now} label={`Stages of each device's task in round ${now.round}`} />
    </Figure>
  );
}

function describeTimes(status: Status, now: Now): string {
  const open = now.courses.filter(isOpen);
  const dues = open.flatMap((one) => (one.due === null ? [] : [one.due]));
  const parts = [describePhase(status), `${seconds(now.elapsed)} since this phase began.`];
  if (open.length) parts.push(`${open.length} of ${now.courses.length} tasks are open.`);
  if (open.length && now.limit !== null) parts.push(`The phase ends at the latest after ${seconds(now.limit)}.`);
  if (dues.length) parts.push(`The next lease ends after ${seconds(Math.min(...dues))}.`);
  return parts.join(" ");
}

function listNumbers(now: Now) {
  const at = (course: TaskCourse, ...names: string[]) => {
    const found = course.stages.filter(([stage]) => names.includes(stage)).at(-1);
    return found ? Number(found[1].toFixed(2)) : null;
  };
  return {
    head: [
      ...["agent", "submodel", "stage", "sent to it at (s)", "trains from (s)", "sends from (s)"],
      ...["waits from (s)", "settled at (s)", "lease ends at (s)", "late"],
    ],
    rows: now.courses.map((one) => [
      one.agent,
      one.submodel,
      one.stages.at(-1)?.[0] ?? "",
      at(one, "fetch"),
      at(one, "train", "calibrate", "evaluate"),
      at(one, "send"),
      at(one, "wait"),
      isOpen(one) ? null : Number(one.stages.at(-1)?.[1].toFixed(2)),
      one.due === null ? null : Number(one.due.toFixed(2)),
      one.late ? "yes" : "no",
    ]),
  };
}

/** The last second of the axis: with the leases and the deadline, unless they are far away. */
function findEnd(now: Now, courses: TaskCourse[]): number {
  const elapsed = Math.max(now.elapsed, 1);
  const open = courses.filter(isOpen);
  const marks = open.length ? [now.limit, ...open.map((one) => one.due)] : [];
  const near = marks.filter((mark): mark is number => mark !== null && mark <= 3 * elapsed);
  return 1.05 * Math.max(elapsed, ...near);
}

function Chart({ now, label }: { now: Now; label: string }) {
  const { ref, width } = useWidth();
  // a calibration or an evaluation has a task for each of an agent's submodels
  const several = new Set(now.courses.map((one) => one.agent)).size < now.courses.length;
  const left = width < 500 ? (several ? 150 : 92) : several ? 210 : 130;
  const crowded = now.courses.length > MOST_ROWS;
  const order = crowded ? [...now.courses.filter(isOpen), ...now.courses.filter((one) => !isOpen(one))] : now.courses;
  const shown = order.slice(0, MOST_ROWS);
  const first = Math.min(0, ...shown.map((one) => one.stages[0]?.[1] ?? 0));
  const end = findEnd(now, shown);
  const x = scaleLinear([first, end], [left, width - 24]);
  const height = shown.length * ROW + 26;
  const used = STAGES.filter(([stage]) => shown.some((one) => one.stages.some(([name]) => name === stage)));
  return (
    <div ref={ref}>
      <svg width={width} height={height} role="img" aria-label={label}>
        <g class="axes">
          {x.ticks(width < 500 ? 4 : 8).map((tick) => (
            <g key={tick}>
              <line x1={x(tick)} x2={x(tick)} y1={20} y2={height} />
              <text x={x(tick)} y={13} text-anchor="middle">
                {end < 120 ? `${tick} s` : seconds(tick)}
              </text>
            </g>
          ))}
        </g>
        {shown.map((course, line) => (
          <Row
            key={`${course.agent} ${course.submodel}`}
            course={course}
            name={several ? `${course.agent} ${course.submodel}` : course.agent}
            y={22 + line * ROW}
            x={x}
            left={left}
            elapsed={now.elapsed}
          />
        ))}
        {now.limit !== null && now.limit <= end && (
          <g class="deadline">
            <line x1={x(now.limit)} x2={x(now.limit)} y1={20} y2={height} />
            <title>{`deadline: ${seconds(now.limit)}`}</title>
          </g>
        )}
      </svg>
      {crowded && <p class="quiet">{`${MOST_ROWS} of ${now.courses.length} tasks; the table and the CSV have all.`}</p>}
      <ul class="legend">
        {used.map(([stage, letter, meaning]) => (
          <li key={stage} class={`c${findColour(stage)}`}>
            <span class="key">{letter}</span>
            {meaning}
          </li>
        ))}
        {shown.some((one) => isOpen(one) && one.due !== null && one.due <= end) && (
          <li>
            <span class="key">]</span>its lease ends
          </li>
        )}
        {now.limit !== null && now.limit <= end && (
          <li>
            <span class="key">┊</span>the deadline
          </li>
        )}
      </ul>
    </div>
  );
}

const findColour = (stage: string) => STAGES.findIndex(([name]) => name === stage);

function Row(props: {
  course: TaskCourse;
  name: string;
  x: ReturnType<typeof scaleLinear<number, number>>;
  y: number;
  left: number;
  elapsed: number;
}) {
  const { course, name, x, y, left, elapsed } = props;
  const spans = listSpans(course, elapsed);
  const [outcome, settled] = course.stages.at(-1) ?? ["", 0];
  const due = isOpen(course) && course.due !== null ? course.due : null;
  return (
    <g>
      <text x={left - 8} y={y + 14} text-anchor="end">
        {shorten(name, left)}
        <title>{`${course.agent}: ${course.submodel}`}</title>
      </text>
      {spans.map((span) => {
        const [stage, letter, meaning] = STAGES[findColour(span.stage)] ?? ["", "", ""];
        const wide = Math.max(1, x(span.to) - x(span.from));
        return (
          <g key={`${span.stage} ${span.from}`} class={`cell c${findColour(stage)}`}>
            <rect x={x(span.from)} y={y + 1} width={wide} height={ROW - 5} />
            {wide >= 16 && (
              <text x={x(span.from) + wide / 2} y={y + 13} text-anchor="middle">
                {letter}
              </text>
            )}
            <title>{`${course.agent} ${meaning}: ${seconds(span.to - span.from)}, from ${span.from.toFixed(1)} s`}</title>
          </g>
        );
      })}
      {!isOpen(course) && (
        <text x={x(settled) + 4} y={y + 14} class={outcome === "folded" ? "done" : "alert"}>
          {outcome === "folded" ? "✓" : `✕ ${outcome}`}
          <title>{`${course.agent}: ${outcome} after ${seconds(settled)}`}</title>
        </text>
      )}
      {due !== null && x(due) <= x.range()[1]! && (
        <text x={x(due)} y={y + 14} class="lease" text-anchor="middle">
          ]<title>{`the lease of ${course.agent} ends after ${seconds(due)}`}</title>
        </text>
      )}
      {course.late && <text x={x(Math.max(elapsed, 0)) + 6} y={y + 14} class="alert">late</text>}
    </g>
  );
}
