// The bar at the top, the status line, the palette, the list of keys, toasts, and screens that say what went wrong.
import type { ComponentChildren, JSX } from "preact";
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { RunData, TreeRow, Trouble } from "./data";
import { count } from "./format";
import { Icon, Logo, Severity, StateSign, ThemeIcon } from "./glyphs";
import {
  address,
  cursor,
  flipTheme,
  following,
  go,
  isPhone,
  overlay,
  paused,
  route,
  runLink,
  said,
  selected,
} from "./state";
import { CopyButton, moduleOf } from "./verdict";
import { offered, saveChoices, type Choice } from "./save";

const TABS: [string, string, keyof RunData["counts"] | ""][] = [
  ["overview", "Overview", ""],
  ["layers", "Layers", "modules"],
  ["flow", "Flow", ""],
  ["profile", "Profile", ""],
  ["ranks", "Ranks", "ranks"],
  ["log", "Log", "log"],
  ["checkup", "Checkup", ""],
];
const PHONE: [string, string, string][] = [
  ["overview", "Overview", "bars"],
  ["layers", "Layers", "lines"],
  ["flow", "Flow", "flow"],
  ["log", "Log", "list"],
  ["profile", "More", "more"],
];

const MORE = ["ranks", "checkup"];

export function RunBar({
  data,
  name,
  bare = false,
}: {
  data: RunData | null;
  name: string;
  bare?: boolean;
}): JSX.Element {
  const { screen, key } = route.value;
  const run = data?.run;
  return (
    <header class="bar">
      <a class="home" href="#/" aria-label="All runs">
        <Logo />
      </a>
      {!isPhone.value && (
        <>
          <a href="#/">Runs</a>
          <i>/</i>
        </>
      )}
      <b class="title" title={run?.name}>
        {run?.name ?? name}
      </b>
      {run && <span class="mono id">{run.id}</span>}
      {run && (
        <span class={`stand ${run.state}`}>
          <StateSign of={run.state} />
          <span>
            {isPhone.value ? (
              run.state.charAt(0).toUpperCase() +
              run.state.slice(1) +
              (run.lastStep !== null ? `, ${count(run.lastStep)}` : "")
            ) : (
              <StateWords words={run.stateText} />
            )}
          </span>
        </span>
      )}
      {!isPhone.value && !bare && (
        <nav aria-label="Screens">
          {TABS.map(([id, label, size]) => (
            <a
              href={runLink(key, id)}
              class={screen === id ? "here" : ""}
              aria-current={screen === id ? "page" : undefined}
            >
              {label}
              {size && data && data.counts[size] > 0 && <small>{count(data.counts[size])}</small>}
            </a>
          ))}
        </nav>
      )}
      {!isPhone.value && (
        <div class="tools">
          {!bare && (
            <button
              type="button"
              class="search"
              onClick={() => {
                overlay.value = "palette";
              }}
            >
              <Icon name="search" />
              <span>Layer, step or finding</span>
              <kbd>Ctrl K</kbd>
            </button>
          )}
          {run?.state === "live" && (
            <button
              type="button"
              class="icon"
              aria-label={paused.value ? "Go on following" : "Pause"}
              title={paused.value ? "Go on following (space)" : "Pause (space)"}
              onClick={() => {
                paused.value = !paused.value;
                if (!paused.value) following.value = true;
              }}
            >
              <Icon name={paused.value ? "play" : "pause"} />
            </button>
          )}
          <Tools />
        </div>
      )}
    </header>
  );
}
function StateWords({ words }: { words: string }): JSX.Element {
  const found = /^(.*step )([\d,]+)$/.exec(words);
  return found ? (
    <>
      {found[1]}
      <b>{found[2]}</b>
    </>
  ) : (
    <>{words}</>
  );
}
export function Tools(): JSX.Element {
  return (
    <>
      <button
        type="button"
        class="icon"
        aria-label="Save a panel"
        title="Save a panel (s)"
        onClick={() => {
          overlay.value = "save";
        }}
      >
        <Icon name="download" />
      </button>
      <button type="button" class="icon" aria-label="Light or dark" title="Light or dark (t)" onClick={flipTheme}>
        <ThemeIcon />
      </button>
      <button
        type="button"
        class="icon"
        aria-label="Keys"
        title="Keys (?)"
        onClick={() => {
          overlay.value = "keys";
        }}
      >
        <span class="ask">?</span>
      </button>
    </>
  );
}
export function PhoneTabs(): JSX.Element {
  const { screen, key } = route.value;
  return (
    <nav class="phonetabs" aria-label="Screens">
      {PHONE.map(([id, label, icon]) => (
        <a
          href={runLink(key, id)}
          class={screen === id || (id === "profile" && MORE.includes(screen)) ? "here" : ""}
          aria-current={screen === id ? "page" : undefined}
        >
          <Icon name={icon} />
          <span>{label}</span>
        </a>
      ))}
    </nav>
  );
}

export function Status({
  parts,
  right,
  keys,
}: {
  parts: { before?: string; strong: string; rest: string }[];
  right?: ComponentChildren;
  keys: [string[], string][];
}): JSX.Element {
  return (
    <footer class="status">
      {parts.map((part) => (
        <span>
          {part.before && `${part.before} `}
          <b>{part.strong}</b> {part.rest}
        </span>
      ))}
      <span class="space" />
      {right && <span>{right}</span>}
      {keys.map(([names, word]) => (
        <span class="keys">
          {names.map((name) => (
            <kbd>{name}</kbd>
          ))}{" "}
          {word}
        </span>
      ))}
    </footer>
  );
}

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
  ["v", "value or against own history"],
  ["space", "play or pause"],
  ["x", "select a run"],
  ["c", "compare the selected"],
  ["d", "first difference"],
  ["f", "flow"],
  ["l", "layer"],
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
  for (const [id, label] of TABS)
    if (data && label.toLowerCase().includes(wanted))
      out.push({ label, note: "screen", act: () => go(runLink(key, id)) });
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

export function TroubleScreen({ trouble }: { trouble: Trouble }): JSX.Element {
  return (
    <main class="trouble">
      <h1>{trouble.what}</h1>
      <p>{trouble.do ? `${trouble.do.replace(/\.$/, "")}.` : ""}</p>
      {trouble.command && (
        <code class="remedy">
          <span>{trouble.command}</span>
          <CopyButton class="ghost" label="Copy the command" text={trouble.command}>
            <Icon name="copy" size={14} />
          </CopyButton>
        </code>
      )}
      <p>
        <a class="button" href="#/">
          All runs
        </a>
      </p>
    </main>
  );
}
export function Empty({ title, text, command }: { title: string; text: string; command: string }): JSX.Element {
  return (
    <div class="empty">
      <b>{title}</b>
      <p>{text}</p>
      <code class="remedy">
        <span>{command}</span>
        <CopyButton class="ghost" label="Copy the command" text={command}>
          <Icon name="copy" size={14} />
        </CopyButton>
      </code>
    </div>
  );
}
export const copyAddress = async (): Promise<void> => {
  try {
    await navigator.clipboard.writeText(location.origin + location.pathname + address());
    toast.value = { severity: "Info", text: "Link copied", note: "It leads to this view on this machine." };
  } catch {
    /* the button says so itself */
  }
};
