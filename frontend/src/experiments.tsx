// The experiments of a checkup as a table.
import { type JSX } from "preact";
import { Severity } from "./glyphs";
import { type Checkup, type FindingRow } from "./types";

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
