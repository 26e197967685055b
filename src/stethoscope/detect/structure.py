"""How the model is put together: modules that are not registered, gradients cut off, freezing by mistake, weights tied by value.

Exact facts about the model, but for freezing, where intent must be guessed: a prefix of the layers, a whole part, or one
kind of parameter everywhere is frozen on purpose; some of a row of equal layers, out of order, is not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Readings, Rule
from stethoscope.detect.needs import FLOW_GRAPH, GRADIENTS, OUTPUTS, OWNERS, Need, optional
from stethoscope.record import Evidence, Finding, Kind, Severity, metrics, name_list
from stethoscope.record.dataflow import Unregistered
from stethoscope.record.events import DataFlow, Ownership, TwinPair, Twins, Untrained

STEPS_NEEDED: Final = 20
NUMBER: Final = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])|(?<=[A-Za-z])\d+(?=$|\.)")


class Structure(Detector):
    """Follows the model's graph, who gets a gradient, and what is frozen."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "unregistered_module",
            needs=(FLOW_GRAPH,),
            leads_to=("trainable_params_not_in_optimizer", "optimizer_params_not_in_model"),
        ),
        Code(
            "detached_graph",
            needs=(OWNERS, GRADIENTS, OUTPUTS),
            leads_to=("silent_no_update", "dead_units", "vanishing_gradients"),
        ),
        Code("frozen_params", needs=(GRADIENTS, optional(OUTPUTS))),
        Code(
            "tied_weights_split",
            needs=(
                Need(
                    "pairs of an embedding and a head that began equal",
                    "event",
                    (Twins.KIND,),
                    "there is none on the CPU",
                    may_be_absent=True,
                ),
            ),
        ),
    )

    def __init__(self) -> None:
        self._unregistered: tuple[int, list[Unregistered]] | None = None
        self._num_pairs = self._num_apart = 0
        self._split: tuple[int, TwinPair] | None = None
        self._owned: set[str] = set()
        self._frozen: set[str] = set()
        self._untrained: tuple[str, ...] = ()
        """Of the frozen ones, those that were just initialized when training began."""
        self._trainable: set[str] = set()
        self._num_dims: dict[str, int] = {}
        self._with_gradient: set[str] = set()
        self._ran: set[str] = set()
        self._flowed: set[str] = set()
        self._edges: list[tuple[str, str, bool]] = []
        """Of the data-flow graph: from, to, and whether a gradient comes back along it."""
        self._depth: dict[str, int] = {}
        self._types: dict[str, str] = {}
        self._num_steps = 0
        self._last_step = 0
        self._num_arrived = 0.0

    def observe(self, span: Span) -> None:
        """Take in lists and who reported."""
        for event, graph in span.events_of(DataFlow):
            self._edges = [(e.source, e.target, e.gradient == "flows") for e in graph.edges] or self._edges
            trained = [module for module in graph.unregistered if module.num_trainable > 0]
            if trained:
                self._unregistered = self._unregistered or (event.step, trained)
        for event, twins in span.events_of(Twins):
            apart = [pair for pair in twins.pairs if not pair.equal]
            self._num_pairs += len(twins.pairs)
            self._num_apart += len(apart)
            if apart and self._split is None:
                self._split = (event.step, apart[0])
        for _, untrained in span.events_of(Untrained):
            self._untrained = untrained.sites
        for _, ownership in span.events_of(Ownership):
            self._owned = {site for group in ownership.groups for site in group.sites}
        self._depth = dict(span.depth) or self._depth
        self._types = span.types or self._types
        self._num_arrived = max(self._num_arrived, np.nan_to_num(span.metric(metrics.LEDGER_ARRIVED)).max(initial=0.0))
        reported = np.atleast_1d(np.any(span.present, axis=0)).tolist()
        for index, info in enumerate(span.sites):
            if info.site.kind is Kind.GRADIENT:
                self._num_dims[info.site.path] = len(info.shape)
            self._note_site(info.site.kind, info.site.path, info.site.module, info.measured, reported[index])
        gradients = span.site_indices(Kind.GRADIENT)
        if len(gradients) and len(span.steps):
            # A backward from which nothing arrived anywhere counts too: then the loss itself is cut off.
            backwards = np.nan_to_num(span.metric(metrics.NUM_BACKWARDS)) > 0
            self._num_steps += int((span.present[:, gradients].any(axis=1) | backwards).sum())
            self._last_step = int(span.steps[-1])

    def _note_site(self, kind: Kind, path: str, module: str, measured: str, reported: bool) -> None:
        if kind is Kind.GRADIENT:
            (self._frozen if measured == "frozen" else self._trainable).add(path)
            if reported:
                self._with_gradient.add(path)
                self._trainable.add(path)
                self._frozen.discard(path)
        elif kind is Kind.ACTIVATION and reported:
            self._ran.add(module)
        elif kind is Kind.ACTIVATION_GRADIENT and reported:
            self._flowed.add(module)

    def rules(self) -> Iterator[Rule]:
        """What is certain about the model as it is; then what looks like a slip."""
        step, modules = self._unregistered or (0, [])
        yield Rule(
            "unregistered_module",
            (Reading("trained modules that ran and are not registered", len(modules), ">", 0),),
            lambda: self._unregistered_finding(step, modules),
        )
        silent = [path for path in self._trainable & self._owned if path not in self._with_gradient]
        cut = sorted(path for path in silent if _module_of(path) in self._ran)
        # Cleared before anybody read them, gradients are missing everywhere too, and no graph is cut.
        lost = 0.0 if self._with_gradient else self._num_arrived
        yield Rule(
            "detached_graph",
            (
                Reading("steps with a backward", self._num_steps, ">=", STEPS_NEEDED),
                Reading("tensors in the optimizer without a gradient", len(silent)),
                Reading("of which in modules that ran", len(cut), ">", 0),
                Reading("gradients that came to a tensor, where none was left to be read", lost, "=", 0),
            ),
            lambda: self._detached_finding(cut),
        )
        yield Rule(
            "tied_weights_split",
            (
                Reading("pairs of embedding and head that began equal", self._num_pairs, ">", 0),
                Reading("of which drifted apart", self._num_apart, ">", 0),
            ),
            self._split_finding,
        )
        yield from self._freezing()

    def _unregistered_finding(self, step: int, modules: list[Unregistered]) -> Finding:
        names = [module.path or module.type for module in modules]
        count = sum(module.num_trainable for module in modules)
        return Finding(
            "unregistered_module",
            Severity.CRITICAL,
            f"{len(modules)} modules are called but not registered ({name_list(names)}): their {count:,} parameters are in no "
            "optimizer and no checkpoint.",
            step,
            max(step, self._last_step),
            tuple(dict.fromkeys(names)),
            (Evidence("parameters outside the model", float(count)),),
            "self.blocks = nn.ModuleList(blocks)  # not a plain list",
        )

    def _detached_finding(self, cut: list[str]) -> Finding:
        last, beyond = self._cut_boundary({_module_of(path) for path in cut})
        boundary = f" and {beyond}" if beyond else ""
        names = name_list(cut) if self._with_gradient else "any parameter"
        return Finding(
            "detached_graph",
            Severity.CRITICAL,
            f"No gradient reaches {names}: the graph is cut after {last}, between it{boundary or ' and the loss'}.",
            0,
            self._last_step,
            (last, *([beyond] if beyond else []), *cut),
            (Evidence("parameters in the optimizer that no loss reaches", float(len(cut))),),
            "remove .detach(), .data, .item() or torch.no_grad() on the way from there to the loss",
        )

    def _cut_boundary(self, modules: set[str]) -> tuple[str, str]:
        """The last module that gets no gradient before one that does, and that one; "" where the loss comes next.

        By the way of the data where it shows the cut; else by the order in which modules ran.
        """
        for source, target, flows in sorted(self._edges, key=lambda edge: -self._depth_of(edge[0])):
            before = modules & self._upstream_of(source) if not flows and target in self._flowed else set()
            if source not in self._flowed and before:
                return max(before, key=self._depth_of), target
        last = max(modules, key=self._depth_of)
        later = sorted((d, m) for m, d in self._depth.items() if d > self._depth_of(last) and m in self._flowed)
        return last, later[0][1] if later else ""

    def _depth_of(self, module: str) -> int:
        return self._depth.get(module, -1)

    def _upstream_of(self, module: str) -> set[str]:
        """The module and all that its inputs come from."""
        found, ahead = {module}, [module]
        while ahead:
            here = ahead.pop()
            for source, target, _ in self._edges:
                if target == here and source not in found:
                    found.add(source)
                    ahead.append(source)
        return found

    def _split_finding(self) -> Finding:
        assert self._split is not None
        step, pair = self._split
        return Finding(
            "tied_weights_split",
            Severity.WARNING,
            f"{pair.embedding} and {pair.head} began with equal values and drift apart: tied by value, not by storage.",
            0,
            max(step, self._last_step),
            (pair.head, pair.embedding),
            (Evidence("step at which they differed", float(step)),),
            "model.head.weight = model.embed.weight  # one Parameter, not a copy",
        )

    def _freezing(self) -> Iterator[Rule]:
        """Some of a row of equal layers, out of order; what nobody trained; the head alone; all but scraps."""
        known = (
            Reading("frozen tensors", len(self._frozen), ">", 0),
            Reading("tensors that train", len(self._trainable)),
        )
        steps = Reading("steps with a backward", self._num_steps, ">=", STEPS_NEEDED)
        slipped = self._out_of_order()
        yield self._frozen_rule(
            "out of order",
            (*known, Reading("frozen layers of a row of equal ones, out of order", len(slipped), ">", 0)),
            sorted(slipped & self._frozen),
            "some of a row of equal layers, out of order",
        )
        # Random features on purpose are given to no optimizer.
        handed = [p for p in self._untrained if p in self._frozen & self._owned and _module_of(p) in self._ran]
        yield self._frozen_rule(
            "never trained",
            (*known, steps, Reading("frozen as initialized, and held by an optimizer", len(handed), ">", 0)),
            handed,
            "never trained, the initial values are still there, although an optimizer holds them",
        )
        ordered = {path for path in self._frozen | self._trainable if _module_of(path) in self._depth}
        last = max(map(_module_of, ordered), key=self._depth_of, default="")
        head = sorted(path for path in self._frozen if _module_of(path) == last)
        of_head = (
            *known,
            steps,
            Reading("tensors of layers that ran in a known order", len(ordered), ">=", 4),
            Reading("frozen tensors of the last layer", len(head), ">", 0),
            Reading("the last layer ran", last in self._ran, "=", 1),
        )
        others = len(ordered & self._frozen) - len(ordered.intersection(head))
        yield self._frozen_rule(
            "head",
            (*of_head, Reading("frozen tensors of other layers", others, "=", 0)),
            head,
            "the last layer alone, while all before it learn",
        )
        # Whoever trains biases alone, or norms alone, trains all of them.
        scraps = sorted(path for path in self._trainable if self._num_dims.get(path, 2) < 2)
        kinds = {self._kind_of(path) for path in scraps}
        yield self._frozen_rule(
            "scraps",
            (
                *of_head,
                Reading("matrices that train", len(self._trainable) - len(scraps), "=", 0),
                Reading(
                    "others of their kind are frozen", sum(self._kind_of(p) in kinds for p in self._frozen), ">", 0
                ),
            ),
            head,
            f"every weight matrix and the last layer, while {name_list(scraps)} alone can learn",
        )

    def _kind_of(self, path: str) -> tuple[str, str | None]:
        """The name of a parameter and the type of its module: a bias of a Linear."""
        return path.rpartition(".")[2], self._types.get(_module_of(path))

    def _out_of_order(self) -> set[str]:
        """The frozen ones of equal layers in a row, where they are neither its first ones nor its last."""
        rows: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for state, paths in (("frozen", self._frozen), ("trained", self._trainable)):
            for path in paths:
                match = NUMBER.search(path)
                if match:
                    key = path[: match.start()] + "#" + path[match.end() :]
                    rows[key][int(match[0])].add(state)
        slipped: set[str] = set()
        for key, members in rows.items():
            frozen = sorted(n for n, states in members.items() if "frozen" in states)
            order = sorted(members)
            if len(order) < 4 or not frozen or len(frozen) == len(order):
                continue
            if frozen != order[: len(frozen)] and frozen != order[-len(frozen) :]:
                slipped |= {key.replace("#", str(n), 1) for n in frozen}
        return slipped

    def _frozen_rule(self, way: str, readings: Readings, names: list[str], why: str) -> Rule:
        total = len(self._frozen) + len(self._trainable)
        return Rule(
            "frozen_params",
            readings,
            lambda: Finding(
                "frozen_params",
                Severity.WARNING,
                f"{name_list(names)} {'is' if len(names) == 1 else 'are'} frozen: {why}, which looks like a slip.",
                0,
                self._last_step,
                tuple(names),
                (Evidence("share of tensors that train", len(self._trainable) / max(total, 1)),),
                "param.requires_grad_(True)  # and match names exactly when freezing",
            ),
            way,
            is_otherwise=True,
        )


def _module_of(path: str) -> str:
    return path.rpartition(".")[0]
