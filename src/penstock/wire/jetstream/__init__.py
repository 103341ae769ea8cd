"""What JetStream says, without I/O: names, questions, answers, and one verdict on every error."""

__all__: list[str] = []
