"""Functions of the program that have no folder of their own, a file each."""
