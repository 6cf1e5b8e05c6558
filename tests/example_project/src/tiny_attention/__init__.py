"""Attention in tiles of keys."""

from .kernel import attention, half_attention

__all__ = ["attention", "half_attention"]
