package chars

import (
	"strings"
	"unicode"
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

// ASCIIPunctuation are the printable ASCII characters that are neither letters nor digits nor a space.
func ASCIIPunctuation() Set {
	return Ranges(Range{'!', '/'}, Range{':', '@'}, Range{'[', '`'}, Range{'{', '~'})
}
