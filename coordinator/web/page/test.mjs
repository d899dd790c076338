// Bundle tests/*.mjs, which import TypeScript, and run those that are tests with node.
import { spawnSync } from "node:child_process";
import { readdir } from "node:fs/promises";
import { build } from "esbuild";

const names = await readdir("tests");
await build({
  entryPoints: names.map((name) => `tests/${name}`),
  outdir: "build/tests",
  outExtension: { ".js": ".mjs" },
  bundle: true,
  platform: "node",
  format: "esm",
  alias: { "onnxruntime-web/wasm": "onnxruntime-web" }, // whose build for node is in the main entry
  external: ["mqtt", "onnxruntime-web"],
});
const tests = names.filter((name) => name.endsWith(".test.mjs"));
const paths = tests.map((name) => `build/tests/${name}`);
process.exit(spawnSync(process.execPath, ["--test", ...paths], { stdio: "inherit" }).status ?? 1);
