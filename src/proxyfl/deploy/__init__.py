"""Real federations for operators: a deployment's files, keys and programs."""
