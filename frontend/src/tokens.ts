// The look in numbers, as the canvas and SVG need it; style.css holds the same colors for the rest.
export interface Tokens {
  sheet: string;
  well: string;
  sunken: string;
  raised: string;
  line: string;
  line2: string;
  mark: string;
  ink: string;
  ink2: string;
  ink3: string;
  accent: string;
  crit: string;
  critTint: string;
  warn: string;
  warnMark: string;
  info: string;
  s: string[];
  history: string[];
  value: string[];
}

export const LIGHT: Tokens = {
  sheet: "#ffffff",
  well: "#f5f6f6",
  sunken: "#eceeee",
  raised: "#ffffff",
  line: "#e1e5e5",
  line2: "#c5cbcc",
  mark: "#828b8e",
  ink: "#15191b",
  ink2: "#454d50",
  ink3: "#646d70",
  accent: "#00707e",
  crit: "#bf1f33",
  critTint: "#fbecee",
  warn: "#855600",
  warnMark: "#b97700",
  info: "#2a62bd",
  s: ["#3068c8", "#aa4f00", "#0a9c92", "#5f2a8e", "#8f0e45", "#9d8900"],
  history: [
    "#012a63",
    "#014d9d",
    "#2e7ac7",
    "#6aa7e0",
    "#acd0ec",
    "#e9eef0",
    "#f1c99c",
    "#ec9956",
    "#d8641b",
    "#aa3606",
    "#6d1d10",
  ],
  value: ["#eaf2f2", "#b6e1e1", "#7fcac9", "#45acb7", "#1988aa", "#225f97", "#293871", "#1a1a3f"],
};

export const DARK: Tokens = {
  sheet: "#101315",
  well: "#161a1c",
  sunken: "#0b0d0e",
  raised: "#1d2225",
  line: "#242a2d",
  line2: "#3b4448",
  mark: "#6f7a7e",
  ink: "#e9eded",
  ink2: "#b1babc",
  ink3: "#8a9497",
  accent: "#45c4d0",
  crit: "#ff7a85",
  critTint: "#2c1619",
  warn: "#efb03f",
  warnMark: "#efb03f",
  info: "#86b4fb",
  s: ["#8ab6fb", "#d27410", "#60efbf", "#a970d2", "#ea889d", "#d6c83a"],
  history: [
    "#ace0fe",
    "#6bb9f4",
    "#3c8dda",
    "#2864a8",
    "#204069",
    "#1f2729",
    "#65381d",
    "#a3521c",
    "#df7421",
    "#fea247",
    "#ffd79b",
  ],
  value: ["#161d20", "#1d2d4c", "#20487a", "#136b94", "#0f919c", "#3eb99d", "#98d88a", "#f2f199"],
};

export const SANS =
  'system-ui, -apple-system, "Segoe UI Variable Text", "Segoe UI", Roboto, Inter, "Noto Sans", "Liberation Sans", sans-serif';
export const MONO =
  'ui-monospace, "SF Mono", "Cascadia Mono", "JetBrains Mono", "Roboto Mono", "DejaVu Sans Mono", monospace';
export const RANGE = 6;

type Rgb = [number, number, number];
const parse = (hex: string): Rgb => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)) as Rgb;

/** 256 colors between the stops. */
export function ramp(stops: string[]): string[] {
  const rgb = stops.map(parse);
  return Array.from({ length: 256 }, (_, n) => {
    const at = (n / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const part = at - low;
    const mixed = rgb[low].map((c, k) => Math.round(c + (rgb[low + 1][k] - c) * part));
    return `#${mixed.map((c) => c.toString(16).padStart(2, "0")).join("")}`;
  });
}

/** Black or white, whichever is easier to read on the color. */
export function inkOn(hex: string): string {
  const [r, g, b] = parse(hex).map((c) => {
    const s = c / 255;
    return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
  });
  const y = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return 1.05 / (y + 0.05) >= (y + 0.05) / 0.05 ? "#ffffff" : "#000000";
}

const RAMPS = new Map<Tokens, { history: string[]; value: string[] }>();
export function ramps(tokens: Tokens): { history: string[]; value: string[] } {
  let found = RAMPS.get(tokens);
  if (!found) {
    found = { history: ramp(tokens.history), value: ramp(tokens.value) };
    RAMPS.set(tokens, found);
  }
  return found;
}
export const historyColor = (tokens: Tokens, log2: number): string =>
  ramps(tokens).history[Math.max(0, Math.min(255, Math.round(((log2 + RANGE) / (2 * RANGE)) * 255)))];
