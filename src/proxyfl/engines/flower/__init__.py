"""The Flower engine: clients are sites elsewhere, and Flower carries tasks and answers to and from them."""
