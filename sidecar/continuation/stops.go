package continuation

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pd/body"
)

// stops are stop strings of which one has several characters: it may begin in the text of one engine and end in that of the next. So
// the engine that goes on gets none of them, and a stopSearch looks for them in its text.
type stops struct {
	texts   []string
	include bool // a stop string stays in the text
	longest int  // characters of the longest
}

// longestStop is the most characters of a stop string that is looked for: the end of the text that was sent is kept for it.
const longestStop = 1000

// readStops reads the member stop. list is nil if no string has several characters: then the engine holds no text back for it, and
// none can begin before a seam and end after it. ok is false if it cannot be read, or a string is too long.
func readStops(stop []byte) (list *stops, ok bool) {
	if len(stop) == 0 {
		return nil, true
	}
	raw := [][]byte{stop}
	if stop[0] == '[' {
		var scan body.Scanner
		if scan.Scan(textsTable, body.Limits{}, stop) != nil {
			return nil, false
		}
		raw = raw[:0]
		for _, m := range scan.Members() {
			raw = append(raw, stop[m.Value.Start:m.Value.End])
		}
	}
	list = &stops{}
	for _, r := range raw {
		text, err := body.Text(r)
		if err != nil || text == "" {
			return nil, false
		}
		list.texts = append(list.texts, text)
		list.longest = max(list.longest, utf8.RuneCountInString(text))
	}
	if list.longest > longestStop {
		return nil, false
	}
	if list.longest <= 1 {
		return nil, true
	}
	return list, true
}

// hold is how many characters an engine holds back because they may begin a stop string, as vLLM does.
func (s *stops) hold() int {
	if s.include {
		return 0
	}
	return s.longest - 1
}

// search finds the stop string that ends first in a text, after a byte offset. end is where that is.
func (s *stops) search(text string, after int) (stop string, end int) {
	end = math.MaxInt
	for _, one := range s.texts {
		from := max(0, after+1-len(one))
		if i := strings.Index(text[from:], one); i >= 0 && from+i+len(one) < end {
			stop, end = one, from+i+len(one)
		}
	}
	return stop, end
}

// stopSearch looks for stop strings in a text that arrives in pieces, and holds text back, as vLLM does.
type stopSearch struct {
	text string // the end of the answer's text: what can begin a stop string
	sent int    // bytes of it that the client has
}

// push takes the next piece of text. out is what the client gets of the text now. stop is the stop string that was found, if check
// allows one, and rest the bytes of the piece after it. last says that the answer ends with this piece.
func (s *stopSearch) push(of *stops, piece string, check, last bool) (out, stop string, rest int) {
	old := len(s.text)
	s.text += piece
	end := len(s.text)
	if check && piece != "" {
		if found, at := of.search(s.text, old); found != "" {
			stop, end, rest, last = found, at, len(s.text)-at, true
			if !of.include {
				end -= len(found)
			}
		}
	}
	if !last {
		end = back(s.text, of.hold())
	}
	if end > s.sent {
		out = s.text[s.sent:end]
		s.sent = end
	}
	if cut := min(s.sent, back(s.text, of.longest-1)); cut > 0 {
		s.text, s.sent = s.text[cut:], s.sent-cut
	}
	return out, stop, rest
}

// back returns the offset of the last n characters of a text, 0 if it has fewer.
func back(text string, n int) int {
	at := len(text)
	for ; n > 0 && at > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(text[:at])
		at -= size
	}
	return at
}

// recentText is the end of the text that was sent, as JSON has it: at least twelve bytes, the most that a character needs, for each
// character of the longest stop string.
type recentText struct{ before, text []byte }

func (r *recentText) add(of *stops, text []byte) {
	if size := 12*of.longest + 256; len(r.text) > 0 && len(r.text)+len(text) > size {
		r.before, r.text = r.text, r.before[:0]
	}
	r.text = append(r.text, text...)
}

// end returns the last n characters of the text, or all of it.
func (r *recentText) end(n int) (string, error) {
	quoted := append(append(append([]byte{'"'}, r.before...), r.text...), '"')
	text, err := body.Text(quoted)
	if err != nil {
		return "", err
	}
	return text[back(text, n):], nil
}

// searched returns a search after all the text that was sent.
func (r *recentText) searched(of *stops) stopSearch {
	text, err := r.end(of.longest - 1)
	if err != nil {
		return stopSearch{} // the text is vLLM's JSON
	}
	return stopSearch{text: text, sent: len(text)}
}

// sameText is how many characters of the text that was sent must be those of the tokens.
const sameText = 16

var errOtherText = errors.New("the text of the tokens that were sent is not that which was sent")

// resume begins the search after the text that was sent. text is that of the last ids; enough says whether it may lack a beginning.
// ok is false if more of it is needed.
func (s *stopSearch) resume(of *stops, recent *recentText, text string, all bool) (ok bool, err error) {
	sent, err := recent.end(sameText)
	if err != nil {
		return false, fmt.Errorf("reading the text that was sent: %w", err)
	}
	at := back(text, of.hold())
	switch {
	case strings.HasSuffix(text[:at], sent):
		*s = stopSearch{text: text[at:]}
		return true, nil
	case at < len(sent) && !all:
		return false, nil
	}
	return false, errOtherText
}

// appendText appends text as a JSON string, as vLLM writes it: with the short escapes.
func appendText(dst []byte, text string) []byte {
	dst = append(dst, '"')
	for i := range len(text) {
		c := text[i]
		if c >= ' ' && c != '"' && c != '\\' {
			dst = append(dst, c)
			continue
		}
		if short := bytes.IndexByte([]byte("\"\\\b\f\n\r\t"), c); short >= 0 {
			dst = append(dst, '\\', `"\bfnrt`[short])
			continue
		}
		dst = append(dst, '\\', 'u', '0', '0', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
	}
	return append(dst, '"')
}
