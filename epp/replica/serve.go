package replica

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// Path is where a picker tells of its load.
const Path = "/v1/inflight"

// promptsOf is the parameter of the path that names the secret with which the client hashes prompts.
const promptsOf = "prompts"

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
	l := line{prompts: x.o.Secret != "" && r.URL.Query().Get(promptsOf) == x.o.Secret}
	if l.prompts {
		l.at = x.journal.oldest() // what it missed before is no loss
	}
	beat := time.NewTimer(heartbeat)
	defer beat.Stop()
	next := time.NewTimer(x.every())
	defer next.Stop()
	if x.changes(&l) && !send(w, out, l.text) {
		return
	}
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
	seen    *epp.Snapshot // whose unreachable endpoints were told
	down    []string      // these
	waiting []epp.Queued  // as told last
	prompts bool          // the replica understands hashes of prompts
	at      uint64        // position in the journal
	allowed int           // bytes of hashes that may be told now; negative: those that were told beyond the rate
	blocks  []uint64      // memory for hashes
	bytes   []byte        // likewise
}

type entry struct {
	name []byte       // of the endpoint, as a JSON string
	load epp.InFlight // as told
	// own is the load one interval ago. A load that has fallen since is told one interval later, if it has not risen again: requests that wait
	// at this picker usually take at once what others have left, and two replicas must not take it both.
	own epp.InFlight
}

// changes makes the text of what has changed, and reports whether anything has.
func (x *Exchange) changes(l *line) bool {
	l.text = append(l.text[:0], '{')
	x.addLoads(l)
	x.addSizes(l)
	x.addWaiting(l)
	x.addPrompts(l)
	if len(l.text) == 1 {
		return false
	}
	l.text[len(l.text)-1] = '}' // in place of a comma
	l.text = append(l.text, '\n')
	return true
}

// addLoads adds the loads that have changed, and the endpoints that are unreachable.
func (x *Exchange) addLoads(l *line) {
	s := x.o.Pool.Snapshot()
	l.text = append(l.text, `"loads":{`...)
	empty := len(l.text)
	if !slices.Equal(s.Endpoints, l.of) {
		l.follow(s.Endpoints)
	}
	tells := x.tells()
	for i, e := range l.of {
		at, own := &l.last[i], epp.InFlight{}
		if tells {
			own = e.Own()
		}
		load := epp.InFlight{Requests: max(own.Requests, at.own.Requests), Tokens: max(own.Tokens, at.own.Tokens)}
		if at.own = own; load != at.load {
			at.load = load
			l.add(at.name, load)
		}
	}
	if len(l.text) == empty {
		l.text = l.text[:1]
	} else {
		l.text[len(l.text)-1] = '}'
		l.text = append(l.text, ',')
	}
	if s == l.seen {
		return
	}
	l.seen = s
	var down []string
	for i := range s.Loads {
		if s.Loads[i].Unreachable {
			down = append(down, s.Endpoints[i].String())
		}
	}
	if !slices.Equal(down, l.down) {
		l.down = down
		l.addMember("down", append([]string{}, down...)) // an empty list says that there are none any more
	}
}

// addSizes adds the sizes if they have changed.
func (x *Exchange) addSizes(l *line) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.resized != l.resized {
		l.addMember("sizes", x.sizes)
		l.resized = x.resized
	}
}

// addWaiting adds what waits, if it has changed.
func (x *Exchange) addWaiting(l *line) {
	if x.o.Waiting == nil {
		return
	}
	waiting := x.o.Waiting()
	if slices.Equal(waiting, l.waiting) {
		return
	}
	l.waiting = waiting
	told := make(map[int][2]int64, len(waiting))
	for _, w := range waiting {
		told[w.Priority] = [2]int64{int64(w.Requests), w.Bytes}
	}
	l.addMember("waiting", told)
}

// addMember adds a member of the line, of strings and numbers, and a comma.
func (l *line) addMember(name string, value any) {
	text, _ := json.Marshal(value) // strings and numbers cannot fail
	l.text = append(append(append(l.text, '"'), name...), `":`...)
	l.text = append(append(l.text, text...), ',')
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
		known := before[string(name)]
		l.last[i] = entry{name: name, load: known.load, own: known.own}
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
