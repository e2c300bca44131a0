"""`python -m mmrl`."""

from mmrl.cli import main

if __name__ == "__main__":
    main()
