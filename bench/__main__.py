"""The program: `bench`, and `python -m bench` (`python -P -m bench` in a folder that holds a `bench.py`)."""

try:  # Ctrl-C may come at any moment, and importing what follows takes tenths of a second
    from bench import process

    process.shield()  # before anything is imported whose name a folder may have taken

    from bench.cli import program
except KeyboardInterrupt:
    import os

    os.write(2, b"bench: interrupted\n")
    os._exit(130)  # nothing has been begun that would have to be ended

if __name__ == "__main__":
    program()
