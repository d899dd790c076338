// What the page lacks in this browser, and how to have it.

// what browsers give a page only over HTTPS, or on the machine that serves it
const INSECURE = [
  "show the network what the camera sees: take a picture instead",
  "read the motion sensors",
  "keep the screen on while it trains, so touch it now and then",
  "see the battery",
  "keep others in the same network from reading what it sends",
];

export function Lacks({ lasting }: { lasting: boolean }) {
  if (isSecureContext && lasting) return null;
  return (
    <section class="card">
      <h2>What this page cannot do here</h2>
      {!lasting && <p>This browser stores nothing, as in a private window, or when its storage is full. After a reload you need a new code.</p>}
      {!isSecureContext && (
        <>
          <p>The page was not opened over HTTPS. Therefore it cannot</p>
          <ul>{INSECURE.map((lack) => <li key={lack}>{lack}</li>)}</ul>
          <p>
            Ask the person who runs the coordinator to serve this page over HTTPS, for example with
            {" "}<code>coordinator start --phones-tls</code>.
          </p>
        </>
      )}
    </section>
  );
}
