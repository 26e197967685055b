// Pointing, dragging and zooming along the steps.
import { useRef } from "preact/hooks";
import { type Scale } from "./plot";
import { cursor, following, view } from "./state";

/** Drag to zoom, wheel with a modifier to zoom, hover for the cursor. */
export function usePointer(
  scale: Scale,
  span: [number, number],
  pick?: (y: number) => void,
): Record<string, (event: never) => void> {
  const drag = useRef<{ x: number; moved: boolean } | null>(null);
  const local = (event: MouseEvent): number =>
    event.clientX - (event.currentTarget as Element).getBoundingClientRect().left;
  return {
    onMouseMove: ((event: MouseEvent) => {
      const x = local(event);
      if (drag.current && Math.abs(x - drag.current.x) > 5) drag.current.moved = true;
      cursor.value = Math.max(span[0], Math.min(span[1], scale.step(x)));
    }) as never,
    onMouseDown: ((event: MouseEvent) => {
      if (event.button === 0) drag.current = { x: local(event), moved: false };
    }) as never,
    onMouseUp: ((event: MouseEvent) => {
      const begun = drag.current;
      drag.current = null;
      if (!begun) return;
      if (!begun.moved) {
        pick?.(event.clientY - (event.currentTarget as Element).getBoundingClientRect().top);
        return;
      }
      const [a, b] = [scale.step(begun.x), scale.step(local(event))].sort((p, q) => p - q);
      if (b - a >= 4) {
        following.value = false;
        view.value = [a, b];
      }
    }) as never,
    onWheel: ((event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
      event.preventDefault();
      following.value = false;
      if (event.ctrlKey || event.metaKey)
        view.value = zoomed(scale, span, event.deltaY > 0 ? 1.25 : 0.8, scale.step(local(event)));
      else
        view.value = moved(
          scale,
          span,
          Math.sign(event.deltaX) * Math.max(1, Math.round((scale.last - scale.first) * 0.04)),
        );
    }) as never,
  };
}
export function zoomed(scale: Scale, span: [number, number], factor: number, around: number): [number, number] {
  const width = Math.max(8, Math.round((scale.last - scale.first + 1) * factor));
  const share = (around - scale.first) / Math.max(1, scale.last - scale.first);
  const first = Math.round(around - share * width);
  return clamped([first, first + width - 1], span);
}
export const moved = (scale: Scale, span: [number, number], by: number): [number, number] =>
  clamped([scale.first + by, scale.last + by], span);
export function clamped([first, last]: [number, number], span: [number, number]): [number, number] {
  const width = last - first;
  if (width >= span[1] - span[0]) return span;
  if (first < span[0]) return [span[0], span[0] + width];
  if (last > span[1]) return [span[1] - width, span[1]];
  return [first, last];
}
