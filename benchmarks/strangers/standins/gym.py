"""The old interface of gym over gymnasium: `reset` gives an observation, `step` four values, and there is a `seed`."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces

__all__ = ["make", "spaces"]


class _Old:
    def __init__(self, env: Any) -> None:
        self.env, self._seed = env, None
        self._max_episode_steps = env.spec.max_episode_steps if env.spec else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def seed(self, seed: int | None = None) -> None:
        """Keeps it for the next `reset`."""
        self._seed = seed
        self.env.action_space.seed(seed)

    def reset(self) -> Any:
        """An observation."""
        seed, self._seed = self._seed, None
        return self.env.reset(seed=seed)[0]

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """Observation, reward, whether it is done, and more."""
        observation, reward, ended, cut, info = self.env.step(action)
        return observation, float(reward), bool(ended or cut), info


def make(name: str, **kwargs: Any) -> _Old:
    """By its name; versions that are gone give their successor."""
    for old in ("Pendulum", "CartPole"):
        name = name.replace(f"{old}-v0", f"{old}-v1")
    return _Old(gymnasium.make(name, **kwargs))
