package body

// Renamer replaces a model's name by another while an answer streams. It replaces strings that are the old name in the
// members "model", "message.model" (first event of the messages API) and "response.model" (events of the responses API). In
// an event stream it reads every event by itself. All other bytes pass unchanged, including those that are not JSON.
//
// Between two chunks it holds back only the beginning of such a string. The value must not be copied after its first use.
type Renamer struct {
	from    string
	to      []byte // as JSON
	longest int    // most bytes that a spelling of from can have
	events  bool

	scan   Scanner
	next   int    // index of the first member that is not decided yet
	broken bool   // not JSON: the rest of it passes
	held   []byte // the part of a string that has arrived
	text   []byte // scratch

	stream eventLines

	// The chunk that Feed reads.
	chunk []byte
	done  int // how many of its bytes are in out or held
	out   [][]byte
}

// renameTable has the members that hold the model's name.
var renameTable = NewTable(Want{Path: "model"}, Want{Path: "message.model"}, Want{Path: "response.model"})

// NewRenamer returns a Renamer of one answer: an event stream, or one JSON value.
func NewRenamer(from, to string, events bool) *Renamer {
	const quotes = 2
	r := &Renamer{from: from, to: AppendQuoted(nil, to), longest: len(from)*escapedByte + quotes, events: events}
	r.begin()
	return r
}

// begin prepares for the next JSON value.
func (r *Renamer) begin() {
	r.scan.Reset(renameTable, Limits{}, nil)
	r.next, r.broken = 0, false
}

// Feed reads the next chunk and appends to dst the bytes that may be sent: slices of the chunk and of the Renamer. They are
// valid until the next call.
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

// Close ends the answer, and returns the bytes that are still held back, if the answer broke off.
func (r *Renamer) Close() []byte { return r.held }

// pass appends the chunk up to index to to the output.
func (r *Renamer) pass(to int) {
	if to > r.done {
		r.out = append(r.out, r.chunk[r.done:to])
		r.done = to
	}
}

// release appends the first n held bytes, which are all from earlier chunks, to the output. Their memory is not reused,
// because the caller may still read them when the next bytes are held.
func (r *Renamer) release(n int) {
	if n > 0 {
		r.out = append(r.out, r.held[:n])
		r.held = nil
	}
	r.held = r.held[:0]
}

// value reads the bytes of the chunk between two indices as part of a JSON value.
func (r *Renamer) value(from, to int) {
	if r.broken {
		return
	}
	base := r.scan.Offset() - int64(from) // offset of the chunk's first byte
	if _, err := r.scan.Write(r.chunk[from:to]); err != nil {
		r.broken = true
	}
	members := r.scan.Members()
	for ; r.next < len(members); r.next++ {
		m := &members[r.next]
		start := max(int(m.Value.Start-base), from)
		switch {
		case m.Kind == Invalid:
			return // its value has not begun
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

// decide replaces or passes a string that ends in the chunk.
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

// named reports whether a string literal is the old name.
func (r *Renamer) named(raw []byte) bool {
	raw = raw[1 : len(raw)-1]
	if !hasEscape(raw) {
		return string(raw) == r.from
	}
	text, err := unquote(r.text[:0], raw)
	r.text = text
	return err == nil && string(text) == r.from
}

// eventLines is the position in an event stream.
type eventLines struct {
	at   int  // bytes of dataStart at the beginning of the line; all of them while its data is read; otherLine
	cr   bool // the last byte was a \r, and a \n may follow
	data bool // the event has a data line
}

const (
	dataStart = "data:"
	otherLine = -1
)

var newline = []byte("\n")

// lines reads the chunk as lines of events. The optional space before the data is white space in JSON too.
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

// beginData begins the data of an event, or continues it in another line.
func (r *Renamer) beginData() {
	if !r.stream.data {
		r.stream.data = true
		r.begin()
	} else if _, err := r.scan.Write(newline); err != nil {
		r.broken = true
	}
}

// endLine ends a line, and also the event if the line is empty.
func (r *Renamer) endLine() {
	if len(r.held) > 0 { // a string cannot continue in the next line
		r.release(len(r.held))
		r.broken = true
	}
	if r.stream.at == 0 {
		r.stream.data = false
	}
	r.stream.at = 0
}
