"""The program: `bench`, and `python -m bench` (`python -P -m bench` in a folder that holds a `bench.py`)."""

from bench import process

process.shield()  # before anything is imported whose name a folder may have taken

from bench.cli import program  # noqa: E402

if __name__ == "__main__":
    program()
