"""The packages that this project changes at run time: their versions, and how something in them is replaced."""
