"""The operations of a graph, a kind a file.

Each is a dataclass, whose fields the core reads by name: the struct of the same kind in
native/program/ops has them, and checks them once more with the buffers that compilation has chosen.
"""

from sterna.graph.ops.activation import ActivationOp
from sterna.graph.ops.adapt import AdaptedLayer, AdaptOp
from sterna.graph.ops.altup import AltUpOp, RescaleOp
from sterna.graph.ops.attention import AttentionOp
from sterna.graph.ops.base import Op, RoundingOp, Route, Value, WeightOp
from sterna.graph.ops.combine import CombineOp
from sterna.graph.ops.conv import ConvOp, ShortConvOp
from sterna.graph.ops.copy import CopyOp
from sterna.graph.ops.cutoff import CutoffOp
from sterna.graph.ops.embed import EmbedOp
from sterna.graph.ops.exact_head import ExactHeadOp
from sterna.graph.ops.expert_linear import ExpertLinearOp
from sterna.graph.ops.features import FeaturesOp
from sterna.graph.ops.gated import GatedOp
from sterna.graph.ops.guess import GuessOp
from sterna.graph.ops.hidden_states import HiddenStatesOp
from sterna.graph.ops.indexer import IndexerOp
from sterna.graph.ops.keep import KeepOp
from sterna.graph.ops.layer_norm import LayerNormOp
from sterna.graph.ops.linear import LinearOp
from sterna.graph.ops.parts import PartsOp
from sterna.graph.ops.positions import PositionsOp
from sterna.graph.ops.recurrence import RecurrenceOp, StateSpaceOp
from sterna.graph.ops.rg_lru import RgLruOp
from sterna.graph.ops.rope import RopeOp
from sterna.graph.ops.route import RouteOp
from sterna.graph.ops.rowwise import RowwiseOp
from sterna.graph.ops.scale import ScaleOp
from sterna.graph.ops.select import SelectOp
from sterna.graph.ops.selective_scan import SelectiveScanOp
from sterna.graph.ops.split_heads import SplitHeadsOp
from sterna.graph.ops.squares import SquaresOp
from sterna.graph.ops.to_bf16_planes import ToBf16PlanesOp

__all__ = [
    "ActivationOp",
    "AdaptOp",
    "AdaptedLayer",
    "AltUpOp",
    "AttentionOp",
    "CombineOp",
    "ConvOp",
    "CopyOp",
    "CutoffOp",
    "EmbedOp",
    "ExactHeadOp",
    "ExpertLinearOp",
    "FeaturesOp",
    "GatedOp",
    "GuessOp",
    "HiddenStatesOp",
    "IndexerOp",
    "KeepOp",
    "LayerNormOp",
    "LinearOp",
    "Op",
    "PartsOp",
    "PositionsOp",
    "RecurrenceOp",
    "RescaleOp",
    "RgLruOp",
    "RopeOp",
    "RoundingOp",
    "Route",
    "RouteOp",
    "RowwiseOp",
    "ScaleOp",
    "SelectOp",
    "SelectiveScanOp",
    "ShortConvOp",
    "SplitHeadsOp",
    "SquaresOp",
    "StateSpaceOp",
    "ToBf16PlanesOp",
    "Value",
    "WeightOp",
]
