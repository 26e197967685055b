"""A small GPT with gradient accumulation and mixed precision, in the style of the small trainers people start from."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

BLOCK = 32


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, width=48, heads=4, layers=3):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(BLOCK, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def get_batch(tokens, size):
    starts = torch.randint(0, len(tokens) - BLOCK - 1, (size,))
    window = tokens[starts[:, None] + torch.arange(BLOCK + 1)]
    return window[:, :-1], window[:, 1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_iters", type=int, default=40)
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--fault", action="store_true", help="clip the gradients while they are still scaled")
    args = parser.parse_args()
    torch.manual_seed(1337)
    torch.set_num_threads(1)
    text = "".join(f"{a} plus {b} is {a + b}. " for a in range(30) for b in range(30))
    letters = sorted(set(text))
    tokens = torch.tensor([letters.index(letter) for letter in text])
    model = GPT(len(letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for it in range(args.max_iters):
        for _ in range(args.accumulation):
            x, y = get_batch(tokens, 8)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                _, loss = model(x, y)
            scaler.scale(loss / args.accumulation).backward()
        if not args.fault:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if it % 10 == 0:
            print(f"iter {it}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
