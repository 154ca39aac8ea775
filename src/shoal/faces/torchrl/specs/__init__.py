"""Specs: what a tensor or a TensorDict of an env may hold.

base          TensorSpec: what every spec can do
reshaping     expand, reshape, index ... as methods of a spec
shapes        the same, as functions on the leading dims of whatever a spec holds
dtypes        dtypes and devices
boxes         the space of a spec: bounds or a number of choices
masks         which choices are allowed at the moment
categorical   Categorical           one_hot   OneHot
multi         MultiCategorical and MultiOneHot
binary        Binary                choice    Choice
bounded       Bounded               unbounded Unbounded
non_tensor    NonTensor
locks         locked trees of specs  tree     names and nested keys
named         names of batch dims
composite     Composite: named specs, for a TensorDict
lazy          what the next two share: specs of different shapes or classes, side by side
stacked       Stacked               stacked_composite  StackedComposite
stacking      torch.stack for specs
"""

from __future__ import annotations

from shoal.faces.torchrl.specs.base import TensorSpec
from shoal.faces.torchrl.specs.binary import Binary
from shoal.faces.torchrl.specs.bounded import Bounded, BoundedContinuous, BoundedDiscrete
from shoal.faces.torchrl.specs.boxes import BoxList, CategoricalBox, ContinuousBox
from shoal.faces.torchrl.specs.categorical import Categorical
from shoal.faces.torchrl.specs.choice import Choice
from shoal.faces.torchrl.specs.composite import Composite
from shoal.faces.torchrl.specs.multi import MultiCategorical, MultiOneHot
from shoal.faces.torchrl.specs.non_tensor import NonTensor
from shoal.faces.torchrl.specs.one_hot import OneHot
from shoal.faces.torchrl.specs.stacked import Stacked
from shoal.faces.torchrl.specs.stacked_composite import StackedComposite
from shoal.faces.torchrl.specs.unbounded import Unbounded, UnboundedContinuous, UnboundedDiscrete

__all__ = [
    "Binary",
    "Bounded",
    "BoundedContinuous",
    "BoundedDiscrete",
    "BoxList",
    "Categorical",
    "CategoricalBox",
    "Choice",
    "Composite",
    "ContinuousBox",
    "MultiCategorical",
    "MultiOneHot",
    "NonTensor",
    "OneHot",
    "Stacked",
    "StackedComposite",
    "TensorSpec",
    "Unbounded",
    "UnboundedContinuous",
    "UnboundedDiscrete",
]
