"""What is sent to the broker, and what the broker refuses."""
