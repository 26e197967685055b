// Small pieces that many screens use: names as code, sparklines, buttons that copy.
import { type ComponentChildren, type JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Mark, line } from "./data";
import { Icon } from "./glyphs";
import { paths, rangeOf, scaleOf, stretches, yOf } from "./plot";
import { say, tokens } from "./state";
import { type EvidenceData, type Packed } from "./types";

/** Text in which the names of layers are set as code, and lead to them. */
export function Named({
  text,
  names,
  to,
}: {
  text: string;
  names: string[];
  to?: (name: string) => string;
}): JSX.Element {
  const parts = useMemo(() => {
    const known = [...new Set(names.flatMap((name) => [name, ...parents(name)]))]
      .filter((name) => name.length > 2)
      .sort((a, b) => b.length - a.length);
    const out: ComponentChildren[] = [];
    let rest = text;
    while (rest) {
      let best = -1,
        found = "";
      for (const name of known) {
        const at = rest.indexOf(name);
        if (at >= 0 && (best < 0 || at < best || (at === best && name.length > found.length))) {
          best = at;
          found = name;
        }
      }
      if (best < 0) {
        out.push(rest);
        break;
      }
      out.push(rest.slice(0, best));
      out.push(
        to ? (
          <a class="name" href={to(found)}>
            {found}
          </a>
        ) : (
          <span class="name">{found}</span>
        ),
      );
      rest = rest.slice(best + found.length);
    }
    return out;
  }, [text, names.join("\n")]);
  return <>{parts}</>;
}
const parents = (name: string): string[] => {
  const parts = name.split(".");
  return parts
    .slice(1)
    .map((_, at) => parts.slice(0, at + 1).join("."))
    .filter((part) => part.includes("."));
};
export function Spark({
  packed,
  step,
  w = 72,
  h = 20,
  band = false,
  color,
  tick,
}: {
  packed: Packed;
  step?: number | null;
  w?: number;
  h?: number;
  band?: boolean;
  color?: string;
  tick?: string;
}): JSX.Element {
  const t = tokens.value;
  const of = line(packed);
  const scale = scaleOf(packed.first ?? of.start, Math.max(packed.last ?? 0, of.start + of.count * of.size - 1), w - 4);
  const positive = of.mean.every((value, at) => of.marks[at] !== Mark.PLAIN || value > 0);
  const range = rangeOf([of], scale, false);
  const log = positive && range.high > 0 && rangeOf([of], scale, true).high / rangeOf([of], scale, true).low > 170;
  const y = yOf(rangeOf([of], scale, log), h, 2);
  const drawn = paths(of, scale, y, log);
  let end: [number, number] | null = null;
  for (let at = of.count - 1; at >= 0 && !end; at--)
    if (of.marks[at] === Mark.PLAIN && Number.isFinite(of.mean[at]))
      end = [scale.x(of.start + (at + 0.5) * of.size), y(of.mean[at])];
  return (
    <svg class="spark" width={w} height={h} viewBox={`-1 0 ${w} ${h}`} aria-hidden="true">
      {stretches(of, scale, Mark.NAN).map(([x, width]) => (
        <rect x={x} y="0" width={Math.max(2, width)} height={h} fill="url(#hatch)" />
      ))}
      {stretches(of, scale, Mark.INF).map(([x, width]) => (
        <rect x={x} y="0" width={Math.max(2, width)} height={h} fill="url(#hatch)" />
      ))}
      {step != null && !tick && (
        <path d={`M${scale.x(step).toFixed(1)} 0V${h}`} stroke={t.mark} stroke-dasharray="1.5 2" fill="none" />
      )}
      {band && <path d={drawn.band} fill={color ?? t.ink2} opacity=".2" />}
      <path d={drawn.mean} fill="none" stroke={color ?? t.ink2} stroke-width="1.25" stroke-linejoin="round" />
      {step != null && tick && (
        <path d={`M${scale.x(step).toFixed(1)} 1V${h - 1}`} stroke={tick} stroke-width="1.5" fill="none" />
      )}
      {end && !tick && <circle cx={end[0]} cy={end[1]} r="2" fill={t.ink} />}
    </svg>
  );
}
/** The last part of a name; two where the last is a number and says nothing by itself. */
const partOf = (path: string): string => {
  const parts = path.split(".");
  return parts.slice(/^\d+$/.test(parts[parts.length - 1]) ? -2 : -1).join(".");
};
/** What it is and at which part, where there is no room for the whole name. */
export const briefly = (of: EvidenceData): string => {
  const words =
    of.site && of.label.endsWith(of.site)
      ? `${of.label.slice(0, -of.site.length).replace(/ (of|in) $/, "")}, ${partOf(of.site.replace(/\.(weight|bias)$/, ""))}`
      : of.label;
  return words.charAt(0).toUpperCase() + words.slice(1);
};
export function CopyButton({
  text,
  label,
  children,
  class: name = "button",
}: {
  text: string | (() => string);
  label: string;
  children: ComponentChildren;
  class?: string;
}): JSX.Element {
  const [done, setDone] = useState(false);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(typeof text === "string" ? text : text());
      setDone(true);
      say("Copied");
      setTimeout(() => setDone(false), 1200);
    } catch {
      say("The browser does not allow copying here");
    }
  };
  return (
    <button type="button" class={name} aria-label={label} title={label} onClick={() => void copy()}>
      {done ? "Copied" : children}
    </button>
  );
}
export function Remedy({ text, purpose = "Try" }: { text: string; purpose?: string }): JSX.Element {
  const [code, note] = /^([^\n#]*\S)\s{2,}# ?(.*)$/.exec(text)?.slice(1) ?? [text, ""];
  return (
    <div class="try">
      <b>{purpose}</b>
      <code class="remedy">
        <span>
          {code}
          {note && <small>{note}</small>}
        </span>
        <CopyButton class="ghost" label="Copy the line" text={text}>
          <Icon name="copy" size={14} />
        </CopyButton>
      </code>
    </div>
  );
}
export const moduleOf = (site: string): string => site.replace(/\.(weight|bias)$/, "");
