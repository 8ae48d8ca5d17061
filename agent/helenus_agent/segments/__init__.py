"""Which segments there are, what is lost of them, and where they go."""
