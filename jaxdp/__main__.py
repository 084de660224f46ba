"""`python -m jaxdp` is the command `jaxdp`."""

from jaxdp.cli import main

if __name__ == "__main__":
    main()
