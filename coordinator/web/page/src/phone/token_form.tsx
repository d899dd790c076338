// Ask for the token, where the page was opened without a code.
import { useState } from "preact/hooks";
import { readToken } from "./membership";

export function TokenForm({ onToken }: { onToken(token: string): void }) {
  const [token, setToken] = useState("");
  return (
    <section class="card">
      <h2>Join a run</h2>
      <p>
        Scan the code that <code>coordinator enroll NAME --phone</code> prints, with the camera of this device. Or paste the address or the
        token that you were given.
      </p>
      <form onSubmit={(event) => { event.preventDefault(); onToken(readToken(token)); }}>
        <label>
          Token
          <input value={token} onInput={(event) => setToken(event.currentTarget.value)} autocomplete="off" spellcheck={false} required />
        </label>
        <button type="submit">Join</button>
      </form>
    </section>
  );
}
