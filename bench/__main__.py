"""The program: `bench`, and `python -m bench` (`python -P -m bench` in a folder with a `bench.py`)."""

try:  # Ctrl-C may come at any moment, and these imports take tenths of a second
    from bench import process

    process.shield()  # before imports that a file in the working folder could shadow

    from bench.cli import program
except KeyboardInterrupt:
    import os

    os.write(2, b"bench: interrupted\n")
    os._exit(130)  # nothing to clean up yet

if __name__ == "__main__":
    program()
