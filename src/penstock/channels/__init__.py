"""NATS Streaming on JetStream."""
__all__ = []
