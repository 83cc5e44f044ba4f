package replica

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// Path is where a picker tells of its load.
const Path = "/v1/inflight"

// hello is the first line of an answer.
type hello struct {
	Picker string `json:"picker"` // an id of the process
}

// Handler returns what other replicas ask.
func (x *Exchange) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, x.tell)
	return mux
}

// tell answers with a line for every change of the load, until the client leaves or Run ends.
func (x *Exchange) tell(w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	first, _ := json.Marshal(hello{x.id}) // a string cannot fail
	if !send(w, out, append(first, '\n')) {
		return
	}
	var l line
	beat := time.NewTimer(heartbeat)
	defer beat.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-x.done:
			return
		case <-beat.C:
			l.text = append(l.text[:0], "{}\n"...)
		case <-next.C:
			next.Reset(x.every())
			if !x.changes(&l) {
				continue
			}
		}
		if !send(w, out, l.text) {
			return
		}
		beat.Reset(heartbeat)
	}
}

// send writes a line. A replica that does not read it is left.
func send(w http.ResponseWriter, out *http.ResponseController, text []byte) bool {
	if err := out.SetWriteDeadline(time.Now().Add(silence)); err != nil {
		return false
	}
	if _, err := w.Write(text); err != nil {
		return false
	}
	return out.Flush() == nil
}

// line is what one replica was told.
type line struct {
	text []byte
	of   []*epp.Endpoint // the endpoints, as they were
	last []entry         // of the endpoint at the same index
	// resized is that of the exchange when the sizes were told.
	resized uint64
}

type entry struct {
	name []byte // of the endpoint, as a JSON string
	load epp.InFlight
}

// changes makes the text of what has changed, and reports whether anything has.
func (x *Exchange) changes(l *line) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	l.text = append(l.text[:0], `{"loads":{`...)
	empty := len(l.text)
	if endpoints := x.o.Pool.Snapshot().Endpoints; !slices.Equal(endpoints, l.of) {
		l.follow(endpoints)
	}
	for i, e := range l.of {
		if at, load := &l.last[i], e.Own(); load != at.load {
			at.load = load
			l.add(at.name, load)
		}
	}
	resized := x.resized != l.resized
	if len(l.text) == empty && !resized {
		return false
	}
	l.text = append(bytes.TrimSuffix(l.text, []byte(",")), '}')
	if resized {
		sizes, _ := json.Marshal(x.sizes) // strings and numbers cannot fail
		l.text = append(append(l.text, `,"sizes":`...), sizes...)
		l.resized = x.resized
	}
	l.text = append(l.text, "}\n"...)
	return true
}

// follow takes over the endpoints of the pool, and tells that those that have left have no load.
func (l *line) follow(endpoints []*epp.Endpoint) {
	before := make(map[string]entry, len(l.last))
	for _, at := range l.last {
		before[string(at.name)] = at
	}
	l.of, l.last = endpoints, make([]entry, len(endpoints))
	for i, e := range endpoints {
		name, _ := json.Marshal(e.String()) // a string cannot fail
		l.last[i] = entry{name: name, load: before[string(name)].load}
		delete(before, string(name))
	}
	for _, at := range before {
		if at.load != (epp.InFlight{}) {
			l.add(at.name, epp.InFlight{})
		}
	}
}

// add adds the load of an endpoint: requests, and tokens of prompts still to be computed.
func (l *line) add(name []byte, load epp.InFlight) {
	l.text = append(append(l.text, name...), ":["...)
	l.text = append(strconv.AppendInt(l.text, int64(load.Requests), 10), ',')
	l.text = append(strconv.AppendInt(l.text, int64(load.Tokens), 10), "],"...)
}
