// Builds the page into espalier_web/static: one script, one style sheet, the page, and the licences
// of the packages that the script contains.
import { build } from "esbuild";
import { copyFile, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

const out = "espalier_web/static";
await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
const { metafile } = await build({
  entryPoints: ["src/main.tsx"],
  outfile: join(out, "page.js"),
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  metafile: true,
});
await copyFile("src/index.html", join(out, "index.html"));
await copyFile("src/style.css", join(out, "style.css"));

const packages = new Set();
for (const input of Object.keys(metafile.inputs)) {
  const match = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(input);
  if (match) packages.add(match[1]);
}
const texts = [];
for (const folder of [...packages].sort()) {
  const { name, version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const text = await readFile(join(folder, "LICENSE"), "utf8");
  texts.push(`${name} ${version} (${license})\n\n${text.trim()}\n`);
}
await writeFile(join(out, "licences.txt"), texts.join("\n" + "-".repeat(72) + "\n\n"));
