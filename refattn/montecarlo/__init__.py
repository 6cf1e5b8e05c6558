"""Monte Carlo for the proofs: streams, moments, anytime-valid decisions, and their command line."""

from .decisions import ALPHA, Bounded, Decision, Mean, Variance, Wager, log_mean_exp, whole
from .moments import Moments, stream
from .proof import Finding, Run, exact, largest, main, within

__all__ = [
    "ALPHA",
    "Bounded",
    "Decision",
    "Finding",
    "Mean",
    "Moments",
    "Run",
    "Variance",
    "Wager",
    "exact",
    "largest",
    "log_mean_exp",
    "main",
    "stream",
    "whole",
    "within",
]
