// What floats over a screen: the palette, the list of keys, saving, toasts.
import { signal } from "@preact/signals";
import { type ComponentChildren, type JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { count } from "./format";
import { Severity } from "./glyphs";
import { moduleOf } from "./pieces";
import { type Choice, offered, saveChoices } from "./save";
import { cursor, following, go, overlay, route, runLink, said, selected } from "./state";
import { SCREENS, type RunData, type TreeRow } from "./types";

export const KEYS: [string, string][] = [
  ["/", "filter rows"],
  ["Ctrl K", "search layers, steps, findings"],
  ["j  k", "next, previous row"],
  ["←  →", "step (Shift: 10)"],
  ["[  ]", "previous, next event"],
  ["Home  End", "first, last step"],
  ["Enter", "open the layer"],
  ["Esc", "up"],
  ["o", "open or close a branch"],
  ["+  -  0", "zoom in, out, fit"],
  ["1 – 6", "gradient, weight, update, output, output grad, optimizer"],
  ["v", "value, or relative to its median"],
  ["space", "play or pause"],
  ["x", "select a run"],
  ["c", "compare the selected"],
  ["d", "first difference"],
  ...SCREENS.filter((one) => one.key).map((one): [string, string] => [one.key, one.title.toLowerCase()]),
  ["g r", "runs"],
  ["y", "copy a link"],
  ["s", "save a panel: PNG, SVG, CSV"],
  ["t", "light or dark"],
  ["?", "this list"],
];
function Sheet({ label, children }: { label: string; children: ComponentChildren }): JSX.Element {
  const ref = useRef<HTMLDivElement>(null);
  // Before the browser paints, so that letters typed right after the key that opened it land in it.
  useLayoutEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    ((ref.current?.querySelector("input, button, a") as HTMLElement | null) ?? ref.current)?.focus();
    return () => before?.focus?.();
  }, []);
  return (
    <div
      class="veil"
      onClick={(event) => {
        if (event.target === event.currentTarget) overlay.value = "";
      }}
    >
      <div class="sheet" role="dialog" aria-modal="true" aria-label={label} tabIndex={-1} ref={ref}>
        {children}
      </div>
    </div>
  );
}
function Keys(): JSX.Element {
  return (
    <Sheet label="Keys">
      <div class="sheethead">
        <h2>Keys</h2>
        <button
          type="button"
          class="button"
          onClick={() => {
            overlay.value = "";
          }}
        >
          Close <kbd>esc</kbd>
        </button>
      </div>
      <dl class="keylist">
        {KEYS.map(([name, word]) => (
          <div>
            <dt>
              {name.split("  ").map((one) => (
                <kbd>{one}</kbd>
              ))}
            </dt>
            <dd>{word}</dd>
          </div>
        ))}
      </dl>
    </Sheet>
  );
}
function Save(): JSX.Element {
  const choices = useMemo<Choice[]>(() => saveChoices(), [offered.value]);
  return (
    <Sheet label="Save a panel">
      <div class="sheethead">
        <h2>Save a panel</h2>
        <button
          type="button"
          class="button"
          onClick={() => {
            overlay.value = "";
          }}
        >
          Close <kbd>esc</kbd>
        </button>
      </div>
      {choices.length === 0 && <p class="note">There is no panel to save on this screen.</p>}
      <ul class="choices">
        {choices.map((one) => (
          <li>
            <span>{one.label}</span>
            {one.formats.map(([format, work]) => (
              <button
                type="button"
                class="button"
                onClick={() => {
                  void work();
                  overlay.value = "";
                }}
              >
                {format}
              </button>
            ))}
          </li>
        ))}
      </ul>
    </Sheet>
  );
}
export const known = signal<{ data: RunData | null; tree: TreeRow[] }>({ data: null, tree: [] });
interface Hit {
  label: string;
  note: string;
  severity?: string;
  act: () => void;
}
function hits(words: string): Hit[] {
  const { data, tree } = known.value;
  const { key } = route.value;
  const wanted = words.trim().toLowerCase();
  const out: Hit[] = [];
  const step = /^(step )?([\d,]+)$/.exec(wanted);
  if (step && data) {
    const at = Number(step[2].replaceAll(",", ""));
    out.push({
      label: `Step ${count(at)}`,
      note: "move the cursor",
      act: () => {
        cursor.value = at;
        following.value = false;
      },
    });
  }
  if (data) {
    const all = [...(data.verdict.cause ? [data.verdict.cause] : []), ...data.verdict.others, ...data.verdict.notes];
    for (const one of all)
      if (`${one.message} ${one.code}`.toLowerCase().includes(wanted))
        out.push({
          label: one.message,
          note: one.code,
          severity: one.severity,
          act: () => {
            cursor.value = one.firstStep;
            following.value = false;
            if (one.sites[0]) selected.value = moduleOf(one.sites[0]);
          },
        });
  }
  for (const row of tree) {
    if (out.length > 40) break;
    if (row[0].toLowerCase().includes(wanted))
      out.push({
        label: row[0],
        note: "layer",
        severity: row[6] || undefined,
        act: () => go(runLink(key, "layers", { at: row[0] })),
      });
  }
  for (const { name, title } of SCREENS)
    if (data && title.toLowerCase().includes(wanted))
      out.push({ label: title, note: "screen", act: () => go(runLink(key, name)) });
  return out.slice(0, 40);
}
function Palette(): JSX.Element {
  const [words, setWords] = useState("");
  const [at, setAt] = useState(0);
  const found = useMemo(() => hits(words), [words, known.value]);
  const take = (one: Hit | undefined): void => {
    if (!one) return;
    overlay.value = "";
    one.act();
  };
  return (
    <Sheet label="Search">
      <input
        class="find"
        type="text"
        role="combobox"
        aria-expanded="true"
        aria-controls="hits"
        aria-activedescendant={`hit-${at}`}
        aria-label="Layer, step or finding"
        placeholder="Layer, step or finding"
        value={words}
        onInput={(event) => {
          setWords((event.target as HTMLInputElement).value);
          setAt(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") {
            setAt(Math.min(found.length - 1, at + 1));
            event.preventDefault();
          } else if (event.key === "ArrowUp") {
            setAt(Math.max(0, at - 1));
            event.preventDefault();
          } else if (event.key === "Enter") {
            const now = (event.target as HTMLInputElement).value;
            take(now === words ? found[at] : hits(now)[0]);
          }
        }}
      />
      <ul class="hits" id="hits" role="listbox">
        {found.map((one, n) => (
          <li
            id={`hit-${n}`}
            role="option"
            aria-selected={n === at}
            class={n === at ? "here" : ""}
            onMouseEnter={() => setAt(n)}
            onClick={() => take(one)}
          >
            {one.severity ? <Severity of={one.severity} size={10} /> : <span class="nosign" />}
            <span class={one.note === "layer" ? "mono" : ""}>{one.label}</span>
            <small>{one.note}</small>
          </li>
        ))}
      </ul>
      {found.length === 0 && <p class="note pad">Nothing of that name here.</p>}
    </Sheet>
  );
}
export interface ToastData {
  severity: string;
  text: string;
  note: string;
  act?: () => void;
}
export const toast = signal<ToastData | null>(null);
function Toast(): JSX.Element | null {
  const now = toast.value;
  useEffect(() => {
    if (!now || now.severity === "Critical") return undefined;
    const timer = setTimeout(() => {
      if (toast.value === now) toast.value = null;
    }, 8000);
    return () => clearTimeout(timer);
  }, [now]);
  if (!now) return null;
  return (
    <div class="toast" role={now.severity === "Critical" ? "alert" : "status"}>
      <Severity of={now.severity} />
      <div>
        <b>{now.text}</b>
        <p>{now.note}</p>
      </div>
      {now.act && (
        <button
          type="button"
          class="button"
          onClick={() => {
            now.act!();
            toast.value = null;
          }}
        >
          Show
        </button>
      )}
      <button
        type="button"
        class="ghost"
        aria-label="Dismiss"
        onClick={() => {
          toast.value = null;
        }}
      >
        ×
      </button>
    </div>
  );
}
export function Overlays(): JSX.Element {
  return (
    <>
      {overlay.value === "keys" && <Keys />}
      {overlay.value === "palette" && <Palette />}
      {overlay.value === "save" && <Save />}
      <Toast />
      <div class="hidden" aria-live="polite">
        {said.value.assertive ? "" : said.value.words}
      </div>
      <div class="hidden" aria-live="assertive">
        {said.value.assertive ? said.value.words : ""}
      </div>
    </>
  );
}
