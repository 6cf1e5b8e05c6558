"""`python -m refattn` is the command `refattn`."""

import sys

if __name__ == "__main__":  # a spawned worker imports this module too
    try:
        from .cli import main
    except KeyboardInterrupt:
        print("refattn: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(main())
