"""``python -m blocklp``: the command line, also under torchrun."""

from blocklp.problems.command_line.main import main

if __name__ == "__main__":
    main()
