"""The ground floor: errors, randomness, state, settings and registries. Knows nothing of the rooms above."""
