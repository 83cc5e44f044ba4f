package chars

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Category returns a general category, such as L or Lu, and false if there is none of that name.
func Category(name string) (Set, bool) {
	t, ok := unicode.Categories[name]
	if !ok || strings.HasPrefix(name, "C") {
		return nil, false // unassigned and private code points differ by Unicode version, and no tokenizer needs them
	}
	set := table(t)
	if name == "Mn" {
		set = Union(set.Negate(), unicode16["Mc"]).Negate() // one has moved
	}
	for category, added := range unicode16 {
		if strings.HasPrefix(category, name) {
			set = Union(set, added)
		}
	}
	return set, true
}

// categories returns the union of general categories that exist.
func categories(names ...string) Set {
	var set Set
	for _, name := range names {
		c, _ := Category(name)
		set = Union(set, c)
	}
	return set
}

// Script returns the code points of a script, such as Han, and false if there is none of that name.
func Script(name string) (Set, bool) {
	t, ok := unicode.Scripts[name]
	if !ok {
		return nil, false
	}
	return table(t), true
}

// Space is what \s matches: the property White_Space.
func Space() Set { return table(unicode.White_Space) }

// Digit is what \d matches.
func Digit() Set { return categories("Nd") }

// Word is what \w matches: letters, marks, digits, connecting punctuation, other alphabetic code points, and, in Oniguruma, the
// superscripts and fractions of Latin-1.
func Word() Set {
	return Union(categories("L", "M", "Nd", "Nl", "Pc"), table(unicode.Other_Alphabetic), Of('²', '³', '¹', '¼', '½', '¾'))
}

// RustWord is what \w matches in the regular expressions of the reference's own code, whose library is Rust's regex: alphabetic characters, marks,
// digits, connecting punctuation, and joiners.
func RustWord() Set {
	return Union(categories("L", "M", "Nd", "Nl", "Pc"), table(unicode.Other_Alphabetic), table(unicode.Join_Control))
}

// ASCIIPunctuation are the printable ASCII characters that are neither letters nor digits nor a space.
func ASCIIPunctuation() Set {
	return Ranges(Range{'!', '/'}, Range{':', '@'}, Range{'[', '`'}, Range{'{', '~'})
}

// What follows has the versions of Unicode that the reference's normalizers and pre-tokenizers go by, each another one.

// Accent are the marks that BERT's normalizer drops: nonspacing ones.
func Accent() Set { return older["accent"] }

// Mark are the marks that StripAccents drops: all of them.
func Mark() Set { return older["mark"] }

// Control is what BERT's normalizer drops: U+FFFD, and control, format and private characters but for tabs and line ends.
func Control() Set { return older["control"] }

// Ideograph is what BERT's normalizer puts spaces around.
func Ideograph() Set { return older["ideograph"] }

// Numeric is what Digits splits off.
func Numeric() Set { return older["numeric"] }

// Punctuation is what pre-tokenizers take for punctuation, ASCII symbols among them.
func Punctuation() Set { return older["punctuation"] }

// AppendLower appends a character in lower case. What precedes it does not count, so a sigma is never a final one.
func AppendLower(dst []byte, r rune) []byte {
	if r == 'İ' {
		return append(dst, "i\u0307"...)
	}
	if lower, ok := newerLower[r]; ok {
		r = lower
	} else {
		r = unicode.ToLower(r)
	}
	return utf8.AppendRune(dst, r)
}
