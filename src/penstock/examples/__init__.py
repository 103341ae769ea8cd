"""Examples that come with the package; `penstock demo` runs the one in `orders`.

They are there to be read and copied; their modules are not for users to import.
"""

__all__: list[str] = []
