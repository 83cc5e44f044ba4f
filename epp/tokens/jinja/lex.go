package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind of a token.
type kind uint8

const (
	tokEnd          kind = iota // of the template
	tokText                     // outside of tags
	tokPrint                    // {{
	tokPrintEnd                 // }}
	tokStatement                // {%
	tokStatementEnd             // %}
	tokName
	tokString
	tokInt
	tokFloat
	tokOperator
)

// token is a piece of a template.
type token struct {
	kind kind
	text string // strings without quotes and escapes
	line int
}

// lexer cuts a template into tokens.
type lexer struct {
	source    string
	at        int
	tokens    []token
	lineStart bool // what has been read ends at the beginning of a line
}

func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

func trimSpace(s string) string      { return strings.TrimFunc(s, isSpace) }
func trimSpaceRight(s string) string { return strings.TrimRightFunc(s, isSpace) }
func trimSpaceLeft(s string) string  { return strings.TrimLeftFunc(s, isSpace) }

// lex returns the tokens of a template.
func lex(source string) ([]token, error) {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	l := lexer{source: strings.TrimSuffix(source, "\n"), lineStart: true}
	for l.at < len(l.source) {
		if err := l.next(); err != nil {
			return nil, err
		}
	}
	l.add(tokEnd, "")
	return l.tokens, nil
}

func (l *lexer) add(k kind, text string) {
	l.tokens = append(l.tokens, token{k, text, 1 + strings.Count(l.source[:l.at], "\n")})
}

func (l *lexer) fail(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", 1+strings.Count(l.source[:min(l.at, len(l.source))], "\n"), fmt.Sprintf(format, args...))
}

// next reads text up to a tag, and the tag.
func (l *lexer) next() error {
	rest := l.source[l.at:]
	i := 0
	for {
		j := strings.IndexByte(rest[i:], '{')
		if j < 0 || i+j+1 >= len(rest) {
			l.text(rest, "")
			l.at = len(l.source)
			return nil
		}
		i += j
		if strings.IndexByte("{%#", rest[i+1]) >= 0 {
			break
		}
		i++
	}
	tag := rest[i:]
	sign := ""
	if len(tag) > 2 && (tag[2] == '-' || tag[2] == '+') {
		sign = tag[2:3]
	}
	l.text(rest[:i], tag[1:2]+sign)
	l.at += i + 2 + len(sign)
	switch tag[1] {
	case '#':
		return l.comment()
	case '{':
		l.add(tokPrint, "")
		return l.inside("}}", tokPrintEnd)
	}
	if raw, ok := strings.CutPrefix(trimSpaceLeft(l.source[l.at:]), "raw"); ok {
		if raw = trimSpaceLeft(raw); strings.HasPrefix(raw, "%}") || strings.HasPrefix(raw, "-%}") {
			return l.raw(raw)
		}
	}
	l.add(tokStatement, "")
	return l.inside("%}", tokStatementEnd)
}

// text adds text before a tag, of which tag has the second character and the sign; "" at the end.
func (l *lexer) text(text, tag string) {
	switch {
	case strings.HasSuffix(tag, "-"):
		text = trimSpaceRight(text)
	case tag == "%" || tag == "#":
		line := strings.LastIndexByte(text, '\n') + 1
		if (line > 0 || l.lineStart) && trimSpace(text[line:]) == "" {
			text = text[:line]
		}
	}
	if text != "" {
		l.add(tokText, text)
	}
}

// end skips what the end of a tag takes of the text behind it.
func (l *lexer) end(sign string, statement bool) {
	from := l.at
	switch {
	case sign == "-":
		l.at = len(l.source) - len(trimSpaceLeft(l.source[l.at:]))
	case sign == "" && statement && strings.HasPrefix(l.source[l.at:], "\n"):
		l.at++
	}
	l.lineStart = l.at > from && l.source[l.at-1] == '\n'
}

func (l *lexer) comment() error {
	end := strings.Index(l.source[l.at:], "#}")
	if end < 0 {
		return l.fail("a comment is not closed")
	}
	sign := ""
	if end > 0 {
		if c := l.source[l.at+end-1]; c == '-' || c == '+' {
			sign = string(c)
		}
	}
	l.at += end + 2
	l.end(sign, true)
	return nil
}

// raw reads text up to the endraw, of which begin is what follows the word raw.
func (l *lexer) raw(begin string) error {
	l.at = len(l.source) - len(begin)
	sign := ""
	if begin[0] == '-' {
		sign = "-"
		l.at++
	}
	l.at += 2
	l.end(sign, false)
	for i := l.at; ; {
		j := strings.Index(l.source[i:], "{%")
		if j < 0 {
			return l.fail("raw is not closed")
		}
		i += j
		tag := l.source[i+2:]
		before := ""
		if tag != "" && (tag[0] == '-' || tag[0] == '+') {
			before, tag = tag[:1], tag[1:]
		}
		tag, ok := strings.CutPrefix(trimSpaceLeft(tag), "endraw")
		tag = trimSpaceLeft(tag)
		after := ""
		if tag != "" && (tag[0] == '-' || tag[0] == '+') {
			after, tag = tag[:1], tag[1:]
		}
		if !ok || !strings.HasPrefix(tag, "%}") {
			i += 2
			continue
		}
		l.text(l.source[l.at:i], "%"+before)
		l.at = len(l.source) - len(tag) + 2
		l.end(after, true)
		return nil
	}
}

var operators = []string{"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ","}

// inside reads the tokens of a tag up to its end.
func (l *lexer) inside(end string, k kind) error {
	var open []byte
	for {
		l.at = len(l.source) - len(trimSpaceLeft(l.source[l.at:]))
		rest := l.source[l.at:]
		if rest == "" {
			return l.fail("a tag is not closed")
		}
		if len(open) == 0 {
			sign := ""
			if rest[0] == '-' || rest[0] == '+' && k == tokStatementEnd {
				sign = rest[:1]
			}
			if strings.HasPrefix(rest[len(sign):], end) {
				l.add(k, "")
				l.at += len(sign) + len(end)
				l.end(sign, k == tokStatementEnd)
				return nil
			}
		}
		n, err := l.one(rest)
		if err != nil {
			return err
		}
		l.at += n
		if last := l.tokens[len(l.tokens)-1]; last.kind == tokOperator {
			switch last.text {
			case "(", "[", "{":
				open = append(open, map[string]byte{"(": ')', "[": ']', "{": '}'}[last.text])
			case ")", "]", "}":
				if len(open) == 0 || open[len(open)-1] != last.text[0] {
					return l.fail("unexpected %q", last.text)
				}
				open = open[:len(open)-1]
			}
		}
	}
}

// one adds the token at the beginning of rest, and returns its length.
func (l *lexer) one(rest string) (int, error) {
	r, _ := utf8.DecodeRuneInString(rest)
	switch {
	case r == '\'' || r == '"':
		return l.quoted(rest)
	case r >= '0' && r <= '9':
		return l.number(rest)
	case r == '_' || unicode.IsLetter(r):
		n := strings.IndexFunc(rest, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		if n < 0 {
			n = len(rest)
		}
		l.add(tokName, rest[:n])
		return n, nil
	}
	for _, op := range operators {
		if strings.HasPrefix(rest, op) {
			l.add(tokOperator, op)
			return len(op), nil
		}
	}
	return 0, l.fail("unexpected %q", r)
}

func (l *lexer) number(rest string) (int, error) {
	digits := func(from int) int {
		for from < len(rest) && (rest[from] >= '0' && rest[from] <= '9' || rest[from] == '_') {
			from++
		}
		return from
	}
	n, k := digits(0), tokInt
	afterDot := l.at > 0 && l.source[l.at-1] == '.'
	if !afterDot && n+1 < len(rest) && rest[n] == '.' && rest[n+1] >= '0' && rest[n+1] <= '9' {
		n, k = digits(n+1), tokFloat
	}
	if !afterDot && n < len(rest) && rest[n]|0x20 == 'e' {
		exponent := n + 1
		if exponent < len(rest) && (rest[exponent] == '+' || rest[exponent] == '-') {
			exponent++
		}
		if end := digits(exponent); end > exponent {
			n, k = end, tokFloat
		}
	}
	if n < len(rest) && (unicode.IsLetter(rune(rest[n]))) {
		return 0, l.fail("%q is not a number", rest[:n+1])
	}
	l.add(k, strings.ReplaceAll(rest[:n], "_", ""))
	return n, nil
}

// escapes of one character in Python's strings.
var escapes = map[byte]string{'\n': "", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v"}

// quoted reads a string with Python's escapes.
func (l *lexer) quoted(rest string) (int, error) {
	var b strings.Builder
	for i := 1; i < len(rest); {
		c := rest[i]
		switch {
		case c == rest[0]:
			l.add(tokString, b.String())
			return i + 1, nil
		case c != '\\':
			b.WriteByte(c)
			i++
			continue
		case i+1 >= len(rest):
			return 0, l.fail("a string is not closed")
		}
		c = rest[i+1]
		if text, ok := escapes[c]; ok {
			b.WriteString(text)
			i += 2
			continue
		}
		size := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		switch {
		case size > 0:
			if i+2+size > len(rest) {
				return 0, l.fail("an escape is too short")
			}
			r, err := strconv.ParseUint(rest[i+2:i+2+size], 16, 32)
			if err != nil || !utf8.ValidRune(rune(r)) {
				return 0, l.fail("%q is not a character", rest[i:i+2+size])
			}
			b.WriteRune(rune(r))
			i += 2 + size
		case c >= '0' && c <= '7':
			end := i + 1
			for end < len(rest) && end < i+4 && rest[end] >= '0' && rest[end] <= '7' {
				end++
			}
			r, err := strconv.ParseUint(rest[i+1:end], 8, 16)
			if err != nil {
				return 0, l.fail("%q is not a character", rest[i:end])
			}
			b.WriteRune(rune(r))
			i = end
		case c == 'N':
			return 0, l.fail("characters by name are not supported")
		default: // Python keeps the backslash
			b.WriteByte('\\')
			i++
		}
	}
	return 0, l.fail("a string is not closed")
}
