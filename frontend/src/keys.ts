// The keys that are the same on every screen with steps.
import { cursor, flipTheme, following, go, kind, overlay, paused, raw, runLink, selected, view } from "./state";
import { copyAddress } from "./chrome";
import { flagsOf, place, scaleFor } from "./steps";
import { SCREENS } from "./types";
import { type RunSession } from "./session";
import { zoomed } from "./pointer";

export interface KeyHooks {
  session?: RunSession;
  rows?: () => string[];
  toggle?: (path: string) => void;
  open?: (path: string) => void;
  said?: () => void;
  up?: () => void;
  play?: () => void;
  extra?: (key: string, event: KeyboardEvent) => boolean;
}
/** The key before this one was g. */
let afterG = false;

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement &&
  (target.isContentEditable ||
    ["SELECT", "TEXTAREA"].includes(target.tagName) ||
    (target instanceof HTMLInputElement && target.type !== "checkbox"));

/** Call it in a layout effect: a key pressed in the moment a screen is drawn must find its listener. */
export function handleKeys(hooks: KeyHooks): () => void {
  const listener = (event: KeyboardEvent): void => {
    const wasG = afterG;
    afterG = event.key === "g" && !isTyping(event.target);
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      overlay.value = overlay.value === "palette" ? "" : "palette";
      event.preventDefault();
      return;
    }
    if (event.key === "Escape" && overlay.value) {
      overlay.value = "";
      event.preventDefault();
      return;
    }
    if (overlay.value || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (
      hooks.extra?.(event.key, event) ||
      common(event, hooks, wasG) ||
      (hooks.session && onSteps(event, hooks, hooks.session))
    )
      event.preventDefault();
  };
  addEventListener("keydown", listener);
  return () => removeEventListener("keydown", listener);
}

function common(event: KeyboardEvent, hooks: KeyHooks, wasG: boolean): boolean {
  switch (event.key) {
    case "g":
      return true;
    case "r":
      if (wasG) go("#/");
      return wasG;
    case "?":
      overlay.value = "keys";
      return true;
    case "t":
      flipTheme();
      return true;
    case "s":
      overlay.value = "save";
      return true;
    case "y":
      void copyAddress();
      return true;
    case "/":
      dispatchEvent(new Event("stethoscope-filter"));
      return true;
    case "Escape":
      hooks.up?.();
      return Boolean(hooks.up);
    default:
      return false;
  }
}

function onSteps(event: KeyboardEvent, hooks: KeyHooks, session: RunSession): boolean {
  const data = session.data.value;
  if (!data) return false;
  const [first, last] = data.span;
  const size = session.heat.value?.size ?? 1;
  const to = (step: number): boolean => {
    cursor.value = Math.max(first, Math.min(last, step));
    following.value = false;
    reveal(data.span);
    hooks.said?.();
    return true;
  };
  const here = cursor.value ?? last;
  const onButton = event.target instanceof HTMLElement && ["BUTTON", "A"].includes(event.target.tagName);
  switch (event.key) {
    case "ArrowRight":
      return to(here + size * (event.shiftKey ? 10 : 1));
    case "ArrowLeft":
      return to(here - size * (event.shiftKey ? 10 : 1));
    case "Home":
      return to(first);
    case "End":
      return to(last);
    case "]": {
      const next = flagsOf(data).find((flag) => flag.step > here);
      return next ? to(next.step) : true;
    }
    case "[": {
      const back = flagsOf(data)
        .filter((flag) => flag.step < here)
        .pop();
      return back ? to(back.step) : true;
    }
    case "j":
    case "ArrowDown":
      return move(hooks, 1);
    case "k":
    case "ArrowUp":
      return move(hooks, -1);
    case "o":
      if (selected.value) hooks.toggle?.(selected.value);
      return true;
    case "Enter":
      if (onButton) return false;
      if (selected.value) hooks.open?.(selected.value);
      return Boolean(selected.value);
    case "v":
      raw.value = !raw.value;
      return true;
    case "+":
    case "=":
    case "-":
    case "0":
      return zoom(event.key, session);
    case " ":
      if (onButton) return false;
      if (hooks.play) hooks.play();
      else if (data.run.state === "live") {
        paused.value = !paused.value;
        if (!paused.value) following.value = true;
      }
      return true;
    default:
      break;
  }
  const screen = SCREENS.find((one) => one.key && one.key === event.key);
  if (screen) {
    go(runLink(session.key, screen.name, { ...place(), ...(selected.value ? { at: selected.value } : {}) }));
    return true;
  }
  if (/^[1-6]$/.test(event.key)) {
    const wanted = ["gradient", "weight", "update", "activation", "activation_gradient", "optimizer_state"][
      Number(event.key) - 1
    ];
    if (data.kinds.includes(wanted)) kind.value = wanted;
    return true;
  }
  return false;
}
function move(hooks: KeyHooks, by: number): boolean {
  const rows = hooks.rows?.() ?? [];
  if (!rows.length) return false;
  const at = rows.indexOf(selected.value);
  selected.value = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by))];
  hooks.said?.();
  return true;
}
function zoom(key: string, session: RunSession): boolean {
  const data = session.data.value,
    shown = view.value;
  if (!data || !shown) return false;
  following.value = false;
  if (key === "0") view.value = data.span;
  else
    view.value = zoomed(
      { ...scaleFor(data, shown, 100), first: shown[0], last: shown[1] },
      data.span,
      key === "-" ? 2 : 0.5,
      cursor.value ?? Math.round((shown[0] + shown[1]) / 2),
    );
  return true;
}
function reveal(span: [number, number]): void {
  const shown = view.value,
    step = cursor.value;
  if (!shown || step === null || (step >= shown[0] && step <= shown[1])) return;
  const half = Math.round((shown[1] - shown[0]) / 2);
  const first = Math.max(span[0], Math.min(span[1] - 2 * half, step - half));
  view.value = [first, first + 2 * half];
}
