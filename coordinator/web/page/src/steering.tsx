/** Buttons for commands to the coordinator. Each asks for what it needs, and for the token. */
import { useRef, useState } from "preact/hooks";
import { type Refusal, sendCommand, type Status } from "./api";

export interface Field {
  name: string;
  label: string;
  hint?: string;
  /** Values to choose from; without them, a text. */
  choices?: string[];
  /** A box to tick, whose value is `yes`. */
  box?: boolean;
  needed?: boolean;
}

export interface Command {
  name: string;
  title: string;
  about: string;
  fields?: Field[];
}

const CONTROL: Command[] = [
  { name: "pause", title: "Pause", about: "Start no further round until the run is resumed." },
  { name: "resume", title: "Resume", about: "Start rounds again." },
  {
    name: "stop",
    title: "Stop",
    about: "End the coordinator after the current round. The run can be resumed.",
  },
  {
    name: "stop now",
    title: "Stop now",
    about: "End the coordinator at once. The round in progress can be resumed.",
  },
];

/** Pause, resume and stop, for a run that is in progress. */
export function Control({ status }: { status: Status }) {
  if (status.state !== "running") return null;
  const useless = status.requests?.paused ? "pause" : "resume";
  return <Steering run={status.run} commands={CONTROL.filter((one) => one.name !== useless)} />;
}

export function Steering(props: { run: string; commands: Command[]; done?: () => void }) {
  const { run, commands, done } = props;
  const [asked, setAsked] = useState<Command | null>(null);
  const [fields, setFields] = useState<Record<string, string>>({});
  const [answer, setAnswer] = useState<string[]>([]);
  const [problem, setProblem] = useState("");
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  const dialog = useRef<HTMLDialogElement>(null);
  const ask = (command: Command) => {
    setAsked(command);
    const first = (command.fields ?? []).map((one) => [one.name, one.choices?.[0] ?? ""]);
    setFields(Object.fromEntries(first) as Record<string, string>);
    setAnswer([]);
    setProblem("");
    setToken("");
    dialog.current?.showModal();
  };
  const send = (event: Event) => {
    event.preventDefault();
    if (!asked || busy) return;
    setBusy(true);
    setProblem("");
    sendCommand(run, { ...fields, command: asked.name, token })
      .then(
        ({ lines }) => {
          setToken("");
          setAnswer(lines.length ? lines : [`${asked.title}: requested.`]);
          dialog.current?.close();
          done?.();
        },
        (error: Refusal) => setProblem(error.message),
      )
      .finally(() => setBusy(false));
  };
  return (
    <div class="control">
      {commands.map((command) => (
        <button type="button" key={command.title} onClick={() => ask(command)}>
          {command.title}
        </button>
      ))}
      <span role="status">
        {answer.map((line) => (
          <span key={line} class="line">
            {line}
          </span>
        ))}
      </span>
      <dialog ref={dialog} aria-labelledby="asked">
        <form onSubmit={send}>
          <h2 id="asked">{`${asked?.title}: run ${run}`}</h2>
          <p>{asked?.about}</p>
          {asked?.fields?.map((field) => (
            <Input
              key={`${asked.title} ${field.name}`}
              field={field}
              value={fields[field.name] ?? ""}
              set={(value) => setFields({ ...fields, [field.name]: value })}
            />
          ))}
          <label for="again">Token</label>
          <input
            id="again"
            type="password"
            autocomplete="off"
            required
            value={token}
            onInput={(event) => setToken(event.currentTarget.value)}
          />
          <p class="tools">
            <button type="submit" disabled={busy}>
              {asked?.title}
            </button>
            <button type="button" onClick={() => dialog.current?.close()}>
              Cancel
            </button>
          </p>
          {busy && <p role="status">Working… An export can take minutes.</p>}
          {problem && <p role="alert" class="alert">{problem}</p>}
        </form>
      </dialog>
    </div>
  );
}

function Input(props: { field: Field; value: string; set: (value: string) => void }) {
  const { field, value, set } = props;
  const id = `field-${field.name}`;
  if (field.box) {
    return (
      <label class="box">
        <input
          type="checkbox"
          checked={value === "yes"}
          onInput={(event) => set(event.currentTarget.checked ? "yes" : "")}
        />
        {field.label}
      </label>
    );
  }
  return (
    <>
      <label for={id}>{field.label}</label>
      {field.choices ? (
        <select id={id} value={value} onInput={(event) => set(event.currentTarget.value)}>
          {field.choices.map((choice) => (
            <option key={choice} value={choice}>
              {choice}
            </option>
          ))}
        </select>
      ) : (
        <input
          id={id}
          autocomplete="off"
          required={field.needed}
          placeholder={field.hint}
          value={value}
          onInput={(event) => set(event.currentTarget.value)}
        />
      )}
    </>
  );
}
