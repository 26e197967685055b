// The mean step as one bar.
import { type JSX } from "preact";
import { colorOf } from "./axis";
import { percent } from "./format";
import type { ReportPart } from "./types";

export function MeanBar({ parts, share }: { parts: ReportPart[]; share: (one: ReportPart) => number }): JSX.Element {
  let x = 0;
  return (
    <svg
      class="profilebar"
      data-panel="profile"
      width="100%"
      height="18"
      viewBox="0 0 1000 18"
      preserveAspectRatio="none"
      role="img"
      aria-label={parts.map((one) => `${one.label} ${percent(share(one))}`).join(", ")}
    >
      {parts.map((one) => {
        const w = share(one) * 1000,
          left = x;
        x += w;
        return <rect x={left} width={Math.max(0, w - 1.5)} height="18" fill={colorOf(one.color)} />;
      })}
    </svg>
  );
}
