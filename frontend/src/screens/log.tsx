// The log: findings and events in the order they happened.
import { type JSX } from "preact";
import { useAnswer } from "../answer";
import { TroubleScreen } from "../chrome";
import { clock, count, day, plural, since } from "../format";
import { Severity, StateSign } from "../glyphs";
import { Named, moduleOf } from "../pieces";
import { type RunSession } from "../session";
import { cursor, go, isPhone, runLink, selected } from "../state";
import { type LogData, type Start } from "../types";

export function LogScreen({ session }: { session: RunSession }): JSX.Element {
  const [found, trouble] = useAnswer(session, "events");
  const data = session.data.value;
  if (trouble && !found) return <TroubleScreen trouble={trouble} />;
  if (!found || !data) return <main class="screen" id="main" />;
  const lost = Object.entries(found.losses).filter(([, value]) => value > 0);
  const findings = found.entries.filter((one) => one.type === "finding").length;
  const to = (name: string): string => runLink(session.key, "layers", { at: name });
  const seek = (one: LogData["entries"][0]): void => {
    cursor.value = one.step;
    const site = one.type === "finding" ? one.sites[0] : undefined;
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
                <span class="mono">{one.file}</span> {one.offset === null ? "" : ` at byte ${count(one.offset)}`}:{" "}
                {one.what}
                {one.framesLost ? `, ${plural(one.framesLost, "frame")} left out` : ""}
              </li>
            ))}
          </ul>
        </>
      )}
      {data.verdict.lookedAt.unmet.length > 0 && (
        <>
          <h2>Log more to detect more</h2>
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
