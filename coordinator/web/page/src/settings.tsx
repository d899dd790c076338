/** The run's settings, those that differ from their defaults first. */
import { Part } from "./app";
import type { Setting, Status } from "./api";
import { Figure } from "./figure";
import { plain } from "./format";

export function Settings({ status }: { status: Status }) {
  return (
    <Part<Setting[]> run={status.run} part="settings" version={0}>
      {(settings) => {
        const differs = (one: Setting) => plain(one.value) !== plain(one.default);
        const head = ["setting", "value", "default", "meaning"];
        const list = (found: Setting[]) =>
          found.map((one) => [one.key, plain(one.value), plain(one.default), one.description]);
        const changed = list(settings.filter(differs));
        const rest = list(settings.filter((one) => !differs(one)));
        return (
          <>
            <Figure title="Changed settings" numbers={{ head, rows: changed }} />
            <Figure title="Settings at their defaults" numbers={{ head, rows: rest }} />
          </>
        );
      }}
    </Part>
  );
}
