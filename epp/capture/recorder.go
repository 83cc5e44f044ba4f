package capture

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Options are what a Recorder needs.
type Options struct {
	Path     string
	MaxBytes int64 // of one file; then another one begins
	Files    int   // that are kept; the oldest one is removed
	Key      Key
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Recorder writes a capture. Its methods are safe for concurrent use, and none of them waits for the file.
type Recorder struct {
	queue    chan message
	waiting  atomic.Int64  // bytes of blocks in the queue
	loads    atomic.Int64  // loads of the snapshots in the queue
	snapshot atomic.Uint64 // the latest that was queued
	records  sync.Pool     // of *record
	writer   *writer
	metrics  *metrics
}

const (
	// queued is the most messages that wait for the writer: some seconds of a busy picker.
	queued = 8192
	// queuedBytes bounds the blocks of prompts among them.
	queuedBytes = 16 << 20
	// queuedLoads bounds the loads of snapshots among them, of some 300 bytes each: a pool of thousands of endpoints has fifty
	// snapshots a second, and while the disk stalls none of them is freed.
	queuedLoads = 100_000
)

// message is what the writer is told: one of these.
type message struct {
	setup    *Setup
	snapshot *epp.Snapshot
	record   *record
	outcome  *epp.Outcome
	at       time.Time // of the outcome, or from which the setup holds
}

// Setup is how a configuration has the picker pick.
type Setup struct {
	Config      string // it, as text
	Digest      string
	Seed        uint64 // of the random numbers that break ties
	BlockTokens int
}

// record is a request on the way to its line. Its memory is used again.
type record struct {
	decision *epp.Decision // nil: it was refused
	refusal  *pd.Refusal   // nil: it was picked for
	number   uint64
	snapshot uint64
	began    time.Time // of the pick
	waited   time.Duration
	request  epp.Request // Blocks are the record's own; nothing else of the prompt or the headers is in it
	blocks   []uint64
	media    int
	flow     string
	session  string
	seen     []seen
}

// seen is what a pick knew of the first endpoint of a stage.
type seen struct {
	inFlight epp.InFlight
	cached   int
}

// New makes a recorder, and begins its file.
func New(o Options) (*Recorder, error) {
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	r := &Recorder{queue: make(chan message, queued), metrics: m, records: sync.Pool{New: func() any { return new(record) }}}
	r.writer, err = newWriter(o, r)
	return r, err
}

// Use tells that picks are made by another configuration.
func (r *Recorder) Use(s Setup) { r.tell(message{setup: &s, at: time.Now()}, "setup") }

// tell queues a message. It drops it if the queue is full, and reports false.
func (r *Recorder) tell(m message, kind string) bool {
	select {
	case r.queue <- m:
		return true
	default:
		r.metrics.drop(kind)
		return false
	}
}

// Snapshots is a pool.
type Snapshots interface{ Snapshot() *epp.Snapshot }

// Watch returns the pool as the scheduler is to read it: every snapshot that a pick reads is captured.
func (r *Recorder) Watch(pool Snapshots) Snapshots { return watched{pool, r} }

type watched struct {
	Snapshots
	recorder *Recorder
}

// Snapshot implements Snapshots.
func (w watched) Snapshot() *epp.Snapshot {
	s := w.Snapshots.Snapshot()
	if last := w.recorder.snapshot.Load(); s.Version > last && w.recorder.snapshot.CompareAndSwap(last, s.Version) {
		w.recorder.note(s)
	}
	return s
}

// note queues a snapshot.
func (r *Recorder) note(s *epp.Snapshot) {
	own := int64(len(s.Loads))
	if all := r.loads.Add(own); all > queuedLoads && all > own {
		r.metrics.drop("load")
	} else if r.tell(message{snapshot: s}, "load") {
		return
	}
	r.loads.Add(-own)
}

// Scheduler is what the ext-proc server asks.
type Scheduler interface {
	Needs() epp.PromptSpec
	Reads() epp.APISet
	Wait() time.Duration
	Stages() epp.Stages
	Pick(ctx context.Context, r *epp.Request) (*epp.Decision, error)
}

// Schedule returns a scheduler whose refusals are captured. Picked captures its picks.
func (r *Recorder) Schedule(s Scheduler) Scheduler { return scheduled{s, r} }

type scheduled struct {
	Scheduler
	recorder *Recorder
}

// unmatchedBlocks is how prompts are cut where the configuration has no use for blocks: it may be replayed under one that has.
var unmatchedBlocks = epp.PromptSpec{Tokens: 64, Max: 2048}

// Needs implements Scheduler.
func (s scheduled) Needs() epp.PromptSpec {
	spec := s.Scheduler.Needs()
	if spec.Tokens == 0 || spec.Max == 0 {
		spec.Tokens, spec.Max = unmatchedBlocks.Tokens, unmatchedBlocks.Max
	}
	return spec
}

// BlockTokens returns how many tokens a block of a capture has, where prompts are cut as spec says.
func BlockTokens(spec epp.PromptSpec) int {
	if spec.Tokens > 0 && spec.Max > 0 {
		return spec.Tokens
	}
	return unmatchedBlocks.Tokens
}

// Pick implements Scheduler.
func (s scheduled) Pick(ctx context.Context, r *epp.Request) (*epp.Decision, error) {
	began := time.Now()
	d, err := s.Scheduler.Pick(ctx, r)
	if err != nil && ctx.Err() == nil && r.API.Generates() {
		one := s.recorder.record(r)
		one.refusal, one.began, one.snapshot = pd.AsRefusal(err), began, s.recorder.snapshot.Load()
		one.waited = time.Since(began)
		s.recorder.add(one)
	}
	return d, err
}

// Picked implements epp.PickObserver.
func (r *Recorder) Picked(round *epp.Round, all []epp.Candidate, d *epp.Decision) {
	if !round.Request.API.Generates() {
		return
	}
	one := r.record(round.Request)
	one.decision, one.number, one.snapshot, one.began, one.waited = d, round.Number, round.Snapshot, round.Now, d.Pass.Waited
	for i := range d.Picks {
		first := d.Picks[i].Endpoints[0]
		var s seen
		if j := slices.IndexFunc(all, func(c epp.Candidate) bool { return c.Endpoint == first }); j >= 0 {
			s = seen{all[j].InFlight, all[j].Cached}
		}
		one.seen = append(one.seen, s)
	}
	r.add(one)
}

// Observe implements epp.Observer.
func (r *Recorder) Observe(o *epp.Outcome) {
	if o.Decision != nil && o.API.Generates() {
		r.tell(message{outcome: o, at: time.Now()}, "outcome")
	}
}

// record copies what is captured of a request.
func (r *Recorder) record(from *epp.Request) *record {
	one := r.records.Get().(*record)
	one.blocks = append(one.blocks[:0], from.Prompt.Blocks...)
	one.media, one.seen = len(from.Prompt.Media), one.seen[:0]
	one.request = epp.Request{API: from.API, Model: from.Model, Stream: from.Stream, Mode: from.Mode, Fit: from.Fit,
		SGLangSplits: from.SGLangSplits, Subset: from.Subset, Priority: from.Priority, IfAvailable: from.IfAvailable, Bytes: from.Bytes,
		Prompt: epp.Prompt{Tokens: from.Prompt.Tokens, BlockTokens: from.Prompt.BlockTokens}}
	one.flow, one.session = from.FairnessID(), ""
	for _, name := range SessionHeaders {
		if one.session == "" {
			one.session = from.Header(name)
		}
	}
	return one
}

// SessionHeaders are the headers in which clients name a session. The first that has a value counts.
var SessionHeaders = []string{"x-session-id", "x-claude-code-session-id", "x-session-affinity", "session-id", "session_id"}

// add queues a record.
func (r *Recorder) add(one *record) {
	bytes := int64(len(one.blocks)) * 8
	if r.waiting.Add(bytes) > queuedBytes {
		r.metrics.drop("request")
	} else if r.tell(message{record: one}, "request") {
		return
	}
	r.waiting.Add(-bytes)
	r.free(one)
}

// free keeps the memory of a record for another one.
func (r *Recorder) free(one *record) {
	*one = record{blocks: one.blocks[:0], seen: one.seen[:0]}
	r.records.Put(one)
}
