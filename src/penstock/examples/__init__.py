"""Examples that come with the package; `penstock demo` runs the one in `orders`."""

__all__: list[str] = []
