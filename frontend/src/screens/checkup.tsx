// The checkup before training.
import { type JSX } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { MoreTabs } from "../answer";
import { Empty } from "../chrome";
import { Experiments } from "../experiments";
import { clock, day, number, plural } from "../format";
import { Severity } from "../glyphs";
import { handleKeys } from "../keys";
import { Named } from "../pieces";
import { type RunSession } from "../session";
import { go, runLink } from "../state";

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
