"""`python -m sfumato`: the same command line as `sfumato`."""

from sfumato.cli.main import main

if __name__ == "__main__":
    main()
