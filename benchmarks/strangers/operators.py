"""Mechanical mutations of a training script: each is one mistake that people make, put into any script that has a place for it.

Written down before any of the fetched programs was judged. An operator gives the changed source, or None where the script
has no place for it; it never looks at what the program is.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from typing import Final

from benchmarks.strangers.source import Script, expression, keyword, name_of, parse, set_keyword

Change = Callable[[Script], bool]
COUNTER: Final = "_mutant_step"


@dataclasses.dataclass(frozen=True)
class Operator:
    """One mistake."""

    name: str
    codes: tuple[str, ...]
    """What is right to say of it. Empty: a symptom without a cause is right too."""
    change: Change
    alters_loss: bool = False
    """Whether the loss itself is another afterwards: harm is then measured by what the script prints of its own."""

    def apply(self, source: str) -> str | None:
        """The changed source, or None."""
        script = Script.of(source)
        return script.text if self.change(script) else None


OPERATORS: Final[dict[str, Operator]] = {}


def _operator(*codes: str, alters_loss: bool = False) -> Callable[[Change], Change]:
    def keep(change: Change) -> Change:
        name = change.__name__.strip("_")
        OPERATORS[name] = Operator(name, codes, change, alters_loss)
        return change

    return keep


def _remove(script: Script, method: str) -> bool:
    found = script.methods(method)
    for block, at in reversed(found):
        block[at : at + 1] = parse("pass")
    return bool(found)


def _before_optimizer(script: Script, text: str) -> bool:
    where = script.optimizer_statement()
    if where is None:
        return False
    block, at, owner = where
    block[at:at] = parse(text.replace("MODEL", owner))
    return True


def _around_step(script: Script, before: str = "", after: str = "") -> bool:
    found = [(b, at) for b, at in script.methods("step") if "sched" not in ast.unparse(b[at]).lower()]
    if not found:
        return False
    block, at = found[0]
    call = block[at].value
    optimizer = ast.unparse(call.args[0] if call.args else call.func.value)  # scaler.step(optimizer)
    block[at + 1 : at + 1] = parse(after.replace("OPTIMIZER", optimizer))
    block[at:at] = parse(before.replace("OPTIMIZER", optimizer))
    return True


def _scale_rate(script: Script, factor: float) -> bool:
    found = script.optimizers()
    for call in found:
        rate = keyword(call, "lr") or (call.args[1] if len(call.args) > 1 else None)
        if len(call.args) > 1:
            del call.args[1]
        set_keyword(call, "lr", expression(f"FACTOR * ({factor!r})", FACTOR=rate or ast.Constant(1e-3)))
    return bool(found)


def _set_in_optimizer(script: Script, name: str, value: float, only: tuple[str, ...] = ()) -> bool:
    found = [call for call in script.optimizers() if not only or name_of(call.func) in only]
    for call in found:
        set_keyword(call, name, ast.Constant(value))
    return bool(found)


def _wrap_input(script: Script, text: str) -> bool:
    call = script.model_call()
    if call is None:
        return False
    call.args[0] = expression(text, X=call.args[0])
    return True


def _wrap_loss(script: Script, which: int, text: str) -> bool:
    call = script.loss_call()
    if call is None:
        return False
    call.args[which] = expression(text, X=call.args[which])
    return True


def _counted(script: Script) -> None:
    script.tree.body[0:0] = parse(f"import builtins\nbuiltins.{COUNTER} = [0]")
    # Imports from __future__ come first in a file.
    future = [s for s in script.tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    script.tree.body[:] = [*future, *(s for s in script.tree.body if s not in future)]


@_operator("gradients_not_cleared")
def no_zero_grad(script: Script) -> bool:
    return _remove(script, "zero_grad")


@_operator("optimizer_never_steps")
def no_step(script: Script) -> bool:
    return _around_step(script) and _remove(script, "step")


@_operator("gradients_cleared_before_step")
def zero_grad_before_step(script: Script) -> bool:
    return _around_step(script, "OPTIMIZER.zero_grad()")


@_operator("update_too_large", "bad_init_scale", "unscaled_inputs")
def rate_times_100(script: Script) -> bool:
    return _scale_rate(script, 100.0)


@_operator("update_too_small")
def rate_by_1000(script: Script) -> bool:
    return _scale_rate(script, 1e-3)


@_operator("update_too_large", "oscillation", "exploding_gradients")
def rate_jumps_midway(script: Script) -> bool:
    _counted(script)
    jump = f"for _g in OPTIMIZER.param_groups:\n    _g['lr'] *= 100.0 if builtins.{COUNTER}[0] == 100 else 1.0"
    return _around_step(script, after=f"import builtins\nbuiltins.{COUNTER}[0] += 1\n{jump}")


@_operator("lr_decays_too_early", "update_too_small")
def schedule_per_batch(script: Script) -> bool:
    return _around_step(script, after="for _g in OPTIMIZER.param_groups:\n    _g['lr'] *= 0.8")


@_operator("detached_graph")
def detach(script: Script) -> bool:
    """In the middle of the longest forward."""
    forwards = [n for n in ast.walk(script.tree) if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    places = [[s for s in f.body if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call)] for f in forwards]
    chosen = max(places, key=len, default=[])
    if len(chosen) < 2:
        return False
    stmt = chosen[len(chosen) // 2]
    if isinstance(stmt.targets[0], ast.Tuple):
        return False
    stmt.value = expression("X.detach()", X=stmt.value)
    return True


@_operator("frozen_params", "detached_graph")
def frozen(script: Script) -> bool:
    text = "for _p in list(MODEL.parameters())[:-2]:\n    _p.requires_grad_(False)"
    return _before_optimizer(script, text)


@_operator("trainable_params_not_in_optimizer")
def optimizer_of_a_part(script: Script) -> bool:
    found = script.optimizers()
    for call in found:
        call.args[0] = expression("list(X)[-1:]", X=call.args[0])
    return bool(found)


@_operator("optimizer_params_not_in_model", "trainable_params_not_in_optimizer")
def optimizer_of_a_copy(script: Script) -> bool:
    where = script.optimizer_statement()
    if where is None:
        return False
    call = script.optimizers()[0]
    call.args[0] = expression("__import__('copy').deepcopy(M).parameters()", M=ast.parse(where[2], mode="eval").body)
    return True


@_operator("labels_uninformative", "overfitting")
def labels_of_others(script: Script) -> bool:
    return _wrap_loss(script, 1, "(lambda t: t[torch.randperm(len(t))])(X)")


@_operator("labels_uninformative", "overfitting")
def labels_off_by_one(script: Script) -> bool:
    return _wrap_loss(script, 1, "X.roll(1, 0)")


@_operator("double_softmax", "double_sigmoid", alters_loss=True)
def softmax_before_loss(script: Script) -> bool:
    call = script.loss_call()
    name = "" if call is None else name_of(call.func)
    if name not in ("criterion", "cross_entropy", "nll_loss", "loss_fn") or "MSELoss" in script.text:
        return False
    return _wrap_loss(script, 0, "torch.softmax(X, -1)")


@_operator("errors_maximised", "loss_metric_disagree", alters_loss=True)
def loss_sign(script: Script) -> bool:
    where = script.training_block()
    if where is None:
        return False
    call = where[0][where[1]].value
    call.func.value = expression("(-X)", X=call.func.value)
    return True


@_operator(
    "accumulation_not_averaged", "update_too_small", "vanishing_gradients", "adam_eps_dominates", alters_loss=True
)
def loss_times_tiny(script: Script) -> bool:
    where = script.training_block()
    if where is None:
        return False
    call = where[0][where[1]].value
    call.func.value = expression("(X * 1e-6)", X=call.func.value)
    return True


@_operator("clipping_always_on")
def clip_at_1e_4(script: Script) -> bool:
    text = "torch.nn.utils.clip_grad_norm_([_p for _g in OPTIMIZER.param_groups for _p in _g['params']], 1e-4)"
    return _around_step(script, text)


@_operator("weight_decay_dominates")
def weight_decay_1(script: Script) -> bool:
    return _set_in_optimizer(script, "weight_decay", 1.0)


@_operator("adam_eps_dominates")
def adam_eps_1(script: Script) -> bool:
    return _set_in_optimizer(script, "eps", 1.0, ("Adam", "AdamW", "RMSprop", "NAdam", "RAdam"))


@_operator("eval_mode_in_training")
def eval_kept(script: Script) -> bool:
    where, call = script.training_block(), script.model_call()
    if where is None or call is None:
        return False
    where[0][0:0] = parse(f"{ast.unparse(call.func)}.eval()")
    return True


@_operator("over_regularised")
def dropout_095(script: Script) -> bool:
    found = script.calls(lambda c: name_of(c.func) in ("Dropout", "Dropout2d"))
    for call in found:
        call.args = [ast.Constant(0.95)]
        call.keywords = [k for k in call.keywords if k.arg != "p"]
    for call in script.calls(lambda c: name_of(c.func) == "dropout" and isinstance(c.func, ast.Attribute)):
        set_keyword(call, "p", ast.Constant(0.95))
        found.append(call)
    return bool(found)


@_operator("unscaled_inputs", "update_too_large", "saturated_units")
def inputs_times_255(script: Script) -> bool:
    return _wrap_input(script, "(lambda t: t * 255 if t.is_floating_point() else t)(X)")


@_operator("inputs_too_small")
def inputs_by_1000(script: Script) -> bool:
    return _wrap_input(script, "(lambda t: t * 1e-3 if t.is_floating_point() else t)(X)")


@_operator("inputs_ignored", "dead_units")
def constant_input(script: Script) -> bool:
    return _wrap_input(script, "torch.zeros_like(X)")


@_operator("bad_init_scale", "update_too_large", "bad_initial_loss", "saturated_units")
def init_times_10(script: Script) -> bool:
    return _before_optimizer(script, "for _p in MODEL.parameters():\n    _p.data.mul_(10.0)")


@_operator("symmetric_units", "dead_units")
def init_constant(script: Script) -> bool:
    return _before_optimizer(script, "for _p in MODEL.parameters():\n    _p.data.fill_(0.01)")


@_operator("dead_units")
def bias_minus_10(script: Script) -> bool:
    text = "for _n, _p in MODEL.named_parameters():\n    _p.data.sub_(10.0 if _n.endswith('bias') else 0.0)"
    return _before_optimizer(script, text)


@_operator("linear_collapse")
def no_activation(script: Script) -> bool:
    made = script.calls(lambda c: name_of(c.func) in ("ReLU", "Tanh", "LeakyReLU", "GELU", "Sigmoid"))
    for call in made:
        call.func, call.args, call.keywords = ast.parse("nn.Identity", mode="eval").body, [], []
    used = script.calls(lambda c: name_of(c.func) in ("relu", "tanh", "gelu", "leaky_relu") and len(c.args) >= 1)
    for call in used:
        call.func, call.args, call.keywords = ast.parse("(lambda x: x)", mode="eval").body, call.args[:1], []
    return bool(made or used)


@_operator("batchnorm_small_batch")
def norm_epsilon_1000(script: Script) -> bool:
    found = script.calls(lambda c: name_of(c.func) in ("BatchNorm1d", "BatchNorm2d", "LayerNorm", "GroupNorm"))
    for call in found:
        set_keyword(call, "eps", ast.Constant(1000.0))
    return bool(found)


@_operator("nonfinite_batch", "nonfinite_origin", "precision_overflow")
def nan_in_a_batch(script: Script) -> bool:
    _counted(script)
    call = script.model_call()
    if call is None:
        return False
    text = f"(lambda t: t + float('nan') if t.is_floating_point() and builtins.{COUNTER}[0] == 40 else t)(X)"
    call.args[0] = expression(text, X=call.args[0])
    return _around_step(script, after=f"import builtins\nbuiltins.{COUNTER}[0] += 1")


@_operator("unshuffled_data")
def sorted_data(script: Script) -> bool:
    found = script.calls(lambda c: name_of(c.func) == "DataLoader")
    if not found:
        return False
    call = found[0]
    data = call.args[0] if call.args else keyword(call, "dataset")
    if data is None:
        return False
    text = "torch.utils.data.Subset(X, sorted(range(len(X)), key=lambda i: int(X[i][1])))"
    if call.args:
        call.args[0] = expression(text, X=data)
    else:
        set_keyword(call, "dataset", expression(text, X=data))
    set_keyword(call, "shuffle", ast.Constant(False))
    return True
