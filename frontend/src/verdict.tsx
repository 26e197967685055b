// The verdict: one sentence a person would say, the numbers that show it, what followed.
import type { ComponentChildren, JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { line, Mark, type Cause, type EvidenceData, type FindingRow, type Packed, type RunData } from "./data";
import { count, number, percent, plural, real, since } from "./format";
import { Disc, Icon, Severity } from "./glyphs";
import { rangeOf, scaleOf, paths, stretches, yOf } from "./plot";
import { address, cursor, following, runLink, say, selected, tokens, view } from "./state";

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

function EvidenceRow({ of, step }: { of: EvidenceData; step: number | null }): JSX.Element {
  const after = real(of.after);
  const label = of.label;
  return (
    <tr>
      <th scope="row" title={label}>
        {briefly(of)}
      </th>
      <td>{of.trend && <Spark packed={of.trend} step={step} />}</td>
      <td class="was">{number(of.before)}</td>
      <td class={`now${after !== null && !Number.isFinite(after) ? " crit" : ""}`}>
        {number(of.after)}
        {of.unit ? (of.unit === "%" ? "%" : ` ${of.unit}`) : ""}
      </td>
    </tr>
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

export function Remedy({ text }: { text: string }): JSX.Element {
  const [code, note] = /^([^\n#]*\S)\s{2,}# ?(.*)$/.exec(text)?.slice(1) ?? [text, ""];
  return (
    <div class="try">
      <b>Try</b>
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

export function VerdictBlock({
  data,
  link,
  buttons = true,
}: {
  data: RunData;
  link?: string;
  buttons?: boolean;
}): JSX.Element {
  const { verdict, run } = data;
  const cause = verdict.cause;
  if (!cause) return <Healthy data={data} />;
  const to = link ? (name: string): string => runLink(link, "layers", { at: name }) : undefined;
  const names = [...cause.sites, ...[...cause.evidence, ...cause.meanwhile].map((e) => e.site).filter(Boolean)];
  return (
    <section class="verdict" aria-label="Verdict">
      <div class="say">
        <Overline cause={cause} />
        <h1>
          <Named text={cause.message} names={cause.sites} to={to} />
        </h1>
        {cause.why && (
          <p class="why">
            <Named text={cause.why} names={names} />
          </p>
        )}
        <div class="act">
          {cause.remedy && <Remedy text={cause.remedy} />}
          {buttons && (
            <CopyButton label="Copy a link to this view" text={() => location.origin + location.pathname + address()}>
              Copy link
            </CopyButton>
          )}
        </div>
        <Others rows={verdict.others} link={link} />
      </div>
      <EvidenceTable cause={cause} state={run.state} />
      <FollowedList data={data} link={link} />
    </section>
  );
}
export const moduleOf = (site: string): string => site.replace(/\.(weight|bias)$/, "");

export function Overline({ cause }: { cause: Cause | FindingRow }): JSX.Element {
  const sure = (cause as Cause).confidence;
  return (
    <p class="overline">
      <Severity of={cause.severity} size={11} />
      <b class={cause.severity.toLowerCase()}>{cause.severity}</b>
      <i>·</i>
      <span class="mono">{cause.code}</span>
      {sure !== undefined && sure < 0.995 && (
        <>
          <i>·</i>
          <span>{percent(sure)} sure</span>
        </>
      )}
      <i>·</i>
      <span>{since(cause.firstStep, cause.lastStep)}</span>
      {cause.rank !== null && (
        <>
          <i>·</i>
          <span>rank {cause.rank}</span>
        </>
      )}
    </p>
  );
}

export function EvidenceTable({ cause, state }: { cause: Cause; state: string }): JSX.Element | null {
  if (!cause.evidence.length && !cause.meanwhile.length) return <div class="evidence" />;
  return (
    <table class="evidence">
      <caption class="hidden">Evidence</caption>
      <colgroup>
        <col />
        <col class="trend" />
        <col class="figure" />
        <col class="figure" />
      </colgroup>
      <thead>
        <tr>
          <th scope="col" colSpan={2}>
            Evidence
          </th>
          <th scope="col" class="was">
            {cause.columns[0]}
          </th>
          <th scope="col">{state === "live" ? "now" : cause.columns[1]}</th>
        </tr>
      </thead>
      <tbody>
        {cause.evidence.map((one) => (
          <EvidenceRow of={one} step={cause.firstStep} />
        ))}
      </tbody>
      {cause.meanwhile.length > 0 && (
        <tbody class="meanwhile">
          <tr class="hidden">
            <th scope="rowgroup" colSpan={4}>
              Meanwhile
            </th>
          </tr>
          {cause.meanwhile.map((one) => (
            <EvidenceRow of={one} step={cause.firstStep} />
          ))}
        </tbody>
      )}
    </table>
  );
}

export function FollowedList({ data, link }: { data: RunData; link?: string }): JSX.Element {
  const { followed } = data.verdict;
  const names = followed.map((one) => one.site).filter(Boolean);
  return (
    <div class="followed">
      <h2>{followed.length > 1 ? "What followed" : "When"}</h2>
      <ol>
        {followed.map((one, at) => (
          <li>
            <Disc n={at + 1} />
            <button
              type="button"
              class="plain"
              onClick={() => show(data, one.step, one.site)}
              aria-label={`Go to step ${count(one.step)}`}
            >
              <b>{count(one.step)}</b>
            </button>
            <span>
              <Named
                text={one.text}
                names={names}
                to={link ? (name) => runLink(link, "layers", { at: name }) : undefined}
              />
            </span>
          </li>
        ))}
        {followed.length === 1 &&
          data.verdict.lasting.map((words) => (
            <li class="open">
              <span class="dot" />
              <b />
              <span>{words}</span>
            </li>
          ))}
        {data.run.state !== "live" && followed.length === 1 && (
          <li class="open">
            <span class="dot" />
            <b />
            <span class="note">Nothing else was found to follow from it</span>
          </li>
        )}
        {data.run.state === "live" && (
          <li class="open">
            <Disc n={followed.length + 1} hollow />
            <b />
            <span>Nothing more so far</span>
          </li>
        )}
      </ol>
    </div>
  );
}
function show(data: RunData, step: number, site: string): void {
  cursor.value = step;
  following.value = false;
  if (site) selected.value = moduleOf(site);
  const now = view.value ?? data.window;
  if (step < now[0] || step > now[1]) {
    const span = now[1] - now[0];
    view.value = [Math.max(data.span[0], step - Math.round(span / 2)), step + Math.round(span / 2)];
  }
}

function Others({ rows, link }: { rows: FindingRow[]; link?: string }): JSX.Element | null {
  const [all, setAll] = useState(false);
  if (!rows.length) return null;
  const shown = all ? rows : rows.slice(0, 3);
  return (
    <ul class="findings" aria-label="Other causes">
      {shown.map((one) => (
        <FindingLine of={one} link={link} />
      ))}
      {rows.length > shown.length && (
        <li>
          <button type="button" class="plain note" onClick={() => setAll(true)}>
            {plural(rows.length - shown.length, "more finding")}
          </button>
        </li>
      )}
    </ul>
  );
}
export function FindingLine({ of, link }: { of: FindingRow; link?: string }): JSX.Element {
  return (
    <li class="finding">
      <Severity of={of.severity} />
      <div>
        <p>
          <Named
            text={of.message}
            names={of.sites.slice(0, 4)}
            to={link ? (name) => runLink(link, "layers", { at: name }) : undefined}
          />
        </p>
        <small>
          <span class="mono">{of.code}</span> {since(of.firstStep, of.lastStep)}
          {of.numFollowed ? `, ${plural(of.numFollowed, "consequence")}` : ""}
        </small>
      </div>
    </li>
  );
}

function Healthy({ data }: { data: RunData }): JSX.Element {
  const { lookedAt, notes, headline } = data.verdict;
  const crashed = data.run.state === "crashed";
  const empty = data.run.numSteps === 0;
  return (
    <section class="verdict calm" aria-label="Verdict">
      <div class="say">
        <p class="overline">
          {!crashed && !notes.length && <Severity of="" size={12} />}
          <span>
            {plural(lookedAt.numDetectors, "detector")} looked at {count(lookedAt.numSites)} of{" "}
            {plural(lookedAt.numSitesExpected, "site")}, {plural(lookedAt.numSteps, "step")}
          </span>
        </p>
        <h1>
          {empty && !crashed
            ? "Nothing recorded yet."
            : data.isExamining
              ? "Nothing was reported while it ran."
              : headline}
        </h1>
        <p class="why">
          {empty
            ? data.run.state === "live"
              ? "The first step will appear here by itself."
              : crashed
                ? "Nothing was recorded: no step was reached."
                : "The run ended before its first step."
            : data.run.state === "live"
              ? "Every detector is quiet so far."
              : data.isExamining
                ? `All ${count(lookedAt.numSteps)} steps are being looked through once more.`
                : crashed
                  ? "No detector says why: the exception itself may."
                  : notes.length
                    ? "Worth knowing:"
                    : "Every detector stayed quiet."}
        </p>
        {notes.length > 0 && (
          <ul class="findings">
            {notes.slice(0, 4).map((one) => (
              <FindingLine of={one} />
            ))}
          </ul>
        )}
      </div>
      {data.verdict.course && !empty && (
        <table class="evidence">
          <caption class="hidden">How it went</caption>
          <colgroup>
            <col />
            <col class="trend" />
            <col class="figure" />
            <col class="figure" />
          </colgroup>
          <thead>
            <tr>
              <th scope="col" colSpan={2}>
                {data.run.state === "live" ? "How it goes" : "How it went"}
              </th>
              <th scope="col" class="was">
                {data.verdict.course.columns[0]}
              </th>
              <th scope="col">{data.run.state === "live" ? "now" : data.verdict.course.columns[1]}</th>
            </tr>
          </thead>
          <tbody>
            {data.verdict.course.rows.map((one) => (
              <EvidenceRow of={one} step={null} />
            ))}
          </tbody>
        </table>
      )}
      {lookedAt.unmet.length > 0 && (
        <div class="followed">
          <h2>What one more line would show</h2>
          <ul class="unmet">
            {lookedAt.unmet.map((words) => (
              <li>{words}</li>
            ))}
          </ul>
        </div>
      )}
    </section>
  );
}
