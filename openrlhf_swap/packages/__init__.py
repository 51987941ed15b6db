"""The packages that this project changes at run time."""
