// Numbers as people read them: three significant digits, commas, powers of ten spelled out.
const SUPER = "⁰¹²³⁴⁵⁶⁷⁸⁹";
export const MINUS = "⁻";

export const count = (value: number): string => Math.round(value).toLocaleString("en-US");

const raised = (power: number): string =>
  (power < 0 ? MINUS : "") +
  String(Math.abs(power))
    .split("")
    .map((d) => SUPER[Number(d)])
    .join("");

/** Numbers as the server sends them: NaN and infinities come by name. */
export function real(value: number | string | null | undefined): number | null {
  if (value === null || value === undefined) return null;
  if (typeof value === "number") return value;
  return value === "NaN" ? NaN : value === "Infinity" ? Infinity : value === "-Infinity" ? -Infinity : Number(value);
}

export function number(given: number | string | null | undefined): string {
  const value = real(given);
  if (value === null) return "";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "Inf" : "-Inf";
  if (value === 0) return "0";
  const size = Math.abs(Number(value.toPrecision(3)));
  if (size < 1e-3 || size >= 1e6) {
    const [mantissa, exponent] = value.toExponential(2).split("e");
    return `${mantissa} × 10${raised(Number(exponent))}`;
  }
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return value.toFixed(2 - Math.floor(Math.log10(size)));
}

function factor(value: number): string {
  if (!Number.isFinite(value) || value >= 1e6)
    return `10${raised(Number.isFinite(value) ? Math.floor(Math.log10(value)) : 308)}`;
  if (value < 9.95) return value.toFixed(1).replace(/\.0$/, "");
  return Number(value.toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 0 });
}

export const USUAL = 1.5;
/** A value over its usual one: ×12, 1/6, usual. */
export function ratio(value: number | null): string {
  if (value === null) return "";
  if (Number.isNaN(value)) return "NaN";
  if (value <= 0) return "0";
  if (value >= USUAL) return `×${Number.isFinite(value) ? factor(value) : "Inf"}`;
  if (value <= 1 / USUAL) return `1/${factor(1 / value)}`;
  return "usual";
}

/** "8.9 times", "a sixth of" would read oddly: "1/6 of". */
export function times(value: number): string {
  if (value >= USUAL) return `${factor(value)} times`;
  if (value <= 1 / USUAL) return `1/${factor(1 / value)} of`;
  return "as usual against";
}

export function percent(share: number): string {
  const value = 100 * share;
  if (value > 0 && value < 0.05) return "under 0.1%";
  return value >= 9.95 || value === 0 ? `${value.toFixed(0)}%` : `${value.toFixed(1)}%`;
}

export function duration(seconds: number): string {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const days = Math.floor(whole / 86400),
    hours = Math.floor(whole / 3600) % 24,
    minutes = Math.floor(whole / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

export function amount(value: number): string {
  for (const [size, unit] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "k"],
  ] as const) {
    if (value >= size) {
      const scaled = value / size;
      return `${scaled >= 99.5 ? scaled.toFixed(0) : Number(scaled.toPrecision(3))} ${unit}`;
    }
  }
  return String(value);
}

/** Bytes on disk, in powers of a thousand as disks are sold. */
export function bytes(value: number): string {
  for (const [size, unit] of [
    [1e12, "TB"],
    [1e9, "GB"],
    [1e6, "MB"],
    [1e3, "kB"],
  ] as const)
    if (value >= 0.9995 * size) {
      const scaled = value / size;
      return `${scaled >= 99.5 ? scaled.toFixed(0) : Number(scaled.toPrecision(2))} ${unit}`;
    }
  return `${value} bytes`;
}

const two = (value: number): string => String(value).padStart(2, "0");
export function clock(seconds: number | null, withSeconds = false): string {
  if (!seconds) return "";
  const at = new Date(seconds * 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}${withSeconds ? `:${two(at.getSeconds())}` : ""}`;
}
export function day(seconds: number | null): string {
  if (!seconds) return "";
  const at = new Date(seconds * 1000);
  return `${at.getDate()} ${["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"][at.getMonth()]} ${at.getFullYear()}`;
}

export const plural = (value: number, word: string): string => `${count(value)} ${word}${value === 1 ? "" : "s"}`;
export const since = (first: number, last: number): string => `${first === last ? "at" : "since"} step ${count(first)}`;
export const KIND_NAMES: Record<string, string> = {
  gradient: "Gradient",
  weight: "Weight",
  update: "Update",
  activation: "Output",
  activation_gradient: "Output grad",
  optimizer_state: "Optimizer",
};

export const capital = (words: string): string => words.charAt(0).toUpperCase() + words.slice(1);
