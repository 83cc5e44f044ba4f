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
	text        string // the end of the answer's text: what can be the beginning of a stop string
	sent        int    // bytes of it that were sent
}

// push takes one token, and returns the text that can be sent and the stop string that was found, if any. last says that the
// answer ends with this token; mayStop, that it is long enough to end at a stop string.
func (t *textStop) push(token int, last, mayStop bool, s *Sampling) (text, stop string) {
	old := len(t.text)
	t.text += t.detokenizer.Push(token)
	if last {
		t.text += t.detokenizer.Flush()
	}
	longest := 0 // characters
	for _, stop := range s.Stop {
		longest = max(longest, utf8.RuneCountInString(stop))
		from := max(0, old+1-len(stop))
		if i := strings.Index(t.text[from:], stop); i >= 0 && mayStop && len(t.text) > old {
			end := from + i
			if s.IncludeStop {
				end += len(stop)
			}
			return t.text[t.sent:end], stop
		}
	}
	begin := beforeLast(t.text, longest-1) // of what can be the beginning of a stop string
	end := begin
	if last || s.IncludeStop {
		end = len(t.text)
	}
	if end > t.sent {
		text, t.sent = t.text[t.sent:end], end
	}
	begin = min(begin, t.sent)
	t.text, t.sent = t.text[begin:], t.sent-begin
	return text, ""
}

// beforeLast returns where the last n characters of a text begin.
func beforeLast(text string, n int) int {
	at := len(text)
	for ; n > 0 && at > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(text[:at])
		at -= size
	}
	return at
}
