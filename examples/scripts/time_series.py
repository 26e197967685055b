"""Sine waves continued by two LSTM cells trained with LBFGS, in the style of PyTorch's time sequence example."""

import argparse

import torch
from torch import nn, optim


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1 = nn.LSTMCell(1, 16)
        self.lstm2 = nn.LSTMCell(16, 16)
        self.linear = nn.Linear(16, 1)

    def forward(self, wave, future=0):
        outputs = []
        h1 = c1 = h2 = c2 = torch.zeros(wave.size(0), 16, dtype=torch.double)
        for value in wave.split(1, dim=1):
            h1, c1 = self.lstm1(value, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            outputs.append(self.linear(h2))
        for _ in range(future):
            h1, c1 = self.lstm1(outputs[-1], (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--fault", action="store_true", help="the closure does not clear the gradients")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shift = torch.randint(-40, 40, (24, 1))
    data = torch.sin((torch.arange(30) + shift) / 5.0).double()
    source, target, test_input, test_target = data[4:, :-1], data[4:, 1:], data[:4, :-1], data[:4, 1:]
    seq = Sequence().double()
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(seq.parameters(), lr=0.5, max_iter=4)
    for i in range(args.steps):

        def closure():
            if not args.fault:
                optimizer.zero_grad()
            loss = criterion(seq(source), target)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        with torch.no_grad():
            pred = seq(test_input, future=5)
            test_loss = criterion(pred[:, :-5], test_target)
        print(f"STEP: {i} loss: {loss.item():.6f} test loss: {test_loss.item():.6f}")


if __name__ == "__main__":
    main()
