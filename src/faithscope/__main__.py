"""Run the command line as ``python -m faithscope``."""

from faithscope.cli import main

if __name__ == "__main__":
    main()
