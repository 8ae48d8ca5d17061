"""How a row is read again, and when a read is proof."""
