// Log, ranks, checkup: what is recorded beside the numbers.
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { ask } from "./api";
import { Empty, TroubleScreen } from "./chrome";
import { line, type Checkup, type FindingRow, type Packed, type RunData, type Trouble } from "./data";
import { clock, count, day, number, plural, since } from "./format";
import { Severity, StateSign } from "./glyphs";
import { handleKeys } from "./keys";
import { scaleOf } from "./plot";
import { endsOf, flagsOf, LEFT, RIGHT, usePlotWidth } from "./run";
import type { RunSession } from "./session";
import { cursor, go, isPhone, route, runLink, selected, tokens } from "./state";
import { Axis, LineChart, type Drawn } from "./tracks";
import { moduleOf, Named, Spark } from "./verdict";

export function useAnswer<T>(session: RunSession, path: string): [T | null, Trouble | null] {
  const [found, setFound] = useState<T | null>(null);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const version = session.data.value?.version;
  useEffect(() => {
    let alive = true;
    ask<T>(`runs/${session.key}/${path}`, { v: version }).then(
      (value) => {
        if (alive) setFound(value);
      },
      (error) => {
        if (alive) setTrouble(error.trouble ?? { what: String(error), do: "" });
      },
    );
    return () => {
      alive = false;
    };
  }, [session, path, version]);
  useLayoutEffect(() => handleKeys({ session, up: () => go(runLink(session.key)) }), [session]);
  return [found, trouble];
}

interface LogEntry extends FindingRow {
  type: "finding" | "event";
  step: number;
  isCause?: boolean;
  kind?: string;
  time?: number;
  words?: string;
  note?: string;
  who?: string;
}
interface LogData {
  entries: LogEntry[];
  numEntries: number;
  began: { words: string; time: number | null };
  ended: { words: string; time: number | null; step: number | null; state: string } | null;
  starts: Start[];
  losses: Record<string, number>;
  problems: { file: string; offset: number; what: string; framesLost: number }[];
}
interface Start {
  rank: number;
  ordinal: number;
  pid: number | null;
  host: string;
  startedAt: number | null;
  how: string;
  firstStep: number | null;
  lastStep: number | null;
  ended: string;
}

export function LogScreen({ session }: { session: RunSession }): JSX.Element {
  const [found, trouble] = useAnswer<LogData>(session, "events");
  const data = session.data.value;
  if (trouble && !found) return <TroubleScreen trouble={trouble} />;
  if (!found || !data) return <main class="screen" id="main" />;
  const lost = Object.entries(found.losses).filter(([, value]) => value > 0);
  const findings = found.entries.filter((one) => one.type === "finding").length;
  const to = (name: string): string => runLink(session.key, "layers", { at: name });
  const seek = (one: LogEntry): void => {
    cursor.value = one.step;
    const site = one.sites?.[0];
    if (site) selected.value = moduleOf(site);
    go(runLink(session.key, "overview", { step: one.step, ...(site ? { at: moduleOf(site) } : {}) }));
  };
  return (
    <main class="screen doc" id="main">
      <h1>{found.ended ? `${found.ended.words}.` : `${data.run.stateText}.`}</h1>
      <p class="note">
        {findings ? `${plural(findings, "finding")} among ` : ""}
        {plural(found.numEntries, "entry").replace("entrys", "entries")}
        {found.numEntries > found.entries.length ? `, the last ${count(found.entries.length)} of them below` : ""}.
      </p>
      <ol class="log">
        <li class="edge">
          <span class="stepno">{data.run.numSteps ? count(data.span[0]) : ""}</span>
          <span class="dot" />
          <div>
            <p>{found.began.words}</p>
            {found.began.time && (
              <small>
                {day(found.began.time)} {clock(found.began.time, true)}
              </small>
            )}
          </div>
        </li>
        {found.entries.map((one) =>
          one.type === "finding" ? (
            <li class="told">
              <button type="button" class="plain stepno" onClick={() => seek(one)}>
                {count(one.step)}
              </button>
              <Severity of={one.severity} />
              <div>
                <p>
                  <Named text={one.message} names={one.sites.slice(0, 4)} to={to} />
                </p>
                <small>
                  <span class="mono">{one.code}</span> {since(one.firstStep, one.lastStep)}
                  {one.isCause ? ", a cause" : ""}
                  {one.numFollowed ? `, ${plural(one.numFollowed, "consequence")}` : ""}
                </small>
                {one.remedy && <code class="line">{one.remedy}</code>}
              </div>
            </li>
          ) : (
            <li>
              <button type="button" class="plain stepno" onClick={() => seek(one)}>
                {count(one.step)}
              </button>
              <span class="dot" />
              <div>
                <p>
                  {one.words}
                  {one.who ? `, ${one.who}` : ""}
                </p>
                {one.note && <small>{one.note}</small>}
              </div>
            </li>
          ),
        )}
        {found.ended && (
          <li class="edge">
            <span class="stepno">{found.ended.step !== null ? count(found.ended.step) : ""}</span>
            <StateSign of={found.ended.state} />
            <div>
              <p>{found.ended.words}</p>
              {found.ended.time && (
                <small>
                  {day(found.ended.time)} {clock(found.ended.time, true)}
                </small>
              )}
            </div>
          </li>
        )}
      </ol>
      <h2>Process starts</h2>
      <Starts starts={found.starts} />
      <h2>Recording</h2>
      {lost.length ? (
        <ul class="plainlist">
          {lost.map(([name, value]) => (
            <li>
              {name.replaceAll("_", " ")}: <b>{count(value)}</b>
            </li>
          ))}
        </ul>
      ) : (
        <p class="note">Nothing was lost on the way to the disk.</p>
      )}
      {found.problems.length > 0 && (
        <>
          <h2>Damage</h2>
          <ul class="plainlist">
            {found.problems.map((one) => (
              <li>
                <span class="mono">{one.file}</span> at byte {count(one.offset)}: {one.what}
                {one.framesLost ? `, ${plural(one.framesLost, "frame")} left out` : ""}
              </li>
            ))}
          </ul>
        </>
      )}
      {data.verdict.lookedAt.unmet.length > 0 && (
        <>
          <h2>What one more line would show</h2>
          <ul class="plainlist">
            {data.verdict.lookedAt.unmet.map((words) => (
              <li>{words}</li>
            ))}
          </ul>
        </>
      )}
    </main>
  );
}
function Starts({ starts }: { starts: Start[] }): JSX.Element {
  return (
    <table class="facts wide" tabIndex={isPhone.value ? 0 : undefined}>
      <thead>
        <tr>
          {["Rank", "Start", "State", "Steps", "Process", "Host", "Began"].map((name) => (
            <th scope="col" class={name === "State" ? "word" : ""}>
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {starts.slice(0, 200).map((one) => (
          <tr>
            <th scope="row">{one.rank}</th>
            <td>{one.ordinal}</td>
            <td class="word">
              <span class="stand">
                <StateSign of={one.how} />
                {one.how}
                {one.ended && one.ended !== one.how ? `, ${one.ended}` : ""}
              </span>
            </td>
            <td>
              {one.firstStep !== null && one.lastStep !== null
                ? `${count(one.firstStep)} to ${count(one.lastStep)}`
                : ""}
            </td>
            <td class="mono">{one.pid ?? ""}</td>
            <td class="mono">{one.host}</td>
            <td>
              {day(one.startedAt)} {clock(one.startedAt, true)}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

interface RanksData {
  numRanks: number;
  starts: Start[];
  ranks: {
    rank: number;
    lastLoss: number | string | null;
    stepMs: number | null;
    worstMs: number | null;
    loss: Packed | null;
    step: Packed | null;
  }[];
}
export function RanksScreen({ session }: { session: RunSession }): JSX.Element {
  const measured = usePlotWidth(session, isPhone.value ? 88 : LEFT, isPhone.value ? 12 : RIGHT);
  const [found, trouble] = useAnswer<RanksData>(session, "ranks");
  if (trouble && !found) return <TroubleScreen trouble={trouble} />;
  const data = session.data.value;
  if (!found || !data) return <main class="screen" id="main" ref={measured.ref} />;
  const speeds = found.ranks
      .map((one) => one.stepMs ?? 0)
      .filter(Boolean)
      .sort((a, b) => a - b),
    middle = speeds[Math.floor(speeds.length / 2)] ?? 0;
  const last = (rank: number): Start | undefined => found.starts.filter((one) => one.rank === rank).at(-1);
  const several = found.numRanks > 1;
  const slow = several && middle ? found.ranks.filter((one) => (one.stepMs ?? 0) / middle > 1.1) : [];
  const heads: [string, string][] = [
    ["Rank", ""],
    ["State", "word"],
    ["Last step", ""],
    ["Last loss", ""],
    ["Loss", "word"],
    ["Step, median", ""],
    ["Step, slowest 1%", ""],
    ...(several ? [["Against the others", ""] as [string, string]] : []),
    ["Host", ""],
  ];
  return (
    <main class="screen" id="main" ref={measured.ref}>
      <div class="doc rankhead">
        <MoreTabs session={session} />
        <h1>
          {!several
            ? "One rank wrote this run."
            : `${plural(found.numRanks, "rank")} wrote this run.${slow.length ? ` ${slow.length === 1 ? `Rank ${slow[0].rank} is` : `${count(slow.length)} are`} slower than the others.` : ""}`}
        </h1>
        <table class="facts wide" tabIndex={isPhone.value ? 0 : undefined}>
          <thead>
            <tr>
              {heads.map(([name, kind]) => (
                <th scope="col" class={kind}>
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {found.ranks.map((one) => {
              const start = last(one.rank);
              const off = one.stepMs && middle ? one.stepMs / middle : 1;
              return (
                <tr>
                  <th scope="row">{one.rank}</th>
                  <td class="word">
                    <span class="stand">
                      <StateSign of={start?.how ?? "stale"} />
                      {start?.how}
                    </span>
                  </td>
                  <td>{start?.lastStep != null ? count(start.lastStep) : ""}</td>
                  <td class={one.lastLoss === "NaN" ? "crit" : ""}>{number(one.lastLoss)}</td>
                  <td class="word">{one.loss && <Spark packed={one.loss} w={176} h={24} band />}</td>
                  <td>{one.stepMs ? `${number(one.stepMs)} ms` : ""}</td>
                  <td>{one.worstMs ? `${number(one.worstMs)} ms` : ""}</td>
                  {several && <td>{off > 1.1 ? `×${off.toFixed(2)} slower` : "usual"}</td>}
                  <td class="mono">{start?.host}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
        {!several && (
          <p class="note after">
            A distributed run has a row for each rank here, its loss and its speed against the others; replicas that
            disagree are a finding.
          </p>
        )}
      </div>
      {several && <RankLines session={session} data={data} ranks={found.ranks} />}
    </main>
  );
}

export function CheckupScreen({ session }: { session: RunSession }): JSX.Element {
  const data = session.data.value;
  useLayoutEffect(() => handleKeys({ session, up: () => go(runLink(session.key)) }), [session]);
  const found = data?.checkup;
  if (!found)
    return (
      <main class="screen doc" id="main">
        <MoreTabs session={session} />
        <h1>No checkup was recorded with this run.</h1>
        <p class="note">
          A checkup tries a few cheap experiments on one batch before training: does the model learn it, does the
          optimizer reach every weight, does the future leak. Call it on the model before you watch it, and it stands
          here.
        </p>
        <Empty
          title="Examine the training before it starts."
          text="It takes seconds, on the batch you choose."
          command="stethoscope checkup train.py:build"
        />
      </main>
    );
  const wrong = found.findings.filter((one) => one.severity !== "Info").length;
  return (
    <main class="screen doc" id="main">
      <MoreTabs session={session} />
      <h1>
        {wrong
          ? `The checkup before training found ${plural(wrong, "fault")}.`
          : "The checkup before training found nothing wrong."}
      </h1>
      <p class="note">
        {plural(found.numExperiments, "experiment")} on one batch, {number(found.seconds)} s, {day(found.time)}{" "}
        {clock(found.time)}.
      </p>
      {found.findings.length > 0 && (
        <ul class="findings">
          {found.findings.map((one) => (
            <li class="finding">
              <Severity of={one.severity} />
              <div>
                <p>
                  <Named
                    text={one.message}
                    names={one.sites.slice(0, 4)}
                    to={(name) => runLink(session.key, "layers", { at: name })}
                  />
                </p>
                <small>
                  <span class="mono">{one.code}</span>
                </small>
                {one.remedy && (
                  <p class="do">
                    <code class="line">{one.remedy}</code>
                  </p>
                )}
              </div>
            </li>
          ))}
        </ul>
      )}
      <Experiments of={found} />
      {found.notExamined.length > 0 && (
        <>
          <h2>Not examined</h2>
          <ul class="plainlist">
            {found.notExamined.map((one) => (
              <li>{one}</li>
            ))}
          </ul>
        </>
      )}
    </main>
  );
}
/** Loss and time of every rank on one axis: up to six in colors of their own, of more the one farthest from the middle. */
function RankLines({
  session,
  data,
  ranks,
}: {
  session: RunSession;
  data: RunData;
  ranks: RanksData["ranks"];
}): JSX.Element {
  const t = tokens.value,
    scale = scaleOf(data.span[0], data.span[1], session.plotWidth.value),
    flags = flagsOf(data),
    ends = endsOf(data);
  const middle =
    [...ranks].sort((a, b) => (a.stepMs ?? 0) - (b.stepMs ?? 0))[Math.floor(ranks.length / 2)]?.stepMs ?? 0;
  const odd = [...ranks].sort(
    (a, b) => Math.abs((b.stepMs ?? middle) - middle) - Math.abs((a.stepMs ?? middle) - middle),
  )[0]?.rank;
  const hue = (rank: number, n: number): string =>
    ranks.length <= t.s.length ? t.s[n] : rank === odd ? t.s[0] : t.mark;
  const lines = (pick: (one: RanksData["ranks"][0]) => Packed | null): Drawn[] =>
    ranks.flatMap((one, n) => {
      const packed = pick(one);
      return packed ? [{ of: line(packed), color: hue(one.rank, n) }] : [];
    });
  const told: [string, string, string, Drawn[]][] = [
    ["rank_loss", "Loss", "a line for each rank", lines((one) => one.loss)],
    ["rank_step", "Time of a step", "ms", lines((one) => one.step)],
  ];
  return (
    <>
      <Axis
        scale={scale}
        flags={flags}
        ends={ends}
        left={isPhone.value ? "Step" : `Steps ${count(scale.first)} to ${count(scale.last)}`}
        right=" "
      />
      {told
        .filter((one) => one[3].length)
        .map(([key, label, note, drawn]) => (
          <div class="panel track">
            <div class="gutter">
              <b>{label}</b>
              <small>{note}</small>
            </div>
            <LineChart
              id={key}
              scale={scale}
              height={132}
              lines={drawn}
              log={false}
              flags={flags}
              ends={ends}
              label={`${label} of ${plural(drawn.length, "rank")}`}
            />
            <div class="values" />
          </div>
        ))}
      <ul class="profilekey rankkey">
        {(ranks.length <= t.s.length
          ? ranks.map((one, n) => [`rank ${one.rank}`, hue(one.rank, n)])
          : [
              [`rank ${odd}, farthest from the middle`, t.s[0]],
              ["the others", t.mark],
            ]
        ).map(([label, color]) => (
          <li>
            <svg width="8" height="8" aria-hidden="true">
              <rect width="8" height="8" rx="2" fill={color} />
            </svg>
            <span>{label}</span>
          </li>
        ))}
      </ul>
    </>
  );
}

/** Every experiment by what it asks and what it looked at; those that had nothing to look at apart. */
export function Experiments({ of }: { of: Checkup }): JSX.Element {
  const done = of.experiments.filter((one) => one.outcome !== "does not apply"),
    idle = of.experiments.filter((one) => one.outcome === "does not apply");
  return (
    <>
      {done.length > 0 && (
        <table class="facts asked">
          <caption class="hidden">Experiments</caption>
          <thead>
            <tr>
              <th scope="col">Experiment</th>
              <th scope="col" class="word">
                What it looked at
              </th>
            </tr>
          </thead>
          <tbody>
            {done.map((one) => (
              <tr class={one.outcome === "clear" ? "" : "hit"}>
                <th scope="row">
                  <span class="asks">
                    <Severity
                      of={
                        one.outcome === "clear"
                          ? ""
                          : one.outcome === "failed"
                            ? "Warning"
                            : worst(of.findings, one.codes)
                      }
                      size={12}
                    />
                    {one.question}
                  </span>
                </th>
                <td class="word">
                  {one.outcome === "failed"
                    ? `It failed: ${one.lookedAt}`
                    : one.lookedAt.charAt(0).toUpperCase() + one.lookedAt.slice(1)}
                  {one.codes.length > 0 && (
                    <>
                      {one.lookedAt ? ", " : ""}found <span class="mono">{one.codes.join(", ")}</span>
                    </>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {idle.length > 0 && (
        <>
          <h2>Nothing to look at</h2>
          <ul class="plainlist idle">
            {idle.map((one) => (
              <li>{one.question}</li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}
const worst = (findings: FindingRow[], codes: string[]): string => {
  const known = findings.filter((one) => codes.includes(one.code)).map((one) => one.severity);
  return ["Critical", "Warning", "Info"].find((one) => known.includes(one)) ?? "Info";
};

/** On a phone the bar below has no room for these three: they share its last place. */
export function MoreTabs({ session }: { session: RunSession }): JSX.Element | null {
  if (!isPhone.value) return null;
  const here = route.value.screen;
  return (
    <nav class="moretabs" aria-label="More screens">
      {[
        ["profile", "Profile"],
        ["ranks", "Ranks"],
        ["checkup", "Checkup"],
      ].map(([id, label]) => (
        <a
          href={runLink(session.key, id)}
          class={here === id ? "here" : ""}
          aria-current={here === id ? "page" : undefined}
        >
          {label}
        </a>
      ))}
    </nav>
  );
}
