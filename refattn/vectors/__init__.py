"""Golden vectors: inputs and, for each element of each output, the interval that it must lie in, for any language.

`write` makes a folder: an index in JSON, a safetensors file for each case, a README with the check in fifteen lines.
`verify` derives all that is in it a second way, `judged_folder` judges answers that another program wrote.  The same
bytes come out on every machine: inputs from raw Philox words (`dyadic`), values by ball arithmetic (`balls`, which
needs python-flint), tolerances rounded up to few bits (`expected`).

    refattn vectors write DIR --curated
    refattn vectors verify DIR [--answers DIR]
"""

from __future__ import annotations

from .answers import Verdict, judged, judged_folder
from .curated import CURATED
from .dyadic import Refused
from .folder import Folder, Vector, opened
from .schema import BadIndex
from .verify import Verified, verify
from .write import write

__all__ = [
    "CURATED", "BadIndex", "Folder", "Refused", "Vector", "Verdict", "Verified",
    "judged", "judged_folder", "opened", "verify", "write",
]  # fmt: skip
