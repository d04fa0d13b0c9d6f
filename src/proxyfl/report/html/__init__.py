"""Runs as a page: what is shown is gathered as plain data and drawn in the browser by our own script."""
