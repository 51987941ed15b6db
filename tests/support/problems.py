"""A long problem that tests change in ways that do or do not matter."""

DIE = (
    "When rolling an unfair die with faces numbered 1, 2, 3, 4, 5, and 6, the probability of "
    "obtaining face $F$ is greater than $1/6$, the probability of the face opposite is less than "
    "$1/6$, and any one of the other faces has probability $1/6$. When two such dice are rolled, "
    "the probability of a sum of 7 is $47/288$. Find the probability of obtaining face $F$."
)
