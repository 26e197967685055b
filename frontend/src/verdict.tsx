// The verdict: one sentence a person would say, the numbers that show it, what followed.
import { type JSX } from "preact";
import { useState } from "preact/hooks";
import { count, number, percent, plural, real, since } from "./format";
import { Disc, Severity } from "./glyphs";
import { CopyButton, Named, Remedy, Spark, briefly, moduleOf } from "./pieces";
import { address, cursor, following, runLink, selected, view } from "./state";
import { type Cause, type EvidenceData, type FindingRow, type RunData } from "./types";

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
