"""Linear layers of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.formats import Experts, PackedWeight
from sterna.graph.ops.linear import LinearOp

__all__ = ["ExpertLinearOp"]


@dataclass(eq=False, kw_only=True)
class ExpertLinearOp(LinearOp):
    """A linear layer of each expert, on the rows of its tokens.

    weight: the rows of all experts, one expert after the other, `expert_rows` of each; bias: the
    same.
    """

    kind: ClassVar[str] = "expert_linear"
    expert_rows: int

    @property
    def n_experts(self) -> int:
        """The experts of the layer."""
        assert self.output.route is not None
        return self.output.route.experts

    @property
    def one_weight(self) -> PackedWeight:
        return Experts(self.weight, self.n_experts, self.expert_rows)[0]

    @property
    def n_weights(self) -> int:
        return self.expert_rows * self.n_experts * self.weight.K

    @property
    def active(self) -> float:
        assert self.output.route is not None
        return self.output.route.chosen / self.n_experts

    @property
    def may_skip(self) -> bool:
        return False
