// Builds the page into src/stethoscope/views/web: one script, one style sheet. The same input gives the same bytes.
import { build } from "esbuild";
import { copyFileSync, mkdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.env.STETHOSCOPE_WEB_OUT ?? join(here, "..", "src", "stethoscope", "views", "web");
mkdirSync(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: [
    { in: "src/main.tsx", out: "app" },
    { in: "src/style.css", out: "app" },
  ],
  outdir: out,
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2022", "chrome109", "firefox115", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "ascii",
  logLevel: "warning",
});
for (const name of ["index.html", "icon.svg"]) copyFileSync(join(here, "src", name), join(out, name));
let total = 0;
for (const name of ["app.js", "app.css", "index.html", "icon.svg"]) {
  const packed = gzipSync(readFileSync(join(out, name)), { level: 9 }).length;
  total += packed;
  console.log(`${name.padEnd(12)} ${statSync(join(out, name)).size} bytes, ${packed} gzip`);
}
console.log(`total        ${total} gzip`);
if (total > 100_000) {
  console.error("over the budget of 100,000 bytes");
  process.exit(1);
}
