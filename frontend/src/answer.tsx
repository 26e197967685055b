// One question of a screen, asked again when the run changes; the tabs under More on a phone.
import { type JSX } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { askRun } from "./api";
import { handleKeys } from "./keys";
import { type RunSession } from "./session";
import { go, isPhone, route, runLink } from "./state";
import { SCREENS, type Answers, type Trouble } from "./types";

export function useAnswer<Question extends keyof Answers>(
  session: RunSession,
  question: Question,
): [Answers[Question] | null, Trouble | null] {
  const [found, setFound] = useState<Answers[Question] | null>(null);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const version = session.data.value?.version;
  useEffect(() => {
    let alive = true;
    askRun(session.key, question, { v: version }).then(
      (value) => {
        if (alive) setFound(value);
      },
      (error) => {
        if (alive) setTrouble(error.trouble ?? { what: String(error), do: "" });
      },
    );
    return () => {
      alive = false;
    };
  }, [session, question, version]);
  useLayoutEffect(() => handleKeys({ session, up: () => go(runLink(session.key)) }), [session]);
  return [found, trouble];
}
/** On a phone the bar below has no room for the screens without an icon: they share its last place. */
export function MoreTabs({ session }: { session: RunSession }): JSX.Element | null {
  if (!isPhone.value) return null;
  const here = route.value.screen;
  return (
    <nav class="moretabs" aria-label="More screens">
      {SCREENS.filter((one) => !one.icon).map(({ name, title }) => (
        <a
          href={runLink(session.key, name)}
          class={here === name ? "here" : ""}
          aria-current={here === name ? "page" : undefined}
        >
          {title}
        </a>
      ))}
    </nav>
  );
}
