"""The round: who takes part, what a client does, how answers become the next model."""
