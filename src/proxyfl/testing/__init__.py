"""For those who test methods of their own: small drawn data, and clients that attack."""
