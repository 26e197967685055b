// The verdict: one sentence a person would say, the numbers that show it, what followed.
import { type JSX } from "preact";
import { useState } from "preact/hooks";
import { capital, count, number, percent, plural, real, since } from "./format";
import { Disc, Severity, VerdictSign } from "./glyphs";
import { CopyButton, Named, Remedy, Spark, briefly, moduleOf } from "./pieces";
import { address, cursor, following, runLink, selected, view } from "./state";
import { type Cause, type EvidenceData, type FindingRow, type RunData, type Stated } from "./types";

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
  if (!cause) return <WithoutCause data={data} />;
  const to = link ? (name: string): string => runLink(link, "layers", { at: name }) : undefined;
  const names = [...cause.sites, ...[...cause.evidence, ...cause.meanwhile].map((e) => e.site).filter(Boolean)];
  return (
    <section class="verdict" aria-label="Verdict">
      <div class="say">
        <Overline cause={cause} state={verdict.stated.label} />
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
        <Unexplained of={verdict.stated} />
        <Others rows={verdict.others} link={link} />
      </div>
      <EvidenceTable cause={cause} state={run.state} />
      <FollowedList data={data} link={link} />
    </section>
  );
}
/** Symptoms that the cause does not explain: it is not the whole story. */
export function Unexplained({ of }: { of: Stated }): JSX.Element | null {
  if (!of.unexplained.length) return null;
  return (
    <ul class="findings" aria-label="Not explained by this cause">
      {of.unexplained.map((one) => (
        <li class="finding">
          <Severity of={one.severity} />
          <div>
            <p>Not explained by this: {one.message}</p>
            <small>{since(one.firstStep, one.lastStep)}</small>
          </div>
        </li>
      ))}
    </ul>
  );
}
export function Overline({ cause, state }: { cause: Cause | FindingRow; state?: string }): JSX.Element {
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
      {state && (
        <>
          <i>·</i>
          <span>{capital(state)}</span>
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
/** What could be behind a symptom, each with the number that speaks for it or against it. */
export function SuspectLists({ of }: { of: Stated }): JSX.Element {
  return (
    <>
      {of.suspects.map((group) => (
        <>
          <h2>{capital(group.head)}</h2>
          <ul class="unmet">
            {group.rows.map((one) => (
              <li>
                {one.text} <b>{one.figure}</b>
              </li>
            ))}
          </ul>
        </>
      ))}
    </>
  );
}

/** Why a verdict without a cause is said, and of a run that holds nothing what to expect. */
function reason(data: RunData): [string, string] {
  const { stated, lookedAt } = data.verdict;
  if (data.run.numSteps === 0 && data.run.state !== "crashed")
    return [
      "Nothing recorded yet.",
      data.run.state === "live" ? "The first step will appear here by itself." : "The run ended before its first step.",
    ];
  if (data.isExamining)
    return [
      "Nothing was reported while it ran.",
      `All ${count(lookedAt.numSteps)} steps are being looked through once more.`,
    ];
  return [stated.message, stated.rest];
}

function WithoutCause({ data }: { data: RunData }): JSX.Element {
  const { lookedAt, notes, stated, course } = data.verdict;
  const [message, rest] = reason(data);
  const isTold = message === stated.message;
  const shown = isTold ? stated.evidence : [];
  const beside = stated.severity
    ? []
    : (course?.rows ?? []).filter((one) => one.label !== "loss" || !shown.some((own) => own.stat === "loss"));
  const columns = isTold && stated.severity ? ["baseline", "now"] : (course?.columns ?? ["before", "now"]);
  return (
    <section class="verdict calm" aria-label="Verdict">
      <div class="say">
        {isTold && (
          <p class="overline">
            <VerdictSign state={stated.state} severity={stated.severity} />
            <b class={stated.severity.toLowerCase()}>{capital(stated.label)}</b>
          </p>
        )}
        <h1>{message}</h1>
        <p class="why">
          {rest} {plural(lookedAt.numDetectors, "detector")} checked {count(lookedAt.numSites)} of{" "}
          {plural(lookedAt.numSitesExpected, "tensor")}, {plural(lookedAt.numSteps, "step")}, and found no cause.
        </p>
        {isTold && stated.line && (
          <div class="act">
            <Remedy text={stated.line} purpose={capital(stated.purpose)} />
          </div>
        )}
        {notes.length > 0 && (
          <>
            <p class="why">Worth knowing:</p>
            <ul class="findings">
              {notes.slice(0, 4).map((one) => (
                <FindingLine of={one} />
              ))}
            </ul>
          </>
        )}
      </div>
      {shown.length + beside.length > 0 && data.run.numSteps > 0 && (
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
                {columns[0]}
              </th>
              <th scope="col">{columns[1]}</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((one) => (
              <EvidenceRow of={one} step={null} />
            ))}
          </tbody>
          <tbody class="meanwhile">
            {beside.map((one) => (
              <EvidenceRow of={one} step={null} />
            ))}
          </tbody>
        </table>
      )}
      {isTold && stated.suspects.length > 0 ? (
        <div class="followed">
          <SuspectLists of={stated} />
        </div>
      ) : (
        lookedAt.unmet.length > 0 && (
          <div class="followed">
            <h2>Log more to detect more</h2>
            <ul class="unmet">
              {lookedAt.unmet.map((words) => (
                <li>{words}</li>
              ))}
            </ul>
          </div>
        )
      )}
    </section>
  );
}
