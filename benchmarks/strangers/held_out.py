"""The programs that were opened once the rules were frozen: the other half of the repositories."""

from __future__ import annotations

from typing import Final

from benchmarks.strangers.program import Program, cora

_MORVAN: Final = "MorvanZhou/PyTorch-Tutorial"
_NLP: Final = "graykode/nlp-tutorial"
_CLEAN: Final = "vwxyzjn/cleanrl"


def _morvan(name: str, *, mutated: bool = False, steps: int = 300) -> Program:
    script = f"tutorial-contents/{name}.py"
    return Program(_MORVAN, script, steps=steps, is_mutated=mutated)


def _nlp(script: str, *, mutated: bool = False) -> Program:
    return Program(_NLP, script, steps=300, is_mutated=mutated)


PROGRAMS: Final = (
    _morvan("301_regression"),
    _morvan("302_classification", mutated=True),
    _morvan("304_save_reload"),
    _morvan("306_optimizer"),
    _morvan("401_CNN"),
    _morvan("402_RNN_classifier"),
    _morvan("403_RNN_regressor", mutated=True),
    _morvan("404_autoencoder", steps=200),
    _morvan("405_DQN_Reinforcement_learning"),
    _morvan("406_GAN", steps=600),
    _morvan("503_dropout"),
    _morvan("504_batch_normalization"),
    _nlp("1-1.NNLM/NNLM.py", mutated=True),
    _nlp("2-1.TextCNN/TextCNN.py", mutated=True),
    _nlp("3-1.TextRNN/TextRNN.py", mutated=True),
    _nlp("3-2.TextLSTM/TextLSTM.py", mutated=True),
    _nlp("4-1.Seq2Seq/Seq2Seq.py"),
    _nlp("4-3.Bi-LSTM(Attention)/Bi-LSTM(Attention).py"),
    _nlp("5-1.Transformer/Transformer.py"),
    _nlp("5-2.BERT/BERT.py"),
    Program(
        "karpathy/minGPT",
        "projects/adder/adder.py",
        "--trainer.max_iters=120 --trainer.num_workers=0",
        steps=120,
        is_mutated=False,
    ),
    Program("rtqichen/torchdiffeq", "examples/ode_demo.py", "--niters 60 --data_size 200", steps=60, is_mutated=False),
    Program("tkipf/pygcn", "pygcn/train.py", "--epochs 100 --no-cuda", prepare=cora, is_mutated=False),
    Program(
        "spro/practical-pytorch",
        "char-rnn-classification/train.py",
        steps=400,
        is_mutated=False,
    ),
    Program(
        _CLEAN,
        "cleanrl/dqn.py",
        "--total-timesteps 3000 --learning-starts 500 --train-frequency 10 --no-cuda",
        is_mutated=False,
    ),
    Program(_CLEAN, "cleanrl/ppo.py", "--total-timesteps 2048 --num-envs 2 --num-steps 64 --no-cuda", is_mutated=False),
)
