package core

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/sim/model"
)

func TestStopStrings(t *testing.T) {
	feed := func(s *Sampling, text string) (out []string, stop string) {
		var ts textStop
		for i := range len(text) {
			piece, found := ts.push(model.FirstByte+int(text[i]), i == len(text)-1, true, s)
			out = append(out, piece)
			if found != "" {
				return out, found
			}
		}
		return out, ""
	}
	for _, c := range []struct {
		name, text, want, stop string
		sampling               Sampling
	}{
		{"none", "hello", "hello", "", Sampling{}},
		{"cut before", "hello world", "hello", " wor", Sampling{Stop: []string{" wor"}}},
		{"kept", "hello world", "hello wor", " wor", Sampling{Stop: []string{" wor"}, IncludeStop: true}},
		{"begins but does not end", "hello wo", "hello wo", "", Sampling{Stop: []string{" world"}}},
		{"first of two", "abc", "a", "b", Sampling{Stop: []string{"x", "b"}}},
		{"held back inside of a character", "aé", "aé", "", Sampling{Stop: []string{"zz"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pieces, stop := feed(&c.sampling, c.text)
			if got := strings.Join(pieces, ""); got != c.want || stop != c.stop {
				t.Errorf("got %q and stop %q, want %q and %q", got, stop, c.want, c.stop)
			}
			if slices.ContainsFunc(pieces, func(p string) bool { return !utf8.ValidString(p) }) {
				t.Errorf("pieces %q are not whole characters", pieces)
			}
		})
	}
}
