// The bar at the top, the tabs, the status line, and screens that say what went wrong.
import { type ComponentChildren, type JSX } from "preact";
import { count } from "./format";
import { Icon, Logo, StateSign, ThemeIcon } from "./glyphs";
import { toast } from "./overlays";
import { CopyButton } from "./pieces";
import { address, flipTheme, following, isPhone, overlay, paused, route, runLink } from "./state";
import { SCREENS, type RunData, type Trouble } from "./types";

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
          {SCREENS.map((one) => (
            <a
              href={runLink(key, one.name)}
              class={screen === one.name ? "here" : ""}
              aria-current={screen === one.name ? "page" : undefined}
            >
              {one.title}
              {one.count && data && data.counts[one.count] > 0 && <small>{count(data.counts[one.count])}</small>}
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
  const more = SCREENS.filter((one) => !one.icon);
  const tabs = [...SCREENS.filter((one) => one.icon), { name: more[0].name, title: "More", icon: "more" }];
  const isHere = (name: string): boolean =>
    screen === name || (name === more[0].name && more.some((one) => one.name === screen));
  return (
    <nav class="phonetabs" aria-label="Screens">
      {tabs.map(({ name, title, icon }) => (
        <a
          href={runLink(key, name)}
          class={isHere(name) ? "here" : ""}
          aria-current={screen === name ? "page" : undefined}
        >
          <Icon name={icon} />
          <span>{title}</span>
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
