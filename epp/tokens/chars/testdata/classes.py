"""Writes classes.txt: which code points each general category, and the classes that \\s, \\w and \\d are short for, have in the
regular expressions of PyPI's tokenizers, as ranges in hexadecimal. Run: python3 classes.py >classes.txt"""

from tokenizers import Regex, __version__, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So".split()
every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
text = "".join(every)

print(f"# tokenizers {__version__}")
for name, pattern in [(c, rf"\p{{{c}}}") for c in CATEGORIES] + [("s", r"\s"), ("w", r"\w"), ("d", r"\d")]:
    rest = set()
    for piece, _ in pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(text):
        rest.update(piece)
    ranges = []
    for c in (ord(c) for c in every if c not in rest):
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    print(name, " ".join(f"{lo:x}" if lo == hi else f"{lo:x}-{hi:x}" for lo, hi in ranges))
