// The steps on the screen: their scale, their numbered events, their width.
import { useLayoutEffect, useRef } from "preact/hooks";
import { type Ends, type Flag } from "./axis";
import { type Scale, scaleOf } from "./plot";
import { type RunSession } from "./session";
import { cursor, following, view } from "./state";
import { type RunData } from "./types";

export const LEFT = 216,
  RIGHT = 124;
export function flagsOf(data: RunData): Flag[] {
  return data.verdict.followed.map((one, at) => ({ n: at + 1, step: one.step }));
}
export function endsOf(data: RunData): Ends | null {
  return data.run.numSteps
    ? { step: data.span[1], label: data.run.state === "live" ? "now" : "end", live: data.run.state === "live" }
    : null;
}
/** The scale of the steps on the screen, with a little room after the last one. */
export function scaleFor(data: RunData, shown: [number, number], plot: number): Scale {
  const room = shown[1] >= data.span[1] ? Math.max(1, Math.round((shown[1] - shown[0]) * 0.02)) : 0;
  return scaleOf(shown[0], shown[1] + room, plot);
}
export function usePlotWidth(
  session: RunSession,
  left: number,
  right: number,
): { ref: (el: HTMLElement | null) => void } {
  const element = useRef<HTMLElement | null>(null);
  useLayoutEffect(() => {
    const measure = (): void => {
      if (element.current) session.plotWidth.value = Math.max(120, element.current.clientWidth - left - right);
    };
    measure();
    const watch = new ResizeObserver(measure);
    if (element.current) watch.observe(element.current);
    return () => watch.disconnect();
  }, [left, right]);
  return {
    ref: (el) => {
      element.current = el;
    },
  };
}
export const place = (): Record<string, number> => ({
  ...(view.value && !following.value ? { from: view.value[0], to: view.value[1] } : {}),
  ...(cursor.value !== null ? { step: cursor.value } : {}),
});
