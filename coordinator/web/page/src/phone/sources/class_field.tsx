// Ask which class the next examples show.

interface ClassField {
  label: number;
  /** Number of classes. */
  count: number;
  disabled?: boolean;
  onChange(label: number): void;
}

export function ClassField({ label, count, disabled, onChange }: ClassField) {
  return (
    <label>
      Class
      <input type="number" min={0} max={count - 1} value={label} disabled={disabled} onInput={(event) => onChange(event.currentTarget.valueAsNumber)} />
    </label>
  );
}

/** Return whether a number, perhaps NaN from an empty field, is one of `count` classes. */
export function isClass(label: number, count: number): boolean {
  return Number.isInteger(label) && label >= 0 && label < count;
}
