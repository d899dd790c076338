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
        const changed = {
          head: ["setting", "value", "default", "meaning"],
          rows: settings
            .filter(differs)
            .map((one) => [one.key, plain(one.value), plain(one.default), one.description]),
        };
        const rest = {
          head: ["setting", "default", "meaning"],
          rows: settings
            .filter((one) => !differs(one))
            .map((one) => [one.key, plain(one.default), one.description]),
        };
        return (
          <>
            <Figure title="Changed settings" empty="All settings have their defaults." numbers={changed} />
            <Figure title="Settings at their defaults" numbers={rest} />
          </>
        );
      }}
    </Part>
  );
}
