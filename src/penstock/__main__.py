"""`python -m penstock` is the command `penstock`."""

from penstock.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
