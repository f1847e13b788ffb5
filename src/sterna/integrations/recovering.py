"""`sterna quantize --recover`: a rounded model in transformers learns from the unrounded one.

transformers has the student's forward pass and its gradients (`train.recovery` has the layers);
Sterna's engine runs the teacher. Needs `pip install 'sterna[train]'`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from sterna import loading
from sterna.convert.plan import Plan
from sterna.convert.recovery import Piece, Recovered, Start
from sterna.convert.running import rows_of
from sterna.errors import NonFiniteError, RequestError
from sterna.integrations.training import quietly
from sterna.train import loop
from sterna.train.chats import Rows
from sterna.train.recovery import (
    ScaledLinear,
    ScaledTable,
    ScaledWeight,
    divergence,
    train_vector,
    vector_of,
)

__all__ = ["Distillation"]

F32 = npt.NDArray[np.float32]
#: Tokens of a step, which are read together.
LENGTH = 128
#: Rows of the text that are held out, at most an eighth.
HELD = 4
#: Learning rates that are tried, the highest first, and the steps of each: the less was lost by
#: rounding, the lower is the right one (docs/measurements/quality.md).
RATES = (1.6e-2, 5e-3, 1.6e-3, 5e-4)
TRIED = 20
SAVE_EVERY = 25  # steps


@dataclass(frozen=True)
class Distillation:
    """A `Recovery` by some steps of AdamW.

    lr: relative to the size of a scale or vector; None: the one of `RATES` by whose first steps
    most is regained. length: tokens of a step. save_every: steps after which the state is kept.
    """

    steps: int
    lr: float | None = None
    length: int = LENGTH
    save_every: int = SAVE_EVERY

    @property
    def settings(self) -> str:
        """Steps, learning rates and length."""
        return f"{self.steps} {self.rates} {self.tried} {self.length}"

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates that may be taken."""
        return RATES if self.lr is None else (self.lr,)

    @property
    def tried(self) -> int:
        """The steps of each trial."""
        return min(TRIED, self.steps)

    @property
    def steps_in_all(self) -> int:
        """The steps of training and of all trials."""
        return self.steps + (len(self.rates) * self.tried if len(self.rates) > 1 else 0)

    def check(self, model: loading.Model, planned: Plan, texts: Sequence[str]) -> None:
        """Raise RequestError for a model whose weights are not transformers', or a short text."""
        _Student.of(model).check(planned)
        length = self._length(model)
        if len(rows_of(model, texts, length, 2)) < 2:
            raise RequestError(
                f"recover: must have a text of {2 * length} tokens at least, half of them to "
                "measure by; give a longer one with --calibrate"
            )

    def _length(self, model: loading.Model) -> int:
        return min(self.length, model.config.max_position)

    def train(self, start: Start) -> Recovered:
        """Train the scales of all pieces and the vectors."""
        before = torch.get_num_threads()
        torch.set_num_threads(start.threads)
        try:
            return self._trained(start)
        finally:
            torch.set_num_threads(before)

    def _trained(self, start: Start) -> Recovered:
        length = self._length(start.model)
        rows = rows_of(start.model, start.texts, length, self.steps + HELD)
        student = _Student.of(start.model)
        student.fill(start.pieces, start.vectors)
        held = min(HELD, max(1, len(rows) // 8))
        run = _Run(start, student, _rows(rows[:held]), _rows(rows[held:]), self)
        first, lr = run.lost(), run.rate()
        last = run.trained(self.steps, lr, start.folder)
        tokens = held * (length - 1)
        if not last < first:
            return Recovered(self.steps, lr, tokens, first, last)
        return Recovered(self.steps, lr, tokens, first, last, student.scales(), student.vectors())


@dataclass
class _Run:
    """Trainings of a student from one start on.

    measured: the rows of tokens that are held out; rows: the others. done: steps until now.
    """

    given: Start
    student: _Student
    measured: Rows
    rows: Rows
    asked: Distillation
    done: int = 0

    def lost(self) -> float:
        """Return the mean KL divergence of a token that is held out."""
        return _mean(self.student.model, self.measured, self._loss)

    @cached_property
    def _loss(self) -> loop.Loss:
        return divergence(self.given.teacher.logits)

    def rate(self) -> float:
        """Return the learning rate that was asked for, or the one whose first steps are the best.

        Rates are tried from the highest down, until one leaves more than the one before it. Each
        has its state in a folder, so that a run that goes on repeats no step.
        """
        rates, lost = self.asked.rates, list[float]()
        if len(rates) == 1:
            return rates[0]
        for lr in rates:
            try:
                lost.append(self.trained(self.asked.tried, lr, self.given.folder / f"rate-{lr:g}"))
            except NonFiniteError:
                lost.append(math.inf)
            if len(lost) > 1 and lost[-1] > lost[-2]:
                break
        self.done = self.asked.steps_in_all - self.asked.steps
        return rates[lost.index(min(lost))]

    def trained(self, steps: int, lr: float, folder: Path) -> float:
        """Train from the start on, and return what is lost then."""
        self.student.reset()
        before, self.done = self.done, self.done + steps
        in_all = self.asked.steps_in_all
        loop.train(
            self.student.model,
            self.rows,
            loop.TrainingOptions(steps, lr, fall="cosine"),
            folder,
            self.asked.save_every,
            lambda step, _: self.given.progress(before + step, in_all),
            loss=self._loss,
        )
        return self.lost()


def _rows(tokens: list[list[int]]) -> Rows:
    made = torch.tensor(tokens)
    return Rows(made, torch.arange(made.shape[1]).expand(made.shape), made, 0)


def _mean(model: Any, rows: Rows, loss: loop.Loss) -> float:
    """Return the mean loss of a token."""
    model.eval()
    with torch.no_grad():
        every = [float(loss(model, *(t[i : i + 1] for t in rows[:3]))) for i in range(len(rows[0]))]
    return sum(every) / (rows.labels[:, 1:].numel())


@dataclass
class _Student:
    """A model of transformers whose matrices and tables are to be filled in.

    weights: those that are, by the names of `Plan.read`; places: of the vectors, (module, name).
    """

    model: Any
    weights: dict[str, ScaledWeight]
    places: dict[str, tuple[nn.Module, str]]

    @classmethod
    def of(cls, model: loading.Model) -> _Student:
        """Make the model without memory for weights."""
        quietly()
        fields = {**model.json}
        kind = fields.pop("model_type", None)
        try:
            with _without_parameters():
                auto: Any = AutoModelForCausalLM  # whose methods have no types
                made = auto.from_config(AutoConfig.for_model(kind, **fields), dtype=torch.float32)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RequestError(
                f"recover: must be for a model of transformers, but it has no causal language "
                f"model {kind}: {error}; leave --recover out"
            ) from None
        return cls(made, {}, {})

    def check(self, planned: Plan) -> None:
        """Raise RequestError unless the model has the weights of a plan, and no others."""
        wanted = dict[str, int]()
        for item in planned.items.values():
            if item.kind == "vector":
                wanted[item.name] = item.M
                continue
            for part in item.parts:
                wanted[f"{part.name}.weight"] = part.M * part.K
                if item.kind == "matrix" and type(self._module(part.name)) is not nn.Linear:
                    raise _unlike(part.name, "a linear layer")
                embeds = item.kind == "table" and part.name != "lm_head"
                if embeds and type(self._module(part.name)) is not nn.Embedding:
                    raise _unlike(part.name, "a plain embedding")
        own = {name: prod(p.shape) for name, p in self.model.named_parameters()}
        if wanted != own:
            odd = sorted(set(wanted.items()) ^ set(own.items()))[0][0]
            raise RequestError(
                f"recover: {odd} must be a weight of the model of transformers, and have its size, "
                "but differs; leave --recover out"
            )

    def _module(self, name: str) -> nn.Module | None:
        with contextlib.suppress(AttributeError):
            found: nn.Module = self.model.get_submodule(name)
            return found
        return None

    def fill(self, pieces: Iterator[Piece], vectors: Mapping[str, F32]) -> None:
        """Put rounded weights and vectors in their places."""
        for piece in pieces:
            self.weights[piece.name] = weight = ScaledWeight(piece)
            old = self.model.get_submodule(piece.name)
            new: nn.Module
            if isinstance(old, nn.Embedding):
                new = ScaledTable(weight)
                head = self.model.get_output_embeddings()
                if self.model.config.tie_word_embeddings and head is not None:
                    self.model.set_output_embeddings(ScaledLinear(weight, None))
            else:
                new = ScaledLinear(weight, old.bias)
            parent, _, child = piece.name.rpartition(".")
            setattr(self.model.get_submodule(parent), child, new)
        for name, vector in vectors.items():
            parent, _, child = name.rpartition(".")
            module = self.model.get_submodule(parent)
            train_vector(module, child, vector)
            self.places[name] = module, child

    def reset(self) -> None:
        """Return to what `fill` put in: each trained parameter is a change, at first 0."""
        with torch.no_grad():
            for p in self.model.parameters():
                if p.requires_grad:
                    p.zero_()

    def scales(self) -> dict[str, F32]:
        """Return the trained scales."""
        trained = {n: w for n, w in self.weights.items() if w.change.requires_grad}
        return {name: weight.stored() for name, weight in trained.items()}

    def vectors(self) -> dict[str, F32]:
        """Return the trained vectors."""
        return {name: vector_of(*place) for name, place in self.places.items()}


def _unlike(name: str, rule: str) -> RequestError:
    return RequestError(
        f"recover: {name} must be {rule} of transformers, by which it is trained; leave --recover "
        "out"
    )


@contextlib.contextmanager
def _without_parameters() -> Iterator[None]:
    """Let modules have parameters without memory; their buffers are as always."""
    register = nn.Module.register_parameter  # a method is replaced for a while, which types forbid

    def on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:  # else it is tied to one that has been here
            kept: Tensor = param.detach().to("meta")
            param = nn.Parameter(kept, requires_grad=False)
        register(module, name, param)

    nn.Module.register_parameter = on_meta  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
