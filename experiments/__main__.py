"""`python -m experiments`."""

import sys

if __name__ == "__main__":
    try:
        from experiments.cli import main  # importing torch takes seconds, and Ctrl-C may come in them

        main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
