"""For those who test methods of their own: clients that attack."""
