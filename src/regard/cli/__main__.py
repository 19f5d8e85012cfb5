"""`python -m regard.cli`: the command."""

from regard.cli.main import main

if __name__ == "__main__":
    main()
