"""Writes classes.txt: which code points each general category, and the classes that \\s, \\w and \\d are short for, have in the
regular expressions of PyPI's tokenizers, as ranges in hexadecimal, and those that its normalizers and pre-tokenizers have, of other versions of
Unicode. The last line has the lower case of code points. Run: python3 classes.py >classes.txt"""

from tokenizers import Regex, __version__, normalizers, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So".split()
every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
text = "".join(every)



def show(name, members):
    ranges = []
    for c in members:
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    print(name, " ".join(f"{lo:x}" if lo == hi else f"{lo:x}-{hi:x}" for lo, hi in ranges))


print(f"# tokenizers {__version__}")
for name, pattern in [(c, rf"\p{{{c}}}") for c in CATEGORIES] + [("s", r"\s"), ("w", r"\w"), ("d", r"\d")]:
    rest = set()
    for piece, _ in pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(text):
        rest.update(piece)
    show(name, (ord(c) for c in every if c not in rest))


def bert(**parts):
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**off | parts)


def becomes(normalizer, what):
    return (ord(c) for c in every if normalizer.normalize_str(c) == what(c))


show("control", becomes(bert(clean_text=True), lambda c: ""))
show("ideograph", becomes(bert(handle_chinese_chars=True), lambda c: f" {c} "))
show("accent", becomes(bert(strip_accents=True), lambda c: ""))
show("mark", becomes(normalizers.StripAccents(), lambda c: ""))
nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
show("decomposing", (ord(c) for c in every if nfkd.normalize_str(c) != c))
last = "\u0345"  # of the highest combining class
show("combining", (ord(c) for c in every if c != last and nfd.normalize_str(c) == c and nfd.normalize_str(last + c) == c + last))
for name, splitter in [("numeric", pre_tokenizers.Digits(True)), ("punctuation", pre_tokenizers.Punctuation())]:
    show(name, (ord(c) for c in every if len(splitter.pre_tokenize_str(f"a{c}a")) == 3))
lower = normalizers.Lowercase()
pairs = ((c, lower.normalize_str(c)) for c in every)
print("lower", " ".join(f"{ord(c):x}-{ord(l):x}" for c, l in pairs if c != l and len(l) == 1))
