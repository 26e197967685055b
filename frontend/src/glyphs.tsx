// Signs: shape first, color second.
import type { JSX } from "preact";

/** The tick is for what learns alone; what cannot be told has a question mark. */
export function VerdictSign({
  state,
  severity,
  size = 12,
}: {
  state: string;
  severity: string;
  size?: number;
}): JSX.Element {
  if (state === "learns") return <Severity of="" label="learns" size={size} />;
  if (severity) return <Severity of={severity} size={size} />;
  return (
    <svg width={size} height={size} viewBox="0 0 12 12" class="sign unknown" role="img" aria-label="cannot tell">
      <path
        d="M3.6 4.2a2.4 2.4 0 1 1 3.5 2.1q-1.1.6-1.1 1.7M6 9.8v1.2"
        fill="none"
        stroke="currentColor"
        stroke-width="1.5"
      />
    </svg>
  );
}

export function Severity({ of, size = 12, label }: { of: string; size?: number; label?: string }): JSX.Element {
  const box = {
    width: size,
    height: size,
    viewBox: "0 0 12 12",
    class: `sign ${of.toLowerCase() || "clear"}`,
    role: "img" as const,
    "aria-label": label || of || "nothing found",
  };
  if (of === "Critical")
    return (
      <svg {...box}>
        <path d="M6 .4 11.6 6 6 11.6.4 6Z" fill="currentColor" />
      </svg>
    );
  if (of === "Warning")
    return (
      <svg {...box}>
        <path d="M6 .8 11.8 11H.2Z" fill="currentColor" />
      </svg>
    );
  if (of === "Info")
    return (
      <svg {...box}>
        <circle cx="6" cy="6" r="4.6" fill="currentColor" />
      </svg>
    );
  return (
    <svg {...box}>
      <path d="m1.5 6.6 3 3 6-6.6" fill="none" stroke="currentColor" stroke-width="1.6" />
    </svg>
  );
}

export function StateSign({ of, size = 14 }: { of: string; size?: number }): JSX.Element {
  const box = {
    width: size,
    height: size,
    viewBox: "0 0 14 14",
    class: `state ${of}`,
    role: "img" as const,
    "aria-label": of,
    fill: "none",
    stroke: "currentColor",
  };
  switch (of) {
    case "live":
      return (
        <svg {...box}>
          <circle class="halo" cx="7" cy="7" r="6" fill="currentColor" stroke="none" opacity=".25" />
          <circle cx="7" cy="7" r="3.4" fill="currentColor" stroke="none" />
        </svg>
      );
    case "finished":
      return (
        <svg {...box}>
          <rect x="3" y="3" width="8" height="8" stroke-width="1.4" />
        </svg>
      );
    case "crashed":
      return (
        <svg {...box}>
          <path d="m3 3 8 8m0-8-8 8" stroke-width="1.9" />
        </svg>
      );
    case "stale":
      return (
        <svg {...box}>
          <circle cx="7" cy="7" r="5" stroke-width="1.7" stroke-dasharray="2.1 1.8" />
        </svg>
      );
    default:
      return (
        <svg {...box}>
          <rect x="2.5" y="2.5" width="9" height="9" stroke-width="1.5" />
          <path d="m3 11 8-8" stroke-width="1.5" />
        </svg>
      );
  }
}

const PATHS: Record<string, string> = {
  search: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9Zm3.4 8 3.1 3.1",
  download: "M8 2.5v7.5m-3.2-3L8 10.2 11.2 7M2.8 13.2h10.4",
  copy: "M5.5 5.5h7v7h-7zM10.5 5.5v-2h-7v7h2",
  down: "m4.5 6.5 3.5 3.5 3.5-3.5",
  pause: "M5.5 3v10M10.5 3v10",
  play: "M5 3v10l8-5Z",
  back: "M14 8H2.5m4-4-4 4 4 4",
  bars: "M3 13V8m5 5V3m5 10V6",
  lines: "M2.5 4h11m-11 4h11m-11 4h7",
  flow: "M2 8h4m0 0c4 0 3-4 8-4M6 8c4 0 3 4 8 4",
  list: "M3 2.5h10v11H3zM5.5 6h5m-5 3h5",
  more: "M3 8h.01M8 8h.01M13 8h.01",
};
export function Icon({ name, size = 16 }: { name: string; size?: number }): JSX.Element {
  return (
    <svg
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill={name === "play" ? "currentColor" : "none"}
      stroke="currentColor"
      stroke-width={name === "more" ? 2.4 : name === "pause" ? 2 : 1.4}
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}
export const ThemeIcon = (): JSX.Element => (
  <svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">
    <circle cx="8" cy="8" r="5.2" fill="none" stroke="currentColor" stroke-width="1.4" />
    <path d="M8 2.8a5.2 5.2 0 0 1 0 10.4Z" fill="currentColor" />
  </svg>
);
export const Logo = (): JSX.Element => (
  <svg
    class="logo"
    width="20"
    height="20"
    viewBox="0 0 24 24"
    fill="none"
    stroke="currentColor"
    stroke-width="2"
    stroke-linecap="round"
    aria-hidden="true"
  >
    <path d="M6 3.5H4v5a4.5 4.5 0 0 0 9 0v-5h-2" />
    <path d="M8.5 13v3a5 5 0 0 0 10 0v-2.5" />
    <circle cx="18.5" cy="11" r="2.5" />
  </svg>
);

/** The numbered disc of an event. */
export function Disc({ n, hollow = false }: { n: number; hollow?: boolean }): JSX.Element {
  return <span class={`disc${hollow ? " hollow" : ""}`}>{n}</span>;
}
