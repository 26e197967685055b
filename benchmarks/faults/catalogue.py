"""What is to be found and what is to stay silent: one row per fault, one per healthy run, and the programs that show them.

A program is a function of a seed that builds and runs one training as a user would write it, and returns an `Outcome`.
Its expectations (which module, since which step) stand in its decorator, next to the code that makes them true.
The function's name is its address: `f05_...` shows F05, `h03_...` is healthy run H03; `u05_...`, `uh03_...` are further
instances that no detector was tuned on.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One row of the catalogue."""

    id: str
    bug: str
    code: str
    when: str
    """C checkup, W during training, R across ranks, D the finished run."""
    needs: str
    """M model and optimizer, L the logged loss, B `log_batch`, V `evaluating()`."""
    tier: str
    """E exact, S statistical, A advice (Info)."""
    also_right: tuple[str, ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """Every code that counts as found."""
        return (self.code, *self.also_right)


@dataclasses.dataclass(frozen=True, slots=True)
class Checkup:
    """What `stethoscope.checkup` is called with: a copy, made before the first step."""

    model: Any
    batch: tuple[Any, Any]
    loss_fn: Callable[..., Any]
    optimizer: Any
    kwargs: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a program leaves: the run it recorded, and what a checkup would have looked at."""

    run: Path | None = None
    checkup: Checkup | None = None
    step: int | None = None
    """The step at which the fault began, where only the run itself can tell."""


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A training and what is expected of its diagnosis."""

    key: str
    of: str
    """The fault or healthy run it is an instance of."""
    run: Callable[[int], Outcome]
    site: str | None = None
    """Globs of modules or parameters, separated by |, one of which must be named; None where there is no place."""
    step: int | None = None
    """The step at which it begins, None where that is not a fact."""
    sudden: bool = False

    @property
    def fault(self) -> Fault | None:
        """The fault shown, None for a healthy run."""
        return FAULTS.get(self.of)

    @property
    def unseen(self) -> bool:
        """Whether it belongs to the second set."""
        return self.key.startswith("U")


PROGRAMS: Final[dict[str, Program]] = {}


def program(
    *, site: str | None = None, step: int | None = None, sudden: bool = False
) -> Callable[[Callable[[int], Outcome]], Callable[[int], Outcome]]:
    """Register a program under the key in its name."""

    def register(run: Callable[[int], Outcome]) -> Callable[[int], Outcome]:
        key = run.__name__.partition("_")[0].upper()
        match = re.fullmatch(r"(U?)(F|H|)(\d\d)([A-Z]?)", key)
        assert match is not None, f"{run.__name__} is not named f01_..., h01_..., u01_... or uh01_..."
        assert key not in PROGRAMS or PROGRAMS[key].run.__module__ == run.__module__, f"two programs are called {key}"
        PROGRAMS[key] = Program(key, f"{match[2] or 'F'}{match[3]}", run, site, step, sudden)
        return run

    return register


def ready(
    model: Any, batch: tuple[Any, Any], loss_fn: Callable[..., Any], optimizer: Any = None, **kwargs: Any
) -> Checkup:
    """What a checkup needs, copied now because training is about to change it."""
    model, optimizer = copy.deepcopy((model, optimizer))
    return Checkup(model, batch, loss_fn, optimizer, kwargs)


def finished(session: Any, checkup: Checkup | None = None, step: int | None = None) -> Outcome:
    """End the session and keep where its run lies."""
    path = session.stop().path
    return Outcome(Path(path).resolve() if path is not None else None, checkup, step)


def load_programs(*, unseen: bool = False) -> dict[str, Program]:
    """Every program, in the order of the catalogue."""
    from benchmarks.faults import programs

    programs.load()
    if unseen:
        from benchmarks.faults import unseen as second_set

        second_set.load()
    chosen = [p for p in PROGRAMS.values() if p.unseen == unseen]
    return {p.key: p for p in sorted(chosen, key=lambda p: (p.of, p.key))}


_ROWS: Final = """
F01 | no zero_grad | gradients_not_cleared | W | M | E
F02 | zero_grad before step | gradients_cleared_before_step | W | M | E
F03 | step never runs | optimizer_never_steps | W | M | E
F04 | optimizer holds an old model or head | optimizer_params_not_in_model | C W | M | E | trainable_params_not_in_optimizer
F05 | submodule missing from the optimizer | trainable_params_not_in_optimizer | C W | M | E
F06 | list instead of ModuleList | unregistered_module | C W | M | E
F07 | frozen by a slip of the name | frozen_params | C W | M | S
F08 | detach in the middle | detached_graph | C W | M | E
F09 | loss sign flipped | errors_maximised | W | L V | S | loss_metric_disagree
F10 | LR x 100 | update_too_large | W | M | S | bad_init_scale unscaled_inputs
F11 | LR / 1000 | update_too_small | W | M | S
F12 | scheduler stepped per batch | lr_decays_too_early | D | M | S
F13 | scheduler never stepped | lr_stuck | D | M | S
F14 | clip at 1e-4 | clipping_always_on | W | M | S
F15 | clip before unscale_ | clip_before_unscale | W | M | E
F16 | weight decay 1.0 | weight_decay_dominates | W | M | S
F17 | Adam eps too large | adam_eps_dominates | W | M | S
F18 | Adam eps near 0, rare gradients | adam_update_spike | W | M | S
F19 | accumulation not divided | accumulation_not_averaged | W | M | A
F20 | mean of means over unequal token counts | accumulation_uneven | W | M B | A
F21 | EMA never updated | ema_frozen | W | M | E
F22 | optimizer state lost when a run is continued | optimizer_state_lost | W | M | E
F23 | update silently not applied to one tensor | silent_no_update | W | M | E | update_below_precision
F24 | softmax before cross entropy | double_softmax | C W | M | E
F25 | sigmoid before BCEWithLogits | double_sigmoid | C W | M | E
F26 | softmax over dim 0 | batch_dependence | C | - | E
F27 | (B,1) against (B) in MSE | loss_broadcast | C W | M | E
F28 | ReLU on a regression output | output_clipped | C W | M | S
F29 | reduction="sum" | loss_scales_with_batch | C | - | E
F30 | log(0) | nonfinite_origin | W | M | E
F31 | sqrt at 0 in backward | nonfinite_origin | W | M | E
F32 | torch.where hides a NaN | nonfinite_origin | W | M | E
F33 | 0/0 on a constant feature | constant_feature | C W | M B | S | nonfinite_origin
F34 | fully masked attention row | fully_masked_attention | C W | M | S | nonfinite_origin
F35 | constant init | symmetric_units | C W | M | E
F36 | init std x 10 | bad_init_scale | C W | M | S | update_too_large
F37 | 20 sigmoid layers | vanishing_gradients | W | M | S
F38 | RNN without clipping | exploding_gradients | W | M | S
F39 | ReLU bias -10 | dead_units | C W | M | S
F40 | saturated tanh | saturated_units | C W | M | S
F41 | no nonlinearity between layers | linear_collapse | C | - | E
F42 | BatchNorm with batch 1 or 2 | batchnorm_small_batch | W | M | S
F43 | eval() while training | eval_mode_in_training | W | M | E
F44 | train mode inside evaluating() | train_mode_in_eval | W | M V | S
F45 | functional dropout in eval | nondeterministic_eval | C | - | E
F46 | dropout 0.95 | over_regularised | W | L V | S
F47 | embedding and head tied by value | tied_weights_split | C W | M | E
F48 | attention logits blow up | attention_logit_growth | W | M | S
F49 | output logits drift | output_logit_drift | W | M | S
F50 | causal mask missing | future_leak | C | - | E
F51 | padding unmasked | padding_leak | C | - | E
F52 | router collapse | expert_collapse | W | M | S
F53 | dormant units under shifting targets | dormant_units | W | M | S
F54 | unscaled inputs | unscaled_inputs | C W | M B | S | update_too_large
F55 | Inf in one batch | nonfinite_batch | W | M B | E | nonfinite_origin
F56 | one outlier 1e4 | outlier_batch | W | M B | S
F57 | inputs zeroed by the pipeline | inputs_ignored | C W | M B | E | dead_units
F58 | shuffled labels | labels_uninformative | D | L V | S | overfitting
F59 | collapse to the majority class | class_collapse | W | M B | S
F60 | a feature leaks the label | label_leak | C | - | S
F61 | train and validation overlap | train_val_overlap | W | B V | S
F62 | sorted, unshuffled | unshuffled_data | W | B | S
F63 | augmentation generator copied into every worker | duplicate_batches | W | B | S
F64 | normalised twice | inputs_too_small | C W | M B | S
F65 | fp16 overflow | precision_overflow | W | M | E
F66 | fp16 underflow | precision_underflow | W | M | S | vanishing_gradients
F67 | loss scale collapses | loss_scale_collapse | W | M | E
F68 | bf16 weights, tiny lr | update_below_precision | W | M | E | silent_no_update update_too_small
F69 | raw module bypasses DDP | rank_desync | R | M | E
F70 | same data on every rank | same_data_on_ranks | R | B | E
F71 | total += loss keeps every graph alive | graph_retained | W | M | S
F72 | hooks registered again every epoch | hooks_accumulate | W | M | E
F73 | slow loader | data_bound | W | M | S
F74 | overfit | overfitting | D | L V | S
F75 | oscillation | oscillation | W | M L | S
F76 | plateau | plateau | W | L | A
F77 | scheduler advances on skipped AMP steps | scheduler_ahead_of_optimizer | W | M | S
F78 | loss clamped instead of gradient | loss_clamped | W | M | S
F79 | a param group with lr 0 | zero_lr_group | C W | M | E
F80 | NaN in a BatchNorm buffer | nonfinite_buffer | W | M | E
F81 | retain_graph/create_graph left on | graph_retained | W | M | E
F82 | bad head init | bad_initial_loss | C W | M | S
F83 | gradients summed over ranks | gradients_summed_across_ranks | R | M | S
"""


def _fault(row: str) -> Fault:
    id_, bug, code, when, needs, tier, *also = (part.strip() for part in row.split("|"))
    return Fault(id_, bug, code, when, needs, tier, tuple(also[0].split()) if also else ())


FAULTS: Final = {fault.id: fault for fault in map(_fault, _ROWS.strip().splitlines())}

HEALTHY: Final = dict(
    line.split(" ", 1)
    for line in """
H01 warm-up and cyclic bumps
H02 sparse embeddings, 99% zero rows
H03 a backbone frozen on purpose
H04 LoRA with B = 0
H05 a GAN
H06 REINFORCE, negative losses
H07 experts idle for a few steps
H08 tiny gradients after convergence
H09 the first skips of a GradScaler
H10 a bias before BatchNorm, gradient about 0
H11 zero-init residual branches
H12 train loss above validation loss under ordinary dropout
H13 the floor of label smoothing
H14 a curriculum's jump
H15 proper accumulation
H16 two optimizers in turns
H17 ReLU 50-90% sparse, none dead
H18 edge of stability
H19 a long plateau, then a drop
H20 a pretrained or biased head, first loss not ln C
H21 teacher and target networks
H22 intentional detach
H23 BatchNorm in eval on purpose while fine-tuning
H24 standardised inputs beyond +-1
H25 fp16 with a working scaler
H26 gradient clipping that bites now and then
H27 weight tying done right
H28 early NaN-free fp8/bf16 noise
H29 batch size 1 without BatchNorm
H30 resume done right
H31 a target network that starts as an equal copy
H32 nn.TransformerEncoder's cloned layers
H33 sampling under no_grad in train mode
H61 a policy gradient on growing episodes
H62 lists of one episode
H63 an LBFGS step that is cut off, steps by hand
H64 large inputs before a BatchNorm
H65 a loss that falls slowly
H66 the same run folder again
H67 a forward replaced on the instance
H68 killed units of a wide layer without which it learns
H69 weights that are clipped to a limit after each step
H70 a game of two networks in balance
H71 a loader that keeps the processor busy
H72 a pause for a plot after each step
H73 gradients clipped far below their norm, then Adam
""".strip().splitlines()
)

FURTHER_HEALTHY: Final = dict(
    line.split(" ", 1)
    for line in """
H34 a variational autoencoder with annealed divergence
H35 contrastive learning with a learned temperature
H36 PPO, several passes over a rollout
H37 denoising diffusion
H38 a normalising flow, loss below zero
H39 triplets, a hinge
H40 two tasks weighed by learned uncertainties
H41 WGAN-GP, second derivatives
H42 one block many times, warm restarts
H43 an optimizer nobody knows, masked letters
H44 one cycle to a rate of 0.3 in a CNN
H45 a GAN by hinge losses under spectral norm
H46 adapters and free norms in a frozen language model
H47 distillation at a temperature
H48 label smoothing over pixels
H49 actor and critic
H50 few pixels that matter, one logit a pixel
H51 gradient checkpointing
H52 mixup
H53 BatchNorm in eval, its weights learning
H54 large batches, steps by trust ratio
H55 a curriculum that gets harder and harder
H56 gated linear units
H57 sharpness-aware minimisation
H58 quantiles of one number
H59 discrete codes, a falling temperature
H60 Q-learning with hard targets
""".strip().splitlines()
)
"""Kinds that the list does not name; the second set alone has them."""
