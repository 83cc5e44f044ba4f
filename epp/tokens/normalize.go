package tokens

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/epp/tokens/chars"
	"github.com/tandem-serving/tandem/epp/tokens/pattern"
)

// normalizer changes text before it is split.
type normalizer interface {
	// append appends the text as it becomes. changes may say that it stays as it is, which saves a copy.
	append(dst, text []byte) []byte
	changes(text []byte) bool
}

// normalizers are applied one after the other.
type normalizers []normalizer

// apply returns the text as it becomes: in the memory of text or of one of two buffers, which grow as needed.
func (all normalizers) apply(text []byte, buffers *[2][]byte) []byte {
	next := 0
	for _, n := range all {
		if n.changes(text) {
			buffers[next] = n.append(buffers[next][:0], text)
			text = buffers[next]
			next = 1 - next
		}
	}
	return text
}

// form is a Unicode normalisation.
type form struct{ chars.Form }

func (n form) changes(text []byte) bool       { return !chars.IsNormal(n.Form, text) }
func (n form) append(dst, text []byte) []byte { return chars.AppendNormal(n.Form, dst, text) }

// prepend puts a text before a text that is not empty.
type prepend []byte

func (n prepend) changes(text []byte) bool       { return len(text) > 0 }
func (n prepend) append(dst, text []byte) []byte { return append(append(dst, n...), text...) }

// replaceText replaces one text by another.
type replaceText struct{ old, new []byte }

func (n replaceText) changes(text []byte) bool { return bytes.Contains(text, n.old) }

func (n replaceText) append(dst, text []byte) []byte {
	for {
		i := bytes.Index(text, n.old)
		if i < 0 {
			return append(dst, text...)
		}
		dst = append(append(dst, text[:i]...), n.new...)
		text = text[i+len(n.old):]
	}
}

// replacePattern replaces what an expression matches.
type replacePattern struct {
	old *pattern.Pattern
	new []byte
}

func (n replacePattern) changes(text []byte) bool {
	_, _, ok := n.old.Next(text, 0)
	return ok
}

func (n replacePattern) append(dst, text []byte) []byte {
	done := 0
	for {
		start, end, ok := n.old.Next(text, done)
		if !ok {
			return append(dst, text[done:]...)
		}
		dst = append(append(dst, text[done:start]...), n.new...)
		done = end
	}
}

var forms = map[string]chars.Form{"NFC": chars.NFC, "NFD": chars.NFD, "NFKC": chars.NFKC, "NFKD": chars.NFKD}

// normalizers returns what a component of the file does.
func (c *component) normalizers(at string) (normalizers, error) {
	if c == nil {
		return nil, nil
	}
	if f, ok := forms[c.Type]; ok {
		return normalizers{form{f}}, nil
	}
	switch c.Type {
	case "Sequence":
		var all normalizers
		for i, part := range c.Normalizers {
			n, err := part.normalizers(fmt.Sprintf("%s.normalizers[%d]", at, i))
			if err != nil {
				return nil, err
			}
			all = append(all, n...)
		}
		return all, nil
	case "Prepend":
		return normalizers{prepend(c.Prepend)}, nil
	case "Replace":
		n, err := c.replace()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		return normalizers{n}, nil
	case "BertNormalizer":
		return c.bert(), nil
	case "Lowercase":
		return normalizers{newEachRune(chars.AppendLower)}, nil
	case "StripAccents":
		return normalizers{newEachRune(without(chars.Mark()))}, nil
	case "Nmt":
		return normalizers{newEachRune(nmt)}, nil
	case "Strip":
		return normalizers{strip{c.StripLeft, c.StripRight}}, nil
	case "Precompiled":
		n, err := newCharsmap(c.Charsmap)
		if err != nil {
			return nil, fmt.Errorf("%s: precompiled_charsmap: %w", at, err)
		}
		return normalizers{n}, nil
	}
	return nil, unsupported(at, c.Type)
}

func (c *component) replace() (normalizer, error) {
	switch {
	case c.Pattern.String != nil && *c.Pattern.String != "":
		return replaceText{[]byte(*c.Pattern.String), []byte(c.Content)}, nil
	case c.Pattern.Regex != nil:
		p, err := pattern.Parse(*c.Pattern.Regex)
		return replacePattern{p, []byte(c.Content)}, err
	}
	return nil, errors.New("pattern must be a String that is not empty, or a Regex")
}
