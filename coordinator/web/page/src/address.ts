/** The address after `#`: a run, a view of it, and what is chosen in the view. */
import { useEffect, useState } from "preact/hooks";

export const readQuery = () => new URLSearchParams(location.hash.split("?")[1] ?? "");

export const linkTo = (run: string, view: string = "overview") =>
  `#/${encodeURIComponent(run)}/${view}`;

/** A choice that the address keeps, so that a link to the page shows the same. */
export function useChoice(name: string): [string, (value: string) => void] {
  const read = () => readQuery().get(name) ?? "";
  const [value, setValue] = useState(read());
  useEffect(() => {
    const follow = () => setValue(read());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, [name]);
  const choose = (wanted: string) => {
    const query = readQuery();
    if (wanted) query.set(name, wanted);
    else query.delete(name);
    const [path = "#/"] = location.hash.split("?");
    history.replaceState(null, "", query.size ? `${path}?${query}` : path);
    setValue(wanted);
  };
  return [value, choose];
}
