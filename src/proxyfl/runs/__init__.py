"""One run = one directory: settings in, metrics, checkpoints and models out."""
