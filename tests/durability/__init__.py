"""What a power failure leaves: the writes of a real nats-server are traced, and all that was not synced is lost."""
