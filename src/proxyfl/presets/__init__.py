"""Protocols, one TOML file per data set."""
