"""REINFORCE on a pole that must be held upright, in the style of PyTorch's reinforcement learning examples."""

import argparse
import math
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.distributions import Categorical


class Pole:
    """A pole on a cart, simplified to angle and speed; an episode ends when it falls or after 40 moves."""

    def reset(self):
        self.angle, self.speed, self.age = (torch.rand(1).item() - 0.5) * 0.1, 0.0, 0
        return torch.tensor([self.angle, self.speed])

    def step(self, action):
        self.speed += 0.05 * math.sin(self.angle) * 9.8 * 0.2 + (0.08 if action else -0.08)
        self.angle += 0.1 * self.speed
        self.age += 1
        done = abs(self.angle) > 0.3 or self.age >= 40
        return torch.tensor([self.angle, self.speed]), 1.0, done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(2, 32)
        self.affine2 = nn.Linear(32, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        return F.softmax(self.affine2(torch.tanh(self.affine1(x))), dim=1)


def select_action(policy, state):
    m = Categorical(policy(state.unsqueeze(0)))
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode(policy, optimizer, *, step):
    R, returns = 0.0, deque()
    for r in policy.rewards[::-1]:
        R = r + 0.97 * R
        returns.appendleft(R)
    returns = torch.tensor(list(returns))
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = torch.cat([-log_prob * R for log_prob, R in zip(policy.saved_log_probs, returns, strict=True)]).sum()
    optimizer.zero_grad()
    loss.backward()
    if step:
        optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--fault", action="store_true", help="forget optimizer.step()")
    args = parser.parse_args()
    torch.manual_seed(543)
    torch.set_num_threads(1)
    env, policy = Pole(), Policy()
    optimizer = optim.Adam(policy.parameters(), lr=1e-2)
    running_reward = 10.0
    for i_episode in range(1, args.episodes + 1):
        state, done = env.reset(), False
        while not done:
            state, reward, done = env.step(select_action(policy, state))
            policy.rewards.append(reward)
        running_reward = 0.05 * len(policy.rewards) + 0.95 * running_reward
        finish_episode(policy, optimizer, step=not args.fault)
        if i_episode % 10 == 0:
            print(f"Episode {i_episode}\tAverage reward: {running_reward:.2f}")


if __name__ == "__main__":
    main()
