"""The program: ``python -m ltr`` or ``ltr``."""

import sys

from ltr.cli.program import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
