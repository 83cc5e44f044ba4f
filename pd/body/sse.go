package body

import (
	"bytes"
	"fmt"
	"sync"
)

// DefaultEventLimit is the default of Events.Limit (bytes). A token event is far smaller; the last event of a stream may
// carry the whole answer.
const DefaultEventLimit = 1 << 20

// Event is one server-sent event of an answer stream, or a block of comments. Its slices are valid only during the call that
// receives it.
type Event struct {
	Raw  []byte // as received, with the blank line that ends it
	Name []byte // of the event: line, nil if there is none
	Data []byte // of the data: lines, nil if there are none; a part of Raw if there is one line
}

var doneText = []byte("[DONE]")

// Done reports whether the event ends a complete stream: [DONE] of chat and completions, message_stop of messages, and
// response.completed or response.incomplete of responses.
func (e Event) Done() bool {
	switch string(e.Name) {
	case "message_stop", "response.completed", "response.incomplete":
		return true
	}
	return bytes.Equal(bytes.TrimSpace(e.Data), doneText)
}

var (
	errorText  = []byte("error")
	failedText = []byte("response.failed")
	errorKey   = NewMark(`"error"`, 'r')
	errorTable = NewTable(Want{Path: "error"})
	scanners   = sync.Pool{New: func() any { return new(Scanner) }}
)

// Opens reports whether engines may send the event before they know whether they can answer: the first events of responses
// and messages, which carry no token.
func (e Event) Opens() bool {
	switch string(e.Name) {
	case "response.created", "response.queued", "response.in_progress", "message_start", "ping":
		return true
	}
	return false
}

// Error reports whether the event is an error: its name is "error" or "response.failed", or its data has a top-level member
// "error" that is not null. vLLM sends the latter with status 200 and without a name.
func (e Event) Error() bool {
	if bytes.Equal(e.Name, errorText) || bytes.Equal(e.Name, failedText) {
		return true
	}
	if !errorKey.In(e.Data) {
		return false
	}
	s := scanners.Get().(*Scanner)
	defer scanners.Put(s)
	s.Reset(errorTable, Limits{}, nil)
	if _, err := s.Write(e.Data); err != nil || s.Close() != nil {
		return false
	}
	m, ok := s.Find(0)
	return ok && m.Kind != Null
}

// Events splits a stream into events, whatever its chunks are. Lines end in \n, \r\n or \r. The zero value is ready for use.
type Events struct {
	Limit int // most bytes of one event; 0 = DefaultEventLimit

	pending []byte // the beginning of an incomplete event
	joined  []byte // data of more than one line
	begun   bool   // the first event, which may begin with a byte order mark, has ended
	inLine  bool   // the current line has at least one byte
	cr      bool   // the last byte was a \r, and a \n may follow
	bare    bool   // the last line ended in a lone \r
}

// Feed calls each for every event that ends in chunk. An error of each, or ErrTooLarge, ends the stream: no further call is
// allowed. Events that do not cross chunks cost no allocation.
func (v *Events) Feed(chunk []byte, each func(Event) error) error {
	for len(chunk) > 0 {
		n, ended := v.block(chunk)
		if len(v.pending)+n > v.limit() {
			return fmt.Errorf("reading an event of more than %d bytes: %w", v.limit(), ErrTooLarge)
		}
		raw := chunk[:n]
		if len(v.pending) > 0 || !ended {
			v.pending = append(v.pending, raw...)
			raw = v.pending
		}
		chunk = chunk[n:]
		if !ended {
			return nil
		}
		v.pending = v.pending[:0]
		if err := each(v.parse(raw)); err != nil {
			return err
		}
	}
	return nil
}

// Boundary reports whether the stream is between two events.
func (v *Events) Boundary() bool { return len(v.pending) == 0 }

// Pending returns the bytes of the incomplete event, valid until Feed.
func (v *Events) Pending() []byte { return v.pending }

func (v *Events) limit() int {
	if v.Limit > 0 {
		return v.Limit
	}
	return DefaultEventLimit
}

// block returns how many bytes of p belong to the current event, and whether it ends there, with an empty line. If p ends in
// a \r, the event ends only when it is clear whether a \n follows, unless the line before ended in a lone \r too.
func (v *Events) block(p []byte) (int, bool) {
	i := 0
	for i < len(p) {
		if v.cr {
			v.cr, v.bare = false, p[i] != '\n'
			if !v.bare {
				i++
			}
			if v.endLine() {
				return i, true
			}
			continue
		}
		if n := lineLength(p[i:]); n > 0 {
			v.inLine = true
			i += n
			continue
		}
		i++
		if p[i-1] == '\r' && (v.inLine || !v.bare) {
			v.cr = true
			continue
		}
		v.bare = p[i-1] == '\r'
		if v.endLine() {
			return i, true
		}
	}
	return i, false
}

// endLine begins the next line and reports whether the last one was empty.
func (v *Events) endLine() bool {
	empty := !v.inLine
	v.inLine = false
	return empty
}

// lineWindow is how many bytes lineLength searches for one kind of line end before it searches for the other, so that text
// with only one kind is not searched twice.
const lineWindow = 256

// lineLength returns the length of the first line of p, without its end.
func lineLength(p []byte) int {
	for at := 0; at < len(p); at += lineWindow {
		w := p[at:min(at+lineWindow, len(p))]
		n := bytes.IndexByte(w, '\n')
		if n >= 0 {
			w = w[:n]
		}
		if r := bytes.IndexByte(w, '\r'); r >= 0 {
			return at + r
		}
		if n >= 0 {
			return at + n
		}
	}
	return len(p)
}

var (
	dataField  = []byte("data")
	eventField = []byte("event")
)

// parse reads the fields of an event.
func (v *Events) parse(raw []byte) Event {
	e := Event{Raw: raw}
	if !v.begun {
		v.begun = true
		raw = bytes.TrimPrefix(raw, []byte(mark))
	}
	lines := 0
	for len(raw) > 0 {
		n := lineLength(raw)
		name, value := field(raw[:n])
		switch {
		case bytes.Equal(name, dataField):
			e.Data = v.join(e.Data, value, lines)
			lines++
		case bytes.Equal(name, eventField):
			e.Name = value
		}
		raw = raw[min(n+1, len(raw)):]
	}
	return e
}

// field splits a line into its name and its value without the first space.
func field(line []byte) (name, value []byte) {
	colon := bytes.IndexByte(line, ':')
	if colon < 0 {
		return line, line[len(line):]
	}
	name, value = line[:colon], line[colon+1:]
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	return name, value
}

// join adds a data line to those before it.
func (v *Events) join(data, line []byte, lines int) []byte {
	switch lines {
	case 0:
		return line
	case 1:
		v.joined = append(v.joined[:0], data...)
	}
	v.joined = append(append(v.joined, '\n'), line...)
	return v.joined
}
