"""The grammar of all commands, declared once: parsing, help and errors follow from it. Imports no torch."""
