"""What the runtime tells: the catalogue of signals and the observers that receive them."""
