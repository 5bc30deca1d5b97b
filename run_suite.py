"""The door: `python run_suite.py --help`."""

import sys

from suite.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
