"""Grade the notebooks that the command line names."""

import sys

from . import main

sys.exit(main())
