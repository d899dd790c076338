/** Buttons that pause, resume or stop a running coordinator. Each asks for the token. */
import { useRef, useState } from "preact/hooks";
import { type Refusal, sendRequest, type Status } from "./api";

const COMMANDS = [
  ["pause", "Pause", "Start no further round until the run is resumed."],
  ["resume", "Resume", "Start rounds again."],
  ["stop", "Stop", "End the coordinator after the current round. The run can be resumed."],
  ["stop now", "Stop now", "End the coordinator at once. The round in progress can be resumed."],
] as const;
type Command = (typeof COMMANDS)[number];

export function Control({ status }: { status: Status }) {
  const [asked, setAsked] = useState<Command | null>(null);
  const [answer, setAnswer] = useState("");
  const [problem, setProblem] = useState("");
  const [token, setToken] = useState("");
  const dialog = useRef<HTMLDialogElement>(null);
  if (status.state !== "running") return null;
  const ask = (command: Command) => {
    setAsked(command);
    setAnswer("");
    setProblem("");
    dialog.current?.showModal();
  };
  const send = (event: Event) => {
    event.preventDefault();
    if (!asked) return;
    sendRequest(status.run, asked[0], token).then(
      () => {
        setToken("");
        setAnswer(`${asked[1]}: requested.`);
        dialog.current?.close();
      },
      (error: Refusal) => setProblem(error.message),
    );
  };
  const paused = status.requests?.paused ?? false;
  return (
    <div class="control">
      {COMMANDS.filter(([name]) => name !== (paused ? "pause" : "resume")).map((command) => (
        <button type="button" key={command[0]} onClick={() => ask(command)}>
          {command[1]}
        </button>
      ))}
      <span role="status">{answer}</span>
      <dialog ref={dialog} aria-labelledby="asked">
        <form onSubmit={send}>
          <h2 id="asked">{asked?.[1]} run {status.run}?</h2>
          <p>{asked?.[2]}</p>
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
            <button type="submit">{asked?.[1]}</button>
            <button type="button" onClick={() => dialog.current?.close()}>
              Cancel
            </button>
          </p>
          {problem && <p role="alert" class="alert">{problem}</p>}
        </form>
      </dialog>
    </div>
  );
}
