"""Actor and critic on a walk along a line, in the style of PyTorch's reinforcement learning examples."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.distributions import Categorical


class Walk:
    """Nine places in a row; the right end pays, each move costs a little."""

    def reset(self):
        self.place, self.age = 4, 0
        return self._state()

    def step(self, action):
        self.place = min(8, max(0, self.place + (1 if action else -1)))
        self.age += 1
        done = self.place == 8 or self.age >= 20
        return self._state(), (1.0 if self.place == 8 else -0.02), done

    def _state(self):
        return F.one_hot(torch.tensor(self.place), 9).float()


class Policy(nn.Module):
    """Actor and critic in one model."""

    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(9, 32)
        self.action_head = nn.Linear(32, 2)
        self.value_head = nn.Linear(32, 1)

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


def finish_episode(optimizer, actions, rewards):
    R, returns = 0.0, []
    for r in rewards[::-1]:
        R = r + 0.95 * R
        returns.insert(0, R)
    losses = []
    for (log_prob, value), R in zip(actions, returns, strict=True):
        advantage = R - value.item()
        losses.append(-log_prob * advantage + F.smooth_l1_loss(value, torch.tensor([R])))
    optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--fault", action="store_true", help="the critic's head is not in the optimizer")
    args = parser.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    env, model = Walk(), Policy()
    parameters = [p for name, p in model.named_parameters() if not (args.fault and name.startswith("value_head"))]
    optimizer = optim.Adam(parameters, lr=1e-2)
    running_reward = 0.0
    for i_episode in range(1, args.episodes + 1):
        state, done, actions, rewards = env.reset(), False, [], []
        while not done:
            probs, value = model(state)
            m = Categorical(probs)
            action = m.sample()
            actions.append((m.log_prob(action), value))
            state, reward, done = env.step(action.item())
            rewards.append(reward)
        running_reward = 0.05 * sum(rewards) + 0.95 * running_reward
        finish_episode(optimizer, actions, rewards)
        if i_episode % 10 == 0:
            print(f"Episode {i_episode}\tAverage reward: {running_reward:.2f}")


if __name__ == "__main__":
    main()
