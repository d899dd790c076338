// Builds the pages into espalier_web/static: a script, a style sheet and a page for the run's page,
// the same in phone/ for the page of a phone, and the licences of all packages in them.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { copyFile, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const out = "espalier_web/static";
const phone = join(out, "phone");
const RUNTIME = "node_modules/onnxruntime-web/dist/ort-wasm-simd-threaded.wasm";
// dependencies of onnxruntime-web that only its WebGL part contains
const UNUSED = new Set(["flatbuffers", "guid-typescript", "long", "platform", "protobufjs"]);
const inputs = new Set([RUNTIME]);
await rm(out, { recursive: true, force: true });
await mkdir(join(phone, "assets"), { recursive: true });

/** Bundle one script or style sheet. Return the path of the result. */
async function bundle(entry, options) {
  const { metafile } = await build({
    entryPoints: [entry],
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    jsx: "automatic",
    jsxImportSource: "preact",
    metafile: true,
    ...options,
  });
  for (const input of Object.keys(metafile.inputs)) inputs.add(input);
  return Object.keys(metafile.outputs)[0];
}

/** Bundle a file of the phone's page under a name with a hash, which browsers may keep for ever.
    Return its address on the page. */
async function bundleAsset(entry, define = {}) {
  const options = { outdir: join(phone, "assets"), entryNames: "[name]-[hash]", define };
  return `assets/${basename(await bundle(entry, options))}`;
}

/** Add ONNX Runtime. */
async function addRuntime() {
  const data = await readFile(RUNTIME);
  const name = `ort-${createHash("sha256").update(data).digest("hex").slice(0, 8)}.wasm`;
  await writeFile(join(phone, "assets", name), data);
  return `assets/${name}`;
}

/** Replace the assets of the phone's page by compressed ones: 15 MB become 3 MB. Over plain HTTP
    browsers accept gzip alone. */
async function compressAssets() {
  const params = { [constants.BROTLI_PARAM_QUALITY]: 9, [constants.BROTLI_PARAM_LGWIN]: 24 };
  for (const name of await readdir(join(phone, "assets"))) {
    const path = join(phone, "assets", name);
    const data = await readFile(path);
    await writeFile(`${path}.br`, brotliCompressSync(data, { params }));
    await writeFile(`${path}.gz`, gzipSync(data, { level: 9 }));
    await rm(path);
  }
}

async function buildPhonePage() {
  const wasm = await addRuntime();
  const worker = await bundleAsset("src/phone/worker.ts", { WASM_URL: JSON.stringify(`../${wasm}`) });
  const script = await bundleAsset("src/phone/main.tsx", { WORKER_URL: JSON.stringify(worker) });
  const style = await bundleAsset("src/phone/style.css");
  const page = await readFile("src/phone/index.html", "utf8");
  await writeFile(join(phone, "index.html"), page.replace("STYLE_URL", style).replace("SCRIPT_URL", script));
  await compressAssets();
}

/** Collect a package and what it depends on: some packages contain their dependencies, bundled. */
async function collect(folder, packages) {
  if (packages.has(folder)) return;
  const about = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  packages.set(folder, about);
  for (const name of Object.keys(about.dependencies ?? {})) {
    if (!name.startsWith("@types/") && !UNUSED.has(name)) await collect(join("node_modules", name), packages);
  }
}

async function writeLicences() {
  const packages = new Map();
  for (const input of inputs) {
    const match = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (match) await collect(match[1], packages);
  }
  const texts = [];
  for (const [folder, { name, version, license }] of [...packages].sort()) {
    texts.push(`${name} ${version} (${license})\n\n${(await readLicence(folder, name)).trim()}\n`);
  }
  await writeFile(join(out, "licences.txt"), texts.join("\n" + "-".repeat(72) + "\n\n"));
}

/** Return the text of a licence. Packages without a file of it have theirs in licences/ here. */
async function readLicence(folder, name) {
  const file = (await readdir(folder)).find((one) => /^licen[cs]e(\.(md|txt))?$/i.test(one));
  return readFile(file ? join(folder, file) : join("licences", `${name.replace("/", "_")}.txt`), "utf8");
}

await bundle("src/main.tsx", { outfile: join(out, "page.js") });
await copyFile("src/index.html", join(out, "index.html"));
await copyFile("src/style.css", join(out, "style.css"));
await buildPhonePage();
await writeLicences();
