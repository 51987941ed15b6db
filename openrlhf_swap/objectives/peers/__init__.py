"""The objectives of other papers."""
