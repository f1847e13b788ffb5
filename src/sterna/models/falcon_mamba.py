"""Falcon Mamba: Mamba, with RMSNorms without weights of the steps, B and C. arXiv 2410.05355."""

from __future__ import annotations

from typing import Any

from sterna.models import mamba
from sterna.models.mamba import build as build
from sterna.models.mamba import complete as complete

ARCHITECTURES = ("FalconMambaForCausalLM",)
DEFAULTS: dict[str, Any] = mamba.DEFAULTS | {"mixer_rms_eps": 1e-6}
ALIASES = mamba.ALIASES
PREFIXES = mamba.PREFIXES
