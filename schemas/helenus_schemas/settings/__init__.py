"""Settings from properties files."""
