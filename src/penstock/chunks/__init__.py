"""Payloads of any size over NATS, in chunks."""
from penstock.chunks.publisher import Publisher
__all__ = ["Publisher"]
