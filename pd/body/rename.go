package body

// Renamer puts another name in place of a model's while an answer streams: in
// the members "model", "message.model" (the first event of messages) and
// "response.model" (events of responses), where they are strings and have the
// name that is to go. In an event stream every event is looked at by itself.
// All other bytes pass as they are, also those of what is no JSON.
//
// Held back between two chunks is only the beginning of such a string. The
// value must not be copied after its first use.
type Renamer struct {
	from    string
	to      []byte // as JSON
	longest int    // bytes that a spelling of from can take
	events  bool

	scan   Scanner
	next   int    // index of the first member that is not decided on
	broken bool   // no JSON: the rest of it passes
	held   []byte // of a member that came in part
	text   []byte // scratch

	stream eventLines

	// Of the chunk that is being read.
	chunk []byte
	done  int // bytes of it that are in out, or held
	out   [][]byte
}

// renameTable has the places of the model's name.
var renameTable = NewTable(Want{Path: "model"}, Want{Path: "message.model"}, Want{Path: "response.model"})

// NewRenamer returns a Renamer of one answer, which is an event stream or one
// JSON value.
func NewRenamer(from, to string, events bool) *Renamer {
	const quotes = 2
	r := &Renamer{from: from, to: AppendQuoted(nil, to), longest: len(from)*escapedByte + quotes, events: events}
	r.begin()
	return r
}

// begin begins with a JSON value.
func (r *Renamer) begin() {
	r.scan.Reset(renameTable, Limits{}, nil)
	r.next, r.broken = 0, false
}

// Feed reads the next chunk and appends to dst what may go on: slices of the
// chunk and of its own. They are valid until the next call.
func (r *Renamer) Feed(dst [][]byte, chunk []byte) [][]byte {
	r.out, r.chunk, r.done = dst, chunk, 0
	if r.events {
		r.lines()
	} else {
		r.value(0, len(chunk))
	}
	r.pass(len(chunk))
	dst = r.out
	r.out, r.chunk = nil, nil
	return dst
}

// Close ends the answer, and returns what was held back of one that broke off.
func (r *Renamer) Close() []byte { return r.held }

// pass lets the chunk go up to an index.
func (r *Renamer) pass(to int) {
	if to > r.done {
		r.out = append(r.out, r.chunk[r.done:to])
		r.done = to
	}
}

// release lets go of the first n bytes that are held, which are all that came
// in earlier chunks. The caller may still read them when the next ones are
// held, so their memory is not used again.
func (r *Renamer) release(n int) {
	if n > 0 {
		r.out = append(r.out, r.held[:n])
		r.held = nil
	}
	r.held = r.held[:0]
}

// value reads a part of a JSON value, from one index of the chunk to another.
func (r *Renamer) value(from, to int) {
	if r.broken {
		return
	}
	base := r.scan.Offset() - int64(from) // of the chunk
	if _, err := r.scan.Write(r.chunk[from:to]); err != nil {
		r.broken = true
	}
	members := r.scan.Members()
	for ; r.next < len(members); r.next++ {
		m := &members[r.next]
		start := max(int(m.Value.Start-base), from)
		switch {
		case m.Kind == Invalid:
			return // its value did not begin
		case m.Kind != String:
		case m.Value.End >= 0:
			r.decide(start, int(m.Value.End-base))
		case r.broken || len(r.held)+to-start > r.longest:
			r.release(len(r.held))
		default:
			r.pass(start)
			r.held = append(r.held, r.chunk[start:to]...)
			r.done = to
			return
		}
	}
}

// decide looks at a string that ends in the chunk.
func (r *Renamer) decide(start, end int) {
	raw, before := r.chunk[start:end], len(r.held)
	if before > 0 {
		r.held = append(r.held, raw...)
		raw = r.held
	}
	if !r.named(raw) {
		r.release(before)
		return
	}
	r.release(0)
	r.pass(start)
	r.out = append(r.out, r.to)
	r.done = end
}

// named reports whether a string literal is the name that is to go.
func (r *Renamer) named(raw []byte) bool {
	raw = raw[1 : len(raw)-1]
	if !hasEscape(raw) {
		return string(raw) == r.from
	}
	text, err := unquote(r.text[:0], raw)
	r.text = text
	return err == nil && string(text) == r.from
}

// eventLines is where a stream of events stands.
type eventLines struct {
	at   int  // bytes of dataStart that the line begins with, all of it where its data is read; otherLine
	cr   bool // the last byte was a \r, which a \n may follow
	data bool // the event has a line of data
}

const (
	dataStart = "data:"
	otherLine = -1
)

var newline = []byte("\n")

// lines reads the chunk as lines of events. The space that may stand before the
// data is white space of JSON too.
func (r *Renamer) lines() {
	p, l := r.chunk, &r.stream
	for i := 0; i < len(p); {
		c := p[i]
		if c == '\n' || c == '\r' {
			if c == '\r' || !l.cr {
				r.endLine()
			}
			l.cr = c == '\r'
			i++
			continue
		}
		l.cr = false
		switch {
		case l.at == otherLine:
			i += lineLength(p[i:])
		case l.at == len(dataStart):
			n := lineLength(p[i:])
			r.value(i, i+n)
			i += n
		case c != dataStart[l.at]:
			l.at = otherLine
		default:
			i++
			if l.at++; l.at == len(dataStart) {
				r.beginData()
			}
		}
	}
}

// beginData begins the data of an event, or goes on with it in another line.
func (r *Renamer) beginData() {
	if !r.stream.data {
		r.stream.data = true
		r.begin()
	} else if _, err := r.scan.Write(newline); err != nil {
		r.broken = true
	}
}

// endLine ends a line, and with an empty one the event.
func (r *Renamer) endLine() {
	if len(r.held) > 0 { // no string goes over several lines
		r.release(len(r.held))
		r.broken = true
	}
	if r.stream.at == 0 {
		r.stream.data = false
	}
	r.stream.at = 0
}
