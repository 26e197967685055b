"""An LSTM language model over made sentences, in the style of PyTorch's word_language_model example."""

import argparse
import random

import torch
from torch import nn

SUBJECTS = ["the cat", "a dog", "my neighbour", "the old clock", "every child"]
VERBS = ["sees", "follows", "forgets", "draws", "finds"]
OBJECTS = ["the moon", "a red ball", "some bread", "the open door", "a quiet song"]


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers):
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=0.1)
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return self.decoder(self.drop(output)), hidden


def repackage_hidden(hidden):
    return tuple(h.detach() for h in hidden)


def batchify(data, bsz):
    length = data.size(0) // bsz
    return data[: length * bsz].view(bsz, -1).t().contiguous()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--bptt", type=int, default=16)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--fault", action="store_true", help="clear the gradients between backward and step")
    args = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    words = " ".join(
        f"{random.choice(SUBJECTS)} {random.choice(VERBS)} {random.choice(OBJECTS)} ." for _ in range(1500)
    ).split()
    vocabulary = sorted(set(words))
    data = batchify(torch.tensor([vocabulary.index(word) for word in words]), 20)
    model = RNNModel(len(vocabulary), 32, 48, 2)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(1, args.epochs + 1):
        model.train()
        hidden = (torch.zeros(2, 20, 48), torch.zeros(2, 20, 48))
        total = 0.0
        starts = range(0, data.size(0) - 1 - args.bptt, args.bptt)
        for start in starts:
            inputs = data[start : start + args.bptt]
            targets = data[start + 1 : start + 1 + args.bptt]
            hidden = repackage_hidden(hidden)
            output, hidden = model(inputs, hidden)
            loss = criterion(output.view(-1, len(vocabulary)), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            if args.fault:
                optimizer.zero_grad()
            optimizer.step()
            total += loss.item()
        print(f"| epoch {epoch:3d} | {len(starts):4d} batches | loss {total / len(starts):5.2f}")


if __name__ == "__main__":
    main()
