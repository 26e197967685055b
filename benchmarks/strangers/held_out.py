"""The programs that were opened once the rules were frozen: the other half of the repositories."""

from __future__ import annotations

from typing import Final

from benchmarks.strangers.preparing import cora, discs, text_as_input_txt
from benchmarks.strangers.program import Program

_MORVAN: Final = "MorvanZhou/PyTorch-Tutorial"
_NLP: Final = "graykode/nlp-tutorial"
_CLEAN: Final = "vwxyzjn/cleanrl"
_ODE: Final = "rtqichen/torchdiffeq"
_FLOWS: Final = "kamenbliznashki/normalizing_flows"
_CONTRAST: Final = "HobbitLong/SupContrast"
_SMALL: Final = "--batch_size 32 --num_workers 0 --epochs 2 --model resnet18 --print_freq 5"
_ACTOR: Final = "ikostrikov/pytorch-a2c-ppo-acktr-gail"


def _morvan(name: str, *, mutated: bool = False, steps: int = 300) -> Program:
    script = f"tutorial-contents/{name}.py"
    return Program(_MORVAN, script, steps=steps, is_mutated=mutated)


def _nlp(script: str, *, mutated: bool = False) -> Program:
    return Program(_NLP, script, steps=300, is_mutated=mutated)


PROGRAMS: Final = (
    _morvan("301_regression", mutated=True),
    _morvan("302_classification", mutated=True),
    _morvan("304_save_reload"),
    _morvan("306_optimizer"),
    _morvan("402_RNN_classifier", mutated=True),
    _morvan("403_RNN_regressor", mutated=True),
    _morvan("404_autoencoder", steps=200, mutated=True),
    _morvan("405_DQN_Reinforcement_learning"),
    _morvan("406_GAN", steps=600),
    _morvan("503_dropout"),
    _morvan("504_batch_normalization"),
    _nlp("1-1.NNLM/NNLM.py", mutated=True),
    _nlp("2-1.TextCNN/TextCNN.py", mutated=True),
    _nlp("3-1.TextRNN/TextRNN.py", mutated=True),
    _nlp("3-2.TextLSTM/TextLSTM.py", mutated=True),
    _nlp("4-1.Seq2Seq/Seq2Seq.py", mutated=True),
    _nlp("4-3.Bi-LSTM(Attention)/Bi-LSTM(Attention).py", mutated=True),
    _nlp("5-1.Transformer/Transformer.py"),
    _nlp("5-2.BERT/BERT.py"),
    _nlp("1-2.Word2Vec/Word2Vec-Skipgram(Softmax).py", mutated=True),
    _nlp("3-3.Bi-LSTM/Bi-LSTM.py", mutated=True),
    _nlp("4-2.Seq2Seq(Attention)/Seq2Seq(Attention).py", mutated=True),
    _nlp("5-1.Transformer/Transformer(Greedy_decoder).py"),
    Program(
        "karpathy/minGPT",
        "projects/adder/adder.py",
        "--trainer.max_iters=300 --trainer.num_workers=0",
        steps=300,
        files=("mingpt/trainer.py", "mingpt/model.py"),
    ),
    Program(
        "karpathy/minGPT",
        "projects/chargpt/chargpt.py",
        "--trainer.max_iters=100 --trainer.num_workers=0 --model.model_type=gpt-nano --data.block_size=32 "
        "--trainer.batch_size=16",
        steps=100,
        prepare=text_as_input_txt,
        is_mutated=False,
    ),
    Program(_ODE, "examples/ode_demo.py", "--niters 150 --data_size 200", metric=r"Total Loss ([\d.naninf]+)"),
    Program(_ODE, "examples/latent_ode.py", "--niters 40", is_mutated=False),
    Program(_ODE, "examples/learn_physics.py", "--num_iterations 40", is_mutated=False),
    Program(_ODE, "examples/odenet_mnist.py", "--network resnet --nepochs 2 --batch_size 32", samples=500),
    Program(
        "tkipf/pygcn",
        "pygcn/train.py",
        "--epochs 100 --no-cuda",
        prepare=cora,
        metric=r"accuracy= ([\d.]+)",
        higher_is_better=True,
        files=("pygcn/models.py",),
    ),
    Program(
        _CLEAN,
        "cleanrl/dqn.py",
        "--total-timesteps 3000 --learning-starts 500 --train-frequency 10 --no-cuda",
        is_mutated=False,
    ),
    Program(
        _CLEAN,
        "cleanrl/c51.py",
        "--total-timesteps 2500 --learning-starts 500 --train-frequency 10 --no-cuda",
        is_mutated=False,
    ),
    Program(_CLEAN, "cleanrl/ppo.py", "--total-timesteps 2048 --num-envs 2 --num-steps 64 --no-cuda", is_mutated=False),
    Program(_CLEAN, "cleanrl/pqn.py", "--total-timesteps 2048 --num-envs 2 --num-steps 64 --no-cuda", is_mutated=False),
    *(
        Program(_CLEAN, f"cleanrl/{name}.py", f"--env-id Pendulum-v1 --no-cuda {more}", is_mutated=False)
        for name, more in (
            ("ddpg_continuous_action", "--total-timesteps 700 --learning-starts 400 --buffer-size 10000"),
            ("td3_continuous_action", "--total-timesteps 700 --learning-starts 400 --buffer-size 10000"),
            ("sac_continuous_action", "--total-timesteps 600 --learning-starts 400 --buffer-size 10000"),
            ("ppo_continuous_action", "--total-timesteps 2048 --num-steps 512 --num-minibatches 8 --update-epochs 4"),
            ("rpo_continuous_action", "--total-timesteps 2048 --num-steps 512 --num-minibatches 8 --update-epochs 4"),
        )
    ),
    Program("kuangliu/pytorch-cifar", "main.py", samples=24, steps=24, is_mutated=False, seconds=110.0),
    Program(_CONTRAST, "main_supcon.py", _SMALL, samples=400, steps=25, is_mutated=False, seconds=60.0),
    Program(
        _CONTRAST, "main_supcon.py", f"{_SMALL} --method SimCLR", samples=400, steps=25, is_mutated=False, seconds=60.0
    ),
    Program(
        _CONTRAST, "main_ce.py", f"{_SMALL} --learning_rate 0.05", samples=400, steps=25, is_mutated=False, seconds=60.0
    ),
    Program(
        "milesial/Pytorch-UNet",
        "train.py",
        "--epochs 2 --batch-size 2 --scale 1 --learning-rate 1e-4 --validation 20",
        prepare=discs,
        is_mutated=False,
        seconds=90.0,
    ),
    Program(
        _FLOWS,
        "planar_flow.py",
        "--train --target_potential u_z1 --flow_length 8 --n_steps 300 --lr 1e-3 --output_dir out",
        is_mutated=False,
    ),
    *(
        # Ended before the plot of its first epoch, which asks for an option that there is not.
        Program(
            _FLOWS,
            "maf.py",
            f"--train --dataset TOY --model {name} --lr 1e-3 --output_dir out",
            steps=240,
            is_mutated=False,
        )
        for name in ("maf", "realnvp", "made")
    ),
    *(
        Program(
            _ACTOR,
            "main.py",
            f"--env-name CartPole-v1 --algo {name} --num-processes 2 --no-cuda --log-dir log --save-dir models {more}",
            is_mutated=False,
        )
        for name, more in (
            ("a2c", "--num-env-steps 3000"),
            ("ppo", "--num-env-steps 3000 --num-steps 128 --num-mini-batch 4 --lr 2.5e-4 --use-gae"),
        )
    ),
)
