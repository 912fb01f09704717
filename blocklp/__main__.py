"""``python -m blocklp``: the command line, also under torchrun."""

from blocklp.problems.process import main

if __name__ == "__main__":
    main()
