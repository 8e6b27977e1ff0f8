"""`python -m penstock`: the same as the command `penstock`."""

import sys

from penstock.cli.entry import main

sys.exit(main())
