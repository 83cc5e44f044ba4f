package continuation

import (
	"bytes"

	"github.com/tandem-serving/tandem/pd/body"
)

// form is what the events of one stream have in common: all but the text, and the token ids at the end. Comparing an event with it costs
// a tenth of searching the event for its members.
type form struct {
	before  []byte // up to the text
	between []byte // from the quote after the text to the bracket before the ids
	after   []byte // from the bracket after the ids
}

// learn takes the form of an event that goes on with the stream, whose ids, without brackets, are at an index.
func (s *Stream) learn(data []byte, at, length int) {
	text, end := s.textAt(data)
	if text == 0 {
		return
	}
	if end < at {
		s.form = form{bytes.Clone(data[:text]), bytes.Clone(data[end:at]), bytes.Clone(data[at+length:])}
	}
}

// quick is Event for an event in the form of those before. ok is false for any other.
func (s *Stream) quick(e body.Event) (out body.Event, ok bool) {
	f, data := &s.form, e.Data
	if f.before == nil || s.why != "" || s.follow || len(e.Raw) != len(dataStart)+len(data)+len(dataEnd) || !bytes.HasSuffix(data, f.after) {
		return out, false
	}
	end := len(data) - len(f.after)
	at := end
	for at > 0 && (data[at-1] >= '0' && data[at-1] <= '9' || data[at-1] == ',') {
		at--
	}
	between := at - len(f.between)
	if at == end || between < len(f.before) || !bytes.Equal(data[between:at], f.between) || !bytes.HasPrefix(data, f.before) {
		return out, false
	}
	ids := data[at:end]
	cuts := cutList{}
	cuts.add(at-1, end+1)
	if between == len(f.before) && !s.parsed {
		s.hold(ids, data, cuts)
		return out, true
	}
	if s.of.stops != nil {
		s.recent.add(s.of.stops, data[len(f.before):between])
	}
	s.commit(ids, data)
	return s.release(s.event(data, cuts)), true
}
