"""Where a step's time goes: one client's round and the server's part of it, taken apart by spans."""
