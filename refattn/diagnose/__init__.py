"""Which bug would give just these answers: hypotheses, each a function of the inputs, against what was returned.

A hypothesis is evaluated in float64 on a problem that failed, and again in the arithmetic that the implementation
promised: what the two differ by, four times over, or the radius of the bound if that is larger, is how far an honest
kernel with this bug may be from it.  It *explains* a case if every output that was returned is within that distance;
one of too few bits is evaluated in the promised arithmetic alone, and explains a case if it leaves a tenth of the
squared error.  Those that show in the cases that failed, and in few that passed, are asked first, and where one
explains a case, no others that are much less plausible (`refattn.diagnose.order`).

It is named as exact only if it explains every failing case and no case that passed speaks against it.  Otherwise that
which explains most of the cases is named, with their number, and with what all of these have and none of those that
passed and speak against it, if there is such a thing (`refattn.diagnose.conditions`); otherwise the one that explains
most of the squared error, with its share; or none, and what all failures have in common (`refattn.diagnose.facts`).

Hypotheses are the catalogue of mutants turned round, and families with a parameter: the size of tiles, which head,
off by how many (`refattn.diagnose.hypothesis`).  One that explains each row that is wrong, and would make wrong what
is right, may hold in a region alone (`refattn.diagnose.regions`), or in some outputs alone, which other loops of a
kernel make (`refattn.diagnose.alone`); and of a family, the size of tiles and the number of splits may differ from case
to case.  Where none explains most, it is deduced from the answers, gradients too, for which pairs of a query and a key
something is wrong, and by what rule (`refattn.diagnose.deduced`); and losses of bits are looked for that the errors go
along with (`refattn.diagnose.bits`).  Time is counted in work, alike on every machine (`refattn.diagnose.effort`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..case import Case
from ..judge import Verdict
from .diagnosis import Diagnosis
from .evidence import can_be_evaluated
from .merging import merged as merged_diagnoses
from .suspects import Suspects
from .trial import Trial

__all__ = ["Diagnosis", "Suspects", "diagnose", "merged_diagnoses"]


def diagnose(
    failures: Sequence[Verdict], passed: Iterable[Case] = (), failing: int | None = None, seconds: float = 30.0
) -> Diagnosis:
    """The bug that explains all failures, verdicts with their evidence; `passed` are cases that passed.

    `failing` is how many cases failed in all; `seconds` is when no further hypothesis is begun.
    """
    suspects = Suspects(seconds=seconds, passed=list(passed))
    suspects.trials += [Trial(v, suspects.search.effort) for v in failures if can_be_evaluated(v)]
    suspects.failing = len(failures) if failing is None else failing
    return suspects.diagnosis()
