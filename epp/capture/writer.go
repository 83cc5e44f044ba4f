package capture

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd/loglimit"
	"github.com/tandem-serving/tandem/pd/request"
)

// writer makes lines of messages. Only the goroutine of Run uses it.
type writer struct {
	recorder *Recorder
	file     file
	key      Key
	hashes   *blockHashes
	began    time.Time
	warnings *loglimit.Limiter

	text   bytes.Buffer // lines that are not in the file yet
	lines  int          // of text
	header Header
	told   bool                   // the file has the header
	pool   *epp.Snapshot          // the latest
	loads  map[*epp.Endpoint]Load // the latest in the file
	names  map[*epp.Endpoint]string
	open   map[*epp.Decision]*record // requests that have not ended
}

const (
	// flushAt is how much text waits while messages come without a pause (bytes).
	flushAt = 64 << 10
	// lookEvery is how often requests are looked for whose end no stream has reported, and lost is how old they are at least.
	lookEvery, lost = 10 * time.Second, 5 * time.Second
)

func newWriter(o Options, r *Recorder) (*writer, error) {
	w := &writer{recorder: r, file: file{path: o.Path, max: o.MaxBytes, files: o.Files}, key: o.Key, hashes: o.Key.blockHashes(), began: time.Now(),
		warnings: loglimit.New(o.Log, time.Minute), loads: map[*epp.Endpoint]Load{}, names: map[*epp.Endpoint]string{},
		open: map[*epp.Decision]*record{}, pool: &epp.Snapshot{}}
	w.header = Header{Version: Version, Began: w.began.UTC(), Key: o.Key.Name(), Endpoints: []Endpoint{}}
	if err := w.file.regular(); err != nil {
		return nil, err
	}
	return w, w.file.rotate()
}

// Run writes until ctx ends, and then what was queued before, and the requests that have not ended. It closes the file.
func (r *Recorder) Run(ctx context.Context) {
	w := r.writer
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case m := <-r.queue:
			w.take(m)
			if len(r.queue) == 0 || w.text.Len() >= flushAt {
				w.flush()
			}
		case now := <-look.C:
			w.dropLost(now)
			w.flush()
		case <-ctx.Done():
			for len(r.queue) > 0 {
				w.take(<-r.queue)
			}
			for d, one := range w.open {
				w.write(w.line(one, nil, time.Time{}))
				delete(w.open, d)
			}
			w.flush()
			if err := w.file.close(); err != nil {
				w.warnings.Warn("the capture could not be closed", "error", err)
			}
			return
		}
	}
}

// take makes the lines of a message.
func (w *writer) take(m message) {
	switch {
	case m.setup != nil:
		w.header.Config, w.header.Digest, w.header.Seed, w.header.BlockTokens = m.setup.Config, m.setup.Digest, m.setup.Seed, m.setup.BlockTokens
		w.header.At = w.micros(m.at)
		w.told = false
	case m.snapshot != nil:
		w.recorder.loads.Add(-int64(len(m.snapshot.Loads)))
		w.read(m.snapshot)
	case m.record != nil:
		w.recorder.waiting.Add(-int64(len(m.record.blocks)) * 8)
		if m.record.refusal != nil {
			w.write(w.line(m.record, nil, time.Time{}))
			w.recorder.free(m.record)
			return
		}
		w.open[m.record.decision] = m.record
	case m.outcome != nil:
		if one := w.open[m.outcome.Decision]; one != nil {
			delete(w.open, m.outcome.Decision)
			w.write(w.line(one, m.outcome, m.at))
			w.recorder.free(one)
		}
	}
}

// dropLost writes the requests whose end will not be reported: their gateway left between the pick and the answer.
func (w *writer) dropLost(now time.Time) {
	for d, one := range w.open {
		if now.Sub(one.began) > lost && (d.Reservation == nil || d.Reservation.Over()) {
			w.write(w.line(one, nil, time.Time{}))
			delete(w.open, d)
			w.recorder.free(one)
		}
	}
}

// micros returns a moment in µs since the capture began.
func (w *writer) micros(t time.Time) int64 { return t.Sub(w.began).Microseconds() }

// read notes a snapshot: its endpoints, if they have changed, and the loads that have.
func (w *writer) read(s *epp.Snapshot) {
	if !slices.Equal(s.Endpoints, w.pool.Endpoints) {
		w.header.Endpoints, w.header.Snapshot, w.header.At = make([]Endpoint, len(s.Endpoints)), s.Version, w.micros(time.Now())
		clear(w.names)
		for i, e := range s.Endpoints {
			w.names[e] = e.String()
			w.header.Endpoints[i] = Endpoint{Name: w.names[e], Role: e.Role.String(), Labels: e.Labels}
		}
		for e := range w.loads {
			if w.names[e] == "" {
				delete(w.loads, e)
			}
		}
		w.told = false
	}
	w.pool = s
	for i, e := range s.Endpoints {
		w.readLoad(s, i, e)
	}
}

// readLoad writes the load of an endpoint, if it is not in the file.
func (w *writer) readLoad(s *epp.Snapshot, i int, e *epp.Endpoint) {
	l := newLoad(&s.Loads[i])
	l.Endpoint, l.Snapshot = w.names[e], s.Version
	if !s.Loads[i].At.IsZero() {
		l.At = w.micros(s.Loads[i].At)
	}
	last, known := w.loads[e]
	switch {
	case !known, !last.equal(&l):
		w.write(&l)
	case last.At != l.At:
		w.write(&Load{Endpoint: l.Endpoint, Snapshot: l.Snapshot, At: l.At, Same: true})
	}
	w.loads[e] = l
}

// line returns the line of a request. o is nil if its end is not known.
func (w *writer) line(one *record, o *epp.Outcome, ended time.Time) *Request {
	q := &one.request
	r := &Request{Number: one.number, Arrived: w.micros(one.began), Snapshot: one.snapshot, API: q.API.String(),
		Model: strings.ToValidUTF8(q.Model, "\uFFFD"), Stream: q.Stream, Mode: q.Mode.String(), Split: q.Fit == request.FitSplit, SGLang: q.SGLangSplits,
		Doubted: q.Fit == request.FitDoubted, Need: q.IfAvailable, Subset: q.Subset != nil, Priority: q.Priority,
		InputTokens: q.Prompt.Tokens, InputBytes: q.Bytes, OutputTokens: -1, EngineTokens: -1, EngineCached: -1, Media: one.media,
		Blocks: make([]int64, len(one.blocks)), Phases: Phases{Queue: one.waited.Microseconds(), Pick: -1, Answered: -1, Total: -1}}
	for i, b := range one.blocks {
		r.Blocks[i] = w.hashes.of(b)
	}
	if one.flow != "" {
		r.Flow = w.key.text(forFlow, one.flow)
	}
	if one.session != "" {
		r.Session = w.key.text(forSession, one.session)
	}
	if why := one.refusal; why != nil {
		d := why.Result()
		r.Verdict, r.Reason, r.Status, r.Phases.Total = d.Verdict.String(), string(d.Reason), why.Status(), r.Phases.Queue
		if why.Queue == nil {
			r.Phases.Queue, r.Phases.Pick = 0, r.Phases.Queue
		}
		return r
	}
	r.Arrived -= r.Phases.Queue
	d := one.decision
	r.Verdict, r.Reason = d.Verdict.String(), string(d.Reason)
	for i := range d.Picks {
		p := Pick{Stage: string(d.Picks[i].Row.Stage), Requests: one.seen[i].inFlight.Requests, Tokens: one.seen[i].inFlight.Tokens, Cached: one.seen[i].cached}
		for _, e := range d.Picks[i].Endpoints {
			p.Endpoints = append(p.Endpoints, w.name(e))
		}
		r.Picks = append(r.Picks, p)
	}
	if o != nil {
		w.end(r, o, ended)
	}
	return r
}

// end adds how a request ended.
func (w *writer) end(r *Request, o *epp.Outcome, ended time.Time) {
	r.Status = o.Status
	r.Phases.Total = w.micros(ended) - r.Arrived
	if o.Answered > 0 {
		r.Phases.Answered = r.Phases.Total - (o.Duration - o.Answered).Microseconds()
	}
	if o.Plan.EPP > 0 {
		r.Phases.Pick = max(0, o.Plan.EPP.Microseconds()-r.Phases.Queue)
	}
	if u := o.Result; u != nil {
		r.OutputTokens, r.EngineTokens, r.EngineCached = u.Completion, u.Prompt, u.Cached
	}
	if o.Served != "" {
		for _, e := range w.pool.Endpoints {
			if e.Address == o.Served {
				r.Served = w.name(e)
			}
		}
	}
	if o.Immediate && o.Happened != nil { // ended early, by the picker
		r.Verdict, r.Reason = o.Happened.Verdict.String(), string(o.Happened.Reason)
	}
}

func (w *writer) name(e *epp.Endpoint) string {
	if name := w.names[e]; name != "" {
		return name
	}
	return e.String()
}

// write adds a line. The header comes before the first one that it holds for.
func (w *writer) write(line any) {
	if !w.told {
		w.told = true
		w.append(&w.header)
	}
	w.append(line)
}

func (w *writer) append(line any) {
	text, err := json.Marshal(line)
	if err != nil {
		w.failed(1, err)
		return
	}
	w.text.Write(text)
	w.text.WriteByte('\n')
	w.lines++
}

// flush writes the lines to the file, and begins another one if it is full.
func (w *writer) flush() {
	if w.text.Len() == 0 {
		return
	}
	if err := w.file.write(w.text.Bytes()); err != nil {
		w.failed(w.lines, err)
	} else {
		w.recorder.metrics.lines.Add(float64(w.lines))
	}
	w.text.Reset()
	w.lines = 0
	if w.file.size < w.file.max && w.file.open != nil {
		return
	}
	if err := w.file.rotate(); err != nil {
		w.failed(0, fmt.Errorf("beginning another file: %w", err))
		return
	}
	w.told = false
	clear(w.loads) // a file has all that its lines need
	w.read(w.pool)
}

// failed counts lines that are lost.
func (w *writer) failed(lines int, err error) {
	w.recorder.metrics.dropped["write"].Add(float64(lines))
	w.warnings.Warn("the capture lacks lines, because its file could not be written", "lines", lines, "error", err)
}
