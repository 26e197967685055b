// The gradient on the model's graph, step by step.
import { type JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Latest, askRun } from "../api";
import { Empty, TroubleScreen } from "../chrome";
import { Mark, floats, small } from "../data";
import { Graph } from "../flow_graph";
import { Bars, FlowSide, Scrubber } from "../flow_parts";
import { type Values, nodeValues, read } from "../flow_values";
import { KIND_NAMES, count, percent, ratio } from "../format";
import { Icon } from "../glyphs";
import { handleKeys } from "../keys";
import { layOut } from "../layout";
import { offer, withdraw } from "../save";
import { type RunSession } from "../session";
import { cursor, go, isPhone, kind, overlay, reducedMotion, runLink, view, width } from "../state";
import { type FlowData, type RunData, type Trouble } from "../types";

export function FlowScreen({ session }: { session: RunSession }): JSX.Element {
  const [found, setFound] = useState<FlowData | null>(null);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const [playing, setPlaying] = useState(false);
  const data = session.data.value,
    shown = view.value;
  const latest = useRef<Latest<FlowData> | null>(null);
  const what = ["gradient", "activation_gradient", "update"].includes(kind.value)
    ? kind.value
    : data?.kinds.includes("gradient")
      ? "gradient"
      : kind.value;
  useEffect(() => {
    latest.current = new Latest<FlowData>((value) => {
      setFound(value);
      setTrouble(null);
    }, setTrouble);
    return () => latest.current?.stop();
  }, [session]);
  useEffect(() => {
    if (data && shown && what)
      latest.current?.put(() =>
        askRun(session.key, "flow", {
          kind: what,
          first: shown[0],
          last: Math.min(shown[1], data.span[1]),
          width: 600,
          v: data.version,
        }),
      );
  }, [data?.version, shown?.[0], shown?.[1], what]);
  useLayoutEffect(
    () => handleKeys({ session, play: () => setPlaying((now) => !now), up: () => go(runLink(session.key)) }),
    [session],
  );
  usePlay(playing, setPlaying, data, shown);
  useFlowTable(found);
  const nodes = useMemo<Values | null>(() => found && nodeValues(found), [found]);
  const layers = useMemo<Values | null>(
    () =>
      found && {
        start: found.start,
        size: found.size,
        count: found.layers.count,
        values: floats(found.layers.values),
        marks: small(found.layers.marks),
        usual: floats(found.layers.usual),
      },
    [found],
  );
  const [ref, box] = useSize();
  const layout = useMemo(
    () =>
      found && (isPhone.value || box[0] > 40)
        ? isPhone.value
          ? layOut(found.nodes, found.edges, found.opened, 1000, 460)
          : layOut(found.nodes, found.edges, found.opened, box[0], box[1])
        : null,
    [found?.nodes.map((one) => one.path).join("\n"), found?.opened, box[0], box[1]],
  );
  const step = Math.min(cursor.value ?? data?.verdict.cause?.firstStep ?? data?.span[1] ?? 0, data?.span[1] ?? 0);
  if (trouble && !found) return <TroubleScreen trouble={trouble} />;
  if (!data || !shown) return <main class="screen" id="main" />;
  if (!data.kinds.length)
    return (
      <main class="screen" id="main">
        <Empty
          title="No gradients were recorded."
          text="Watch the model and its optimizer."
          command="stethoscope run train.py"
        />
      </main>
    );
  return (
    <main class="screen flow" id="main">
      <div class="flowhead">
        <h1>
          {found && nodes && layers ? (
            <Headline found={found} nodes={nodes} layers={layers} step={step} />
          ) : (
            "Reading the graph."
          )}
        </h1>
        {!isPhone.value && (
          <div class="segments" role="radiogroup" aria-label="What flows">
            {["gradient", "activation_gradient", "update"]
              .filter((one) => data.kinds.includes(one))
              .map((one) => (
                <button
                  type="button"
                  role="radio"
                  aria-checked={what === one}
                  class={what === one ? "on" : ""}
                  onClick={() => {
                    kind.value = one;
                  }}
                >
                  {KIND_NAMES[one]}
                </button>
              ))}
          </div>
        )}
        {!isPhone.value && (
          <button
            type="button"
            class="button"
            onClick={() => {
              overlay.value = "save";
            }}
          >
            <Icon name="download" size={14} />
            Export
          </button>
        )}
      </div>
      <div class="flowbody">
        <div class="flowmain">
          <p class="note flownote">
            <Icon name="back" size={22} />{" "}
            {isPhone.value ? (
              "The graph itself needs a wider screen; this is what it shows."
            ) : (
              <>The gradient runs from the loss on the right to the input on the left.</>
            )}
            {found && !found.hasGraph ? " The graph was not recorded: modules stand in their order." : ""}
          </p>
          <div class="canvas" ref={ref}>
            {found && nodes && layout && !isPhone.value && (
              <Graph found={found} nodes={nodes} layout={layout} step={step} link={session.key} playing={playing} />
            )}
          </div>
          {found && layers && (
            <Bars
              found={found}
              layers={layers}
              step={step}
              layout={layout}
              w={isPhone.value ? width.value - 24 : box[0]}
            />
          )}
        </div>
        {found && nodes && layers && layout && (
          <FlowSide found={found} nodes={nodes} layers={layers} layout={layout} step={step} />
        )}
      </div>
      {found && layers && (
        <Scrubber
          data={data}
          found={found}
          layers={layers}
          step={step}
          shown={shown}
          playing={playing}
          onPlay={() => setPlaying(!playing)}
        />
      )}
    </main>
  );
}
function useSize(): [(el: HTMLDivElement | null) => void, [number, number]] {
  const [size, setSize] = useState<[number, number]>([0, 0]);
  const element = useRef<HTMLDivElement | null>(null);
  useLayoutEffect(() => {
    const measure = (): void => {
      if (element.current) setSize([element.current.clientWidth, element.current.clientHeight]);
    };
    measure();
    const watch = new ResizeObserver(measure);
    if (element.current) watch.observe(element.current);
    return () => watch.disconnect();
  }, [element.current]);
  return [
    (el) => {
      element.current = el;
    },
    size,
  ];
}
function usePlay(
  playing: boolean,
  setPlaying: (on: boolean) => void,
  data: RunData | null,
  shown: [number, number] | null,
): void {
  // In a layout effect: from the key that stops it on, no step more.
  useLayoutEffect(() => {
    if (!playing || !data || !shown) return undefined;
    const last = Math.min(shown[1], data.span[1]);
    if ((cursor.value ?? last) >= last) cursor.value = shown[0];
    const timer = setInterval(
      () => {
        const next = (cursor.value ?? shown[0]) + 1;
        if (next > last) {
          setPlaying(false);
          return;
        }
        cursor.value = next;
      },
      reducedMotion.matches ? 500 : 50,
    );
    return () => clearInterval(timer);
  }, [playing, data?.version, shown?.[0], shown?.[1]]);
}
function Headline({
  found,
  nodes,
  layers,
  step,
}: {
  found: FlowData;
  nodes: Values;
  layers: Values;
  step: number;
}): JSX.Element {
  const read_ = found.layers.paths.map((path, row) => ({ path, ...read(layers, row, step) }));
  const parts = found.nodes
    .filter((one) => one.row >= 0)
    .map((one) => ({ path: one.path, ...read(nodes, one.row, step) }));
  const broken = read_.filter((one) => one.mark === Mark.NAN || one.mark === Mark.INF);
  const word = (KIND_NAMES[found.kind] ?? found.kind).toLowerCase();
  if (broken.length)
    return (
      <>
        At step {count(step)}, the {word} is {broken.some((one) => one.mark === Mark.NAN) ? "NaN" : "Inf"} in{" "}
        {broken.length === read_.length ? "every layer" : `${count(broken.length)} of ${count(read_.length)} layers`}.
      </>
    );
  const total = read_.reduce((sum, one) => sum + (one.value ?? 0) ** 2, 0);
  const most = [...read_].sort((a, b) => (b.value ?? 0) - (a.value ?? 0))[0];
  const off = parts.sort((a, b) => Math.abs(b.level) - Math.abs(a.level))[0];
  if (!most || !total) return <>At step {count(step)}, nothing was recorded.</>;
  const share = (most.value ?? 0) ** 2 / total;
  if (share > 0.5)
    return (
      <>
        At step {count(step)}, <span class="name">{most.path}</span> takes {percent(share)} of the {word}.
      </>
    );
  if (off && Math.abs(off.level) > 1.5)
    return (
      <>
        At step {count(step)}, the {word} of <span class="name">{off.path}</span> is{" "}
        {off.level > 0 ? ratio(2 ** off.level).replace("×", "") : ratio(2 ** off.level)}{" "}
        {off.level > 0 ? "times" : "of"} its median.
      </>
    );
  return (
    <>
      At step {count(step)}, every layer has its usual {word}.
    </>
  );
}
function useFlowTable(found: FlowData | null): void {
  useEffect(() => {
    if (!found) return undefined;
    offer("flow", {
      name: "Gradient flow",
      head: ["node", "step", "value"],
      rows: () => {
        const values = floats(found.values);
        return found.nodes
          .filter((one) => one.row >= 0)
          .flatMap((one) =>
            Array.from({ length: found.count }, (_, at) => [
              one.path,
              found.start + at * found.size,
              values[one.row * found.count + at],
            ]),
          );
      },
    });
    return () => withdraw("flow");
  }, [found]);
}
