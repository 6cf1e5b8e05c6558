"""`python -m refattn` is the command `refattn`."""

import sys

if __name__ == "__main__":  # a spawned worker imports this module too
    from .cli import main

    sys.exit(main())
