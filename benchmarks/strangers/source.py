"""Where in a script the training is: the optimizer, the step, the loss, the model and its inputs, found in its syntax tree.

Mutation operators stand on these and on nothing else, so that they know no program.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Final

OPTIMIZERS: Final = ("Adam", "AdamW", "SGD", "RMSprop", "Adadelta", "Adagrad", "NAdam", "RAdam", "Adamax")
LOSSES: Final = ("cross_entropy", "nll_loss", "mse_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")


@dataclasses.dataclass
class Script:
    """One source file as a tree that may be changed."""

    tree: ast.Module

    @classmethod
    def of(cls, source: str) -> Script:
        return cls(ast.parse(source))

    @property
    def text(self) -> str:
        return ast.unparse(ast.fix_missing_locations(self.tree)) + "\n"

    def blocks(self) -> Iterator[list[ast.stmt]]:
        """Every list of statements."""
        for node in ast.walk(self.tree):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                    yield block

    def statements(self, wanted: Callable[[ast.stmt], bool]) -> list[tuple[list[ast.stmt], int]]:
        """Where the statements are that are wanted, in the order of the lines."""
        found = [(block, at) for block in self.blocks() for at, stmt in enumerate(block) if wanted(stmt)]
        return sorted(found, key=lambda one: one[0][one[1]].lineno)

    def calls(self, wanted: Callable[[ast.Call], bool]) -> list[ast.Call]:
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and wanted(node)]
        return sorted(found, key=lambda node: (node.lineno, node.col_offset))

    def methods(self, name: str) -> list[tuple[list[ast.stmt], int]]:
        """Statements that call a method without using its result: `optimizer.step()`."""
        return self.statements(
            lambda s: (
                isinstance(s, ast.Expr)
                and isinstance(s.value, ast.Call)
                and isinstance(s.value.func, ast.Attribute)
                and s.value.func.attr == name
            )
        )

    def optimizers(self) -> list[ast.Call]:
        """Calls that make an optimizer."""
        return self.calls(
            lambda c: (
                (name_of(c.func) in OPTIMIZERS and bool(c.args))
                or (isinstance(c.func, ast.Call) and name_of(c.func.func) == "getattr" and bool(c.args))
            )
        )

    def training_block(self) -> tuple[list[ast.stmt], int] | None:
        """Where `loss.backward()` stands."""
        found = self.methods("backward")
        return found[0] if found else None

    def loss_call(self) -> ast.Call | None:
        """The call that compares outputs with targets, before `backward` in its block."""
        where = self.training_block()
        if where is None:
            return None
        block, at = where
        backward = block[at].value
        name = name_of(backward.func.value)
        for stmt in reversed(block[:at]):
            if isinstance(stmt, ast.Assign) and name in {name_of(t) for t in stmt.targets}:
                for node in ast.walk(stmt.value):
                    if isinstance(node, ast.Call) and len(node.args) == 2:
                        return node
                return None
        return None

    def model_call(self) -> ast.Call | None:
        """The call of the model on the inputs, the last before `backward`."""
        where = self.training_block()
        if where is None:
            return None
        block, at = where
        names = self.model_names()
        found = None
        for stmt in block[:at]:
            for node in ast.walk(stmt):
                if isinstance(node, ast.Call) and name_of(node.func) in names and node.args:
                    found = node
        return found

    def model_names(self) -> set[str]:
        """The variables whose parameters an optimizer gets."""
        names = {"model", "net", "encoder"}
        for call in self.optimizers():
            for node in ast.walk(call.args[0]):
                if isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters"):
                    names.add(name_of(node.value))
        return names

    def optimizer_statement(self) -> tuple[list[ast.stmt], int, str] | None:
        """Where the first optimizer is made, and the expression of its model."""
        made = self.optimizers()
        if not made:
            return None
        spot = self.statements(lambda s: isinstance(s, ast.Assign) and any(n is made[0] for n in ast.walk(s)))
        owner = next(
            (
                ast.unparse(n.value)
                for n in ast.walk(made[0].args[0])
                if isinstance(n, ast.Attribute) and n.attr == "parameters"
            ),
            "",
        )
        return (*spot[0], owner) if spot and owner else None


def name_of(node: ast.AST) -> str:
    """The last name of a dotted one."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def parse(text: str) -> list[ast.stmt]:
    """Statements of our own."""
    return ast.parse(text).body


def expression(text: str, **parts: ast.expr) -> ast.expr:
    """An expression of our own around expressions of the script."""

    class Put(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return copy.deepcopy(parts[node.id]) if node.id in parts else node

    return Put().visit(ast.parse(text, mode="eval").body)


def set_keyword(call: ast.Call, name: str, value: ast.expr) -> None:
    """Give a call one keyword, in the place of what it had."""
    call.keywords = [*(k for k in call.keywords if k.arg != name), ast.keyword(name, value)]


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """What a call gives for one."""
    return next((k.value for k in call.keywords if k.arg == name), None)
