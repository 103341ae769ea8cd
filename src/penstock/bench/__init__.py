"""What `penstock bench` measures: loops that run in processes of their own, and what becomes of their figures.

`crew` starts the processes and hears them, `worker` is what runs in each, `client_job` what it is told, `results` the
figures. The loops are in `core`, `streams`, `reading`, `rooms` and `spark`. Its modules are not for users.
"""

__all__: list[str] = []
