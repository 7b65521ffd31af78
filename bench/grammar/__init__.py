"""The grammar of all commands, declared once: parsing, help, errors and completion follow from it. Imports no torch."""
