"""python -m dcmh"""

import sys

from dcmh.cli import main

sys.exit(main())
