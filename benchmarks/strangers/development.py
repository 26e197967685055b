"""The programs that the rules were mended on: every second repository of the alphabetical list."""

from __future__ import annotations

from typing import Final

from benchmarks.strangers.preparing import (
    cora_as_csv,
    shakespeare_bytes,
    short_sound,
    sine_waves,
    sphere,
    translations,
    words_as_train_txt,
    words_in_three_files,
)
from benchmarks.strangers.program import Program

_TUTORIAL: Final = "yunjey/pytorch-tutorial"
_EXAMPLES: Final = "pytorch/examples"
_GAN: Final = "eriklindernoren/PyTorch-GAN"
_TCN: Final = "locuslab/TCN"
_SIREN: Final = "vsitzmann/siren"
_MIDDLE: Final = "tutorials/02-intermediate"
_PERCENT: Final = r"test images: ([\d.]+) %"
_NAMES: Final = "--num-workers 0 --max-steps 400 --n-embd 32 --n-embd2 32 --n-layer 2"
_NANO: Final = (
    "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=2 --eval_interval=60 --log_interval=20 "
    "--block_size=32 --batch_size=12 --n_layer=2 --n_head=2 --n_embd=32 --max_iters=300 --lr_decay_iters=300 --dropout=0.0"
)


def _gan(name: str, **settings: str) -> Program:
    script = f"implementations/{name}/{name}.py"
    epochs = settings.get("n_epochs", "6")
    return Program(_GAN, script, f"--n_epochs {epochs} --n_cpu 0", samples=1000, is_mutated=False, seconds=40.0)


PROGRAMS: Final = (
    Program(
        _TUTORIAL, "tutorials/01-basics/feedforward_neural_network/main.py", metric=_PERCENT, higher_is_better=True
    ),
    Program(_TUTORIAL, "tutorials/01-basics/linear_regression/main.py", is_mutated=False),
    Program(_TUTORIAL, "tutorials/01-basics/logistic_regression/main.py", metric=_PERCENT, higher_is_better=True),
    Program(
        _TUTORIAL, f"{_MIDDLE}/bidirectional_recurrent_neural_network/main.py", metric=_PERCENT, higher_is_better=True
    ),
    Program(
        _TUTORIAL,
        f"{_MIDDLE}/convolutional_neural_network/main.py",
        metric=_PERCENT,
        higher_is_better=True,
    ),
    Program(_TUTORIAL, f"{_MIDDLE}/deep_residual_network/main.py", steps=60, is_mutated=False),
    Program(_TUTORIAL, f"{_MIDDLE}/recurrent_neural_network/main.py", metric=_PERCENT, higher_is_better=True),
    Program(_TUTORIAL, f"{_MIDDLE}/language_model/main.py", steps=60, prepare=words_as_train_txt),
    Program(_TUTORIAL, "tutorials/03-advanced/generative_adversarial_network/main.py", steps=600, is_mutated=False),
    Program(_TUTORIAL, "tutorials/03-advanced/variational_autoencoder/main.py"),
    Program(_EXAMPLES, "mnist/main.py", "--epochs 3", metric=r"Accuracy: \d+/\d+ \((\d+)%\)", higher_is_better=True),
    Program(
        _EXAMPLES, "mnist_rnn/main.py", "--epochs 6", metric=r"Accuracy: \d+/\d+ \((\d+)%\)", higher_is_better=True
    ),
    Program(
        _EXAMPLES, "mnist_forward_forward/main.py", "--epochs 60 --train_size 500 --test_size 200", is_mutated=False
    ),
    Program(_EXAMPLES, "vae/main.py", "--epochs 12", metric=r"Test set loss: ([\d.naninf]+)"),
    Program(_EXAMPLES, "regression/main.py", is_mutated=False),
    Program(
        _EXAMPLES,
        "dcgan/main.py",
        "--dataset fake --niter 1 --imageSize 64 --ngf 8 --ndf 8 --workers 0",
        samples=900,
        steps=60,
        is_mutated=False,
    ),
    Program(_EXAMPLES, "siamese_network/main.py", "--epochs 2 --test-batch-size 100", samples=800, is_mutated=False),
    Program(_EXAMPLES, "reinforcement_learning/reinforce.py", steps=120, is_mutated=False),
    Program(_EXAMPLES, "reinforcement_learning/actor_critic.py", steps=120, is_mutated=False),
    Program(_EXAMPLES, "time_sequence_prediction/train.py", "--steps 3", prepare=sine_waves, is_mutated=False),
    Program(
        _EXAMPLES,
        "word_language_model/main.py",
        "--data ./data/words --emsize 32 --nhid 32 --epochs 4 --log-interval 20 --use-optimizer --lr 0.01",
        prepare=words_in_three_files,
        metric=r"valid loss +([\d.naninf]+)",
    ),
    _gan("gan"),
    _gan("lsgan"),
    _gan("wgan"),
    _gan("wgan_gp"),
    _gan("cgan"),
    _gan("aae"),
    _gan("acgan", n_epochs="2"),
    _gan("dcgan", n_epochs="2"),
    _gan("ebgan", n_epochs="2"),
    _gan("infogan", n_epochs="2"),
    _gan("relativistic_gan", n_epochs="2"),
    _gan("sgan", n_epochs="2"),
    _gan("wgan_div"),
    Program("karpathy/makemore", "makemore.py", f"--type mlp {_NAMES}", steps=400),
    Program("karpathy/makemore", "makemore.py", f"--type transformer {_NAMES}", steps=400),
    Program("karpathy/makemore", "makemore.py", f"--type gru {_NAMES}", steps=400),
    Program("karpathy/makemore", "makemore.py", f"--type bow {_NAMES}", steps=400),
    Program("karpathy/makemore", "makemore.py", f"--type rnn {_NAMES}", steps=400),
    Program("karpathy/makemore", "makemore.py", f"--type bigram {_NAMES}", steps=400, is_mutated=False),
    Program(
        "karpathy/nanoGPT",
        "train.py",
        _NANO,
        prepare=shakespeare_bytes,
        metric=r"val loss ([\d.naninf]+)",
        seconds=15.0,
    ),
    Program(
        _TCN,
        "TCN/copy_memory/copymem_test.py",
        "--blank_len 50 --levels 4 --batch_size 64 --epochs 2",
        metric=r"Accuracy: ([\d.]+)",
        higher_is_better=True,
        is_mutated=False,
        seconds=60.0,
    ),
    Program(
        _TCN,
        "TCN/adding_problem/add_test.py",
        "--seq_len 40 --levels 4 --batch_size 128 --epochs 1",
        metric=r"Average loss: ([\d.naninf]+)",
        seconds=30.0,
    ),
    Program(
        _TCN,
        "TCN/mnist_pixel/pmnist_test.py",
        "--levels 4 --nhid 8 --epochs 3 --batch_size 16",
        samples=600,
        is_mutated=False,
        seconds=60.0,
    ),
    Program(_TCN, "TCN/poly_music/music_test.py", "--nhid 20 --levels 2 --epochs 2", steps=250, is_mutated=False),
    Program("lucidrains/x-transformers", "train_copy.py", steps=60, is_mutated=False, seconds=60.0),
    Program(
        "sfujim/TD3",
        "main.py",
        "--env Pendulum-v1 --max_timesteps 500 --start_timesteps 200",
        steps=500,
        is_mutated=False,
    ),
    Program(
        "sthalles/SimCLR",
        "run.py",
        "-dataset-name cifar10 --epochs 3 --batch-size 32 -j 0 --disable-cuda --arch resnet18",
        samples=600,
        is_mutated=False,
    ),
    Program(
        "sfujim/TD3",
        "main.py",
        "--policy DDPG --env Pendulum-v1 --max_timesteps 500 --start_timesteps 200",
        steps=500,
        is_mutated=False,
    ),
    Program(
        "jadore801120/attention-is-all-you-need-pytorch",
        "train.py",
        "-data_pkl data.pkl -output_dir out -no_cuda -epoch 4 -b 32 -d_model 64 -d_inner_hid 128 -d_k 16 -d_v 16 "
        "-n_head 4 -n_layers 2 -warmup 100 -dropout 0.0",
        prepare=translations,
        metric=r"\(Validation\) +ppl: +([\d.naninf]+)",
        files=("transformer/Models.py", "transformer/Optim.py"),
    ),
    Program(
        _EXAMPLES,
        "gat/main.py",
        "--epochs 40 --num-heads 2 --hidden-dim 16",
        prepare=cora_as_csv,
        is_mutated=False,
        seconds=60.0,
    ),
    Program(
        _EXAMPLES,
        "imagenet/main.py",
        "--dummy --epochs 2 -b 16 -j 0 -p 5 --lr 0.01 -a resnet18",
        samples=96,
        is_mutated=False,
        seconds=60.0,
    ),
    Program(_SIREN, "experiment_scripts/train_audio.py", prepare=short_sound, steps=150, is_mutated=False),
    Program(
        _SIREN,
        "experiment_scripts/train_sdf.py",
        "--experiment_name sdf --point_cloud_path sphere.xyz --batch_size 500 --model_type sine",
        prepare=sphere,
        steps=120,
        is_mutated=False,
    ),
    *(
        Program("KindXiaoming/pykan", f"{name}.ipynb", steps=200, is_mutated=False)
        for name in (
            "hellokan",
            "tutorials/Example/Example_1_function_fitting",
            "tutorials/Example/Example_4_classfication",
            "tutorials/Example/Example_9_singularity",
        )
    ),
    *(
        Program("higgsfield/RL-Adventure-2", f"{name}.ipynb", steps=300, is_mutated=False)
        for name in ("4.acer", "5.ddpg", "6.td3", "7.soft actor-critic")
    ),
    Program(
        "lucidrains/x-transformers",
        "train_parity.py",
        steps=20,
        is_mutated=False,
        seconds=60.0,
    ),
)
