// Any panel as a file: SVG as it stands, PNG from it or from the canvas, CSV from the numbers behind it.
import { signal } from "@preact/signals";
import { tokens, cursor, route } from "./state";
import { MONO, SANS } from "./tokens";

export type Choice = { label: string; formats: [string, () => Promise<void> | void][] };
export interface Table {
  name: string;
  head: string[];
  rows: () => (string | number)[][];
}
const TABLES = new Map<string, Table>();
/** Counts what came and went, so that an open list of panels takes in those that were still being read. */
export const offered = signal(0);
export const offer = (panel: string, table: Table): void => {
  TABLES.set(panel, table);
  offered.value = offered.peek() + 1;
};
export const withdraw = (panel: string): void => {
  TABLES.delete(panel);
  offered.value = offered.peek() + 1;
};

const NAMES: Record<string, string> = {
  heat: "Layers by step",
  loss: "Loss",
  grad_norm: "Gradient norm",
  step_rate: "Throughput",
  lr: "Learning rate",
  flow: "Gradient flow",
};

export function saveChoices(): Choice[] {
  const out: Choice[] = [];
  const seen = new Set<string>();
  for (const element of document.querySelectorAll<HTMLElement | SVGElement>("[data-panel]")) {
    const id = element.dataset.panel ?? "";
    if (seen.has(id)) continue;
    seen.add(id);
    const table = TABLES.get(id);
    const label = table?.name ?? NAMES[id] ?? id;
    const formats: Choice["formats"] = [];
    if (element instanceof SVGSVGElement) {
      formats.push(
        ["PNG", () => svgToPng(element, label)],
        ["SVG", () => keep(`${file(label)}.svg`, "image/svg+xml", svgText(element))],
      );
    }
    if (element instanceof HTMLCanvasElement) {
      formats.push(
        ["PNG", () => canvasToPng(element, label)],
        ["SVG", () => keep(`${file(label)}.svg`, "image/svg+xml", canvasSvg(element))],
      );
    }
    if (table) formats.push(["CSV", () => keep(`${file(label)}.csv`, "text/csv", csv(table))]);
    out.push({ label, formats });
  }
  return out;
}
const file = (label: string): string =>
  `${route.value.key || "stethoscope"}-${label}`
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .slice(0, 60);

function keep(name: string, type: string, data: BlobPart): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 5000);
}
/** Cells that a spreadsheet would take for a formula are quoted as text. */
export function csv(table: Table): string {
  const cell = (value: string | number): string => {
    const words = typeof value === "number" ? String(value) : /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words;
  };
  return [table.head, ...table.rows()].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

export function svgText(svg: SVGSVGElement): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const t = tokens.value;
  const w = svg.width.baseVal.value,
    h = svg.height.baseVal.value;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("viewBox", `-48 -6 ${w + 60} ${h + 12}`);
  copy.setAttribute("width", String(w + 60));
  copy.setAttribute("height", String(h + 12));
  const back = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of [
    ["x", "-48"],
    ["y", "-6"],
    ["width", String(w + 60)],
    ["height", String(h + 12)],
    ["fill", t.sheet],
  ])
    back.setAttribute(name, value);
  copy.prepend(back);
  const pattern = document.getElementById("hatch");
  if (pattern) {
    const defs = document.createElementNS("http://www.w3.org/2000/svg", "defs");
    defs.append(pattern.cloneNode(true));
    copy.prepend(defs);
  }
  for (const [at, element] of [...copy.querySelectorAll("text")].entries()) {
    const own = svg.querySelectorAll("text")[at];
    if (!own) continue;
    const style = getComputedStyle(own);
    element.setAttribute("fill", style.fill);
    element.setAttribute("font-size", style.fontSize);
    element.setAttribute("font-weight", style.fontWeight);
    element.setAttribute("font-family", style.fontFamily.includes("mono") ? MONO : SANS);
  }
  return new XMLSerializer().serializeToString(copy);
}
async function svgToPng(svg: SVGSVGElement, label: string): Promise<void> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth * 2;
  canvas.height = image.naturalHeight * 2;
  const context = canvas.getContext("2d")!;
  context.scale(2, 2);
  context.drawImage(image, 0, 0);
  await canvasToPng(canvas, label);
}
function canvasToPng(canvas: HTMLCanvasElement, label: string): Promise<void> {
  return new Promise((done) =>
    canvas.toBlob((blob) => {
      if (blob) keep(`${file(label)}.png`, "image/png", blob);
      done();
    }, "image/png"),
  );
}
function canvasSvg(canvas: HTMLCanvasElement): string {
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${canvas.clientWidth}" height="${canvas.clientHeight}" viewBox="0 0 ${canvas.width} ${canvas.height}"><image width="${canvas.width}" height="${canvas.height}" href="${canvas.toDataURL("image/png")}"/></svg>`;
}
export const atStep = (): number | null => cursor.value;
