"""What JetStream says, without I/O: names, questions, answers, and one verdict on every error.

These modules are not for users: what programs see of them are the errors and the values of other rooms.
"""

__all__: list[str] = []
