"""Where client work runs."""
