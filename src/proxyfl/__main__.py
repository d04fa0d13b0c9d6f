"""``python -m proxyfl``."""

from proxyfl.cli import main

main()
