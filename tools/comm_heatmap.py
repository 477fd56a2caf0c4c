#!/usr/bin/env python3
"""`collective-ops heatmap` as a program that needs no build: numpy and matplotlib are enough."""

import sys
import types
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "python" / "collective_ops"

if __name__ == "__main__":
    # The package itself would load its native part.
    package = types.ModuleType("collective_ops")
    package.__path__ = [str(FOLDER)]
    sys.modules["collective_ops"] = package

    from collective_ops.heatmap import main

    sys.exit(main())
