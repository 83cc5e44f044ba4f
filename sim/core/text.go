package core

import (
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/sim/model"
)

// textStop turns tokens into text and looks for stop strings. It holds back as much text as could be the beginning of
// one, because a client cannot unread what it was sent.
type textStop struct {
	detokenizer model.Detokenizer
	held        string
}

// push takes one token, and returns the text that can be sent and the stop string that was found, if any. last says that the
// answer ends with this token; mayStop, that it is long enough to end at a stop string.
func (t *textStop) push(token int, last, mayStop bool, s *Sampling) (text, stop string) {
	t.held += t.detokenizer.Push(token)
	if last {
		t.held += t.detokenizer.Flush()
	}
	if mayStop {
		for _, stop := range s.Stop {
			if i := strings.Index(t.held, stop); i >= 0 {
				if s.IncludeStop {
					i += len(stop)
				}
				return t.held[:i], stop
			}
		}
	}
	keep := 0 // characters
	if !last && !s.IncludeStop {
		for _, stop := range s.Stop {
			keep = max(keep, utf8.RuneCountInString(stop)-1)
		}
	}
	cut := len(t.held)
	for ; keep > 0 && cut > 0; keep-- {
		_, n := utf8.DecodeLastRuneInString(t.held[:cut])
		cut -= n
	}
	text, t.held = t.held[:cut], t.held[cut:]
	return text, ""
}
