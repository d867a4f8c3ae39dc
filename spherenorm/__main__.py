"""`python -m spherenorm` is the command `spherenorm`."""

import sys

from spherenorm_command import main

if __name__ == "__main__":
    sys.exit(main())
