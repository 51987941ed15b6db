"""A long problem that tests change in ways that do or do not matter."""

DIE = (
    r"When rolling an unfair die with faces numbered 1, 2, 3, 4, 5, and 6, the probability of "
    r"obtaining face $F$ is "
    r"greater than $1/6$, the probability of the face opposite is less than $1/6$, and any one "
    r"of the other faces has "
    r"probability $1/6$. When two such dice are rolled, the probability of a sum of 7 is "
    r"$47/288$. Find the "
    r"probability of obtaining face $F$."
)
