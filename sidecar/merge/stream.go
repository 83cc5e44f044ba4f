package merge

import (
	"bytes"
	"strconv"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// MaxEvent limits one event of a stream (bytes). The largest real ones have a whole answer with its log probabilities.
const MaxEvent = 16 << 20

// Stream merges the streams of events of n requests for one choice each. Events leave as they arrive. The usage of all, if
// the engines send it, and the end leave when all streams have ended, or after the first error: what the other streams still
// send is then dropped. It is not safe for concurrent use.
type Stream struct {
	own     bool // events have an index of their own
	streams []body.Events
	ended   []bool // by their last event
	left    int    // streams that have not ended
	failed  int    // the stream with the error; -1 = there is none
	done    bool   // the end has left

	id, created []byte // of the first event, raw
	usage       usage
	total       []byte // the event with the usage, which becomes the merged one

	dst    []byte
	choice int // whose event is being merged
	each   func(body.Event) error
	scan   body.Scanner
}

// NewStream returns a Stream of n streams.
func NewStream(api pd.API, n int) *Stream {
	s := &Stream{own: api == pd.APISGLang, streams: make([]body.Events, n), ended: make([]bool, n), left: n, failed: -1}
	for i := range s.streams {
		s.streams[i].Limit = MaxEvent
	}
	s.each = s.event
	return s
}

// Feed reads the next chunk of a choice's stream, and appends to dst the events to send. The error is body.ErrTooLarge; no
// further chunk of that stream may be fed.
func (s *Stream) Feed(dst []byte, choice int, chunk []byte) ([]byte, error) {
	s.dst, s.choice = dst, choice
	err := s.streams[choice].Feed(chunk, s.each)
	dst, s.dst = s.dst, nil
	return dst, err
}

// Done reports whether the merged stream is complete.
func (s *Stream) Done() bool { return s.done }

// Failed returns the choice with whose error the merged stream ends; ok is false if there is none.
func (s *Stream) Failed() (choice int, ok bool) { return max(s.failed, 0), s.failed >= 0 }

// Ended reports whether a choice's stream has sent its last event.
func (s *Stream) Ended(choice int) bool { return s.ended[choice] }

// event merges one event of a stream. It returns no error.
func (s *Stream) event(e body.Event) error {
	switch {
	case s.done, s.failed >= 0 && s.failed != s.choice:
	case e.Done():
		s.end(e)
	case e.Error():
		s.failed = s.choice
		s.dst = append(s.dst, e.Raw...)
	default:
		s.pass(e)
	}
	return nil
}

// end notes the last event of a stream.
func (s *Stream) end(e body.Event) {
	if !s.ended[s.choice] {
		s.ended[s.choice] = true
		s.left--
	}
	switch {
	case s.failed >= 0:
	case s.left > 0:
		return
	case s.total != nil:
		s.dst = s.appendUsage(s.dst)
	}
	s.done = true
	s.dst = append(s.dst, e.Raw...)
}

// pass appends an event with what changes in it, or keeps it if it is the one with the usage.
func (s *Stream) pass(e body.Event) {
	t := table
	if s.own {
		t = ownTable
	}
	if len(e.Data) == 0 || s.scan.Scan(t, limits, e.Data) != nil || s.scan.Root().Kind != body.Object {
		s.dst = append(s.dst, e.Raw...)
		return
	}
	before, after, ok := bytes.Cut(e.Raw, e.Data)
	switch {
	case !ok: // its data has several lines, which no engine sends
		s.dst = append(s.dst, e.Raw...)
		return
	case s.own:
		s.dst = s.appendOwn(append(s.dst, before...), e.Data)
	case s.hasUsage():
		s.usage.add(e.Data, s.scan.Members(), s.choice, s.choice == 0 || s.total == nil)
		if s.choice == 0 || s.total == nil {
			s.total = append(s.total[:0], e.Data...)
		}
		return
	default:
		s.dst = s.appendEvent(append(s.dst, before...), e.Data)
	}
	s.dst = append(s.dst, after...)
}

// hasUsage reports whether the event that was read has the usage of the whole stream: it has no choice.
func (s *Stream) hasUsage() bool {
	choices, ok := s.scan.Find(wChoices)
	if !ok || choices.Kind != body.Array || choices.Count > 0 {
		return false
	}
	usage, ok := s.scan.Find(wUsage)
	return ok && usage.Kind == body.Object
}

// appendEvent appends the data of an event in OpenAI's form.
func (s *Stream) appendEvent(dst, data []byte) []byte {
	return edit(dst, data, s.scan.Members(), func(dst []byte, m body.Member) ([]byte, bool) {
		if m.Want == wIndex && m.Kind == body.Number {
			return s.appendIndex(dst, data, m), true
		}
		return s.appendName(dst, data, m)
	})
}

// appendName appends the id, or the time of creation, that all events have.
func (s *Stream) appendName(dst, data []byte, m body.Member) (_ []byte, ok bool) {
	switch m.Want {
	case wID:
		return append(dst, first(&s.id, data[m.Value.Start:m.Value.End])...), true
	case wCreated:
		return append(dst, first(&s.created, data[m.Value.Start:m.Value.End])...), true
	}
	return dst, false
}

// first returns what the first event had in place of raw.
func first(kept *[]byte, raw []byte) []byte {
	if *kept == nil {
		*kept = bytes.Clone(raw)
	}
	return *kept
}

// appendIndex appends the index of the choice that is being merged. m is the index in its own stream: that of the prompt.
func (s *Stream) appendIndex(dst, data []byte, m body.Member) []byte {
	return strconv.AppendInt(dst, number(data, m)*int64(len(s.streams))+int64(s.choice), 10)
}

// appendOwn appends the data of an event in SGLang's form.
func (s *Stream) appendOwn(dst, data []byte) []byte {
	if m, ok := s.scan.Find(wOwnIndex); ok && m.Kind == body.Number {
		dst = s.appendIndex(append(dst, data[:m.Value.Start]...), data, m)
		return append(dst, data[m.Value.End:]...)
	}
	root := s.scan.Root()
	dst = append(dst, data[:root.Value.End-1]...)
	if root.Count > 0 {
		dst = append(dst, ',')
	}
	dst = strconv.AppendInt(append(dst, `"index":`...), int64(s.choice), 10)
	return append(dst, data[root.Value.End-1:]...)
}

// appendUsage appends the event with the usage of all choices.
func (s *Stream) appendUsage(dst []byte) []byte {
	if s.scan.Scan(table, limits, s.total) != nil {
		return dst // it was read before
	}
	dst = edit(append(dst, "data: "...), s.total, s.scan.Members(), func(dst []byte, m body.Member) ([]byte, bool) {
		if with, ok := s.appendName(dst, s.total, m); ok {
			return with, true
		}
		return s.usage.value(dst, s.total, m)
	})
	return append(dst, "\n\n"...)
}
