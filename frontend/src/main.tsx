// The page: one run or the list, whichever the address names.
import { render, type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Overlays } from "./overlays";
import { PhoneTabs, RunBar, Status, TroubleScreen } from "./chrome";
import { carry } from "./api";
import { DRAWINGS } from "./drawings";
import { number } from "./format";
import { CompareScreen } from "./compare";
import { carriedData, ReportPage } from "./report";
import { Runs } from "./runs";
import { RunSession } from "./session";
import { begin, isPhone, paused, route } from "./state";
import { Patterns } from "./axis";

function RunPage({ id }: { id: string }): JSX.Element {
  const [session, setSession] = useState<RunSession | null>(null);
  useEffect(() => {
    const made = new RunSession(id);
    setSession(made);
    return () => made.close();
  }, [id]);
  if (!session || session.key !== id) return <div class="app" />;
  const data = session.data.value,
    trouble = session.trouble.value;
  if (trouble && !data)
    return (
      <div class="app">
        <RunBar data={null} name="" bare />
        <TroubleScreen trouble={trouble} />
      </div>
    );
  const Drawing = DRAWINGS[route.value.screen];
  return (
    <div
      class="app"
      data-ready={
        data && (session.heat.value || !["overview", "layers"].includes(route.value.screen) || !data.kinds.length)
          ? "1"
          : undefined
      }
    >
      <RunBar data={data} name="" />
      {trouble && data && (
        <p class="notice" role="status">
          {trouble.what}. {trouble.do}
        </p>
      )}
      {!session.lineUp.value && data?.run.state === "live" && (
        <p class="notice" role="status">
          The server does not answer. What you see is the last it said.
        </p>
      )}
      <Drawing session={session} />
      {isPhone.value ? (
        <PhoneTabs />
      ) : (
        data && (
          <Status
            parts={data.status}
            right={
              data.run.state === "live"
                ? paused.value
                  ? "Paused"
                  : data.delay !== null
                    ? `${data.delay < 1 ? `${Math.round(1000 * data.delay)} ms` : `${number(data.delay)} s`} behind`
                    : "Live"
                : data.closing
            }
            keys={[
              [["j", "k"], "row"],
              [["←", "→"], "step"],
              [["?"], "keys"],
            ]}
          />
        )
      )}
    </div>
  );
}

function App(): JSX.Element {
  const { screen, key } = route.value;
  return (
    <>
      <Patterns />
      <a class="skip" href="#main">
        To the content
      </a>
      {screen === "runs" ? <Runs /> : screen === "compare" ? <CompareScreen /> : <RunPage id={key} />}
      <Overlays />
    </>
  );
}

const root = document.getElementById("app")!;
const inside = document.getElementById("carried");
begin();
if (inside) {
  document.documentElement.dataset.report = "1";
  carry({});
  void carriedData(inside).then(
    (data) => {
      render(
        <>
          <Patterns />
          <ReportPage data={data} />
          <Overlays />
        </>,
        root,
      );
      document.documentElement.dataset.ready = "1";
    },
    (error) => {
      root.textContent = `This file cannot be read: ${String(error)}`;
    },
  );
} else {
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);
  render(<App />, root);
}
