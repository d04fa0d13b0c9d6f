"""ProxyFL."""
