"""The change event, and its bytes."""
