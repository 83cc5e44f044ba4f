package pd

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Rename says which model's name the sidecar restores in the answer, in HeaderModel:
//
//	<client's name>;answers=<engine's name>
//
// A model's name can be any text, so it is percent-encoded, except for letters, digits and the characters -._~/:@+.
type Rename struct {
	Asked   string // by the client, and in the answer it gets
	Answers string // the model that the engine is asked for instead
}

// maxName bounds a name in HeaderModel (bytes, decoded): three times what the picker accepts from a client, because there
// bytes that are not UTF-8 become U+FFFD.
const maxName = 3 << 10

// ParseRename parses HeaderModel.
func ParseRename(value string) (Rename, error) {
	head, param, _ := strings.Cut(value, ";")
	answers, ok := strings.CutPrefix(param, "answers=")
	if !ok {
		return Rename{}, fmt.Errorf("reading %s: needs answers", HeaderModel)
	}
	var r Rename
	for _, n := range []struct {
		to   *string
		text string
	}{{&r.Asked, head}, {&r.Answers, answers}} {
		name, err := decodeName(n.text)
		if err != nil {
			return Rename{}, fmt.Errorf("reading %s: %w", HeaderModel, err)
		}
		*n.to = name
	}
	return r, nil
}

// String returns the rename in the form that ParseRename parses.
func (r Rename) String() string {
	const param = ";answers="
	b := make([]byte, 0, len(r.Asked)+len(param)+len(r.Answers))
	b = appendName(b, r.Asked)
	b = append(b, param...)
	return string(appendName(b, r.Answers))
}

// plainName reports whether a byte is written as it is.
func plainName(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("-._~/:@+", c) >= 0
}

func appendName(b []byte, name string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(name) {
		if c := name[i]; plainName(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return b
}

func decodeName(text string) (string, error) {
	b := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '%' {
			if len(text)-i < 3 {
				return "", errors.New("a percent sign needs two hex digits")
			}
			high, low := hexDigit(text[i+1]), hexDigit(text[i+2])
			if high|low > 15 {
				return "", errors.New("a percent sign needs two hex digits")
			}
			c, i = high<<4|low, i+2
		} else if !plainName(c) {
			return "", fmt.Errorf("byte %#02x is not encoded", c)
		}
		b = append(b, c)
	}
	switch {
	case len(b) == 0 || len(b) > maxName:
		return "", fmt.Errorf("names have 1 to %d bytes", maxName)
	case !utf8.Valid(b):
		return "", errors.New("names are UTF-8")
	}
	return string(b), nil
}

// hexDigit returns the value of a hexadecimal digit in upper case, 0xFF for other bytes.
func hexDigit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return 0xFF
}
