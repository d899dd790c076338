// Numbers as people read them, and CSV that neither breaks nor runs in a spreadsheet.
import assert from "node:assert/strict";
import test from "node:test";
import { bytes, csv, plain, seconds } from "../src/format.ts";

test("a CSV file quotes what it must, and no cell is a formula", () => {
  const rows = [
    ["a,b", 'say "hi"', -1],
    ["=1+1", "two\nlines", null],
    ["@x", "+1", "-1"],
  ];
  assert.equal(
    csv(["one", "two", "three"], rows),
    'one,two,three\r\n"a,b","say ""hi""",-1\r\n\'=1+1,"two\nlines",\r\n\'@x,\'+1,\'-1\r\n',
  );
});

test("amounts have units", () => {
  assert.deepEqual([0, 999, 1000, 2_345_678].map(bytes), ["0 B", "999 B", "1.0 kB", "2.3 MB"]);
  const times = [null, 0, 5e-6, 0.0123, 5, 600, 9000];
  assert.deepEqual(times.map(seconds), ["–", "–", "5 µs", "12.3 ms", "5.00 s", "10 min", "2.5 h"]);
});

test("settings that are empty or missing are named", () => {
  assert.deepEqual([null, "", "text", [1, 2]].map(plain), ["none", "empty", "text", "[1,2]"]);
});
