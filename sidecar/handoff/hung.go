package handoff

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/relay"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// errHung is why a leg to an engine ended that accepts connections and answers nothing.
var errHung = errors.New("the engine accepts connections and answers nothing, no health check either")

// hungList notices engines that accept connections and answer nothing: a stopped process, a node that hangs. Their connections
// stay open, so that a leg would wait for its time-out.
//
// A leg that takes longer than most of the last ones to the same engine is no proof: its prompt may be longer, or others may be
// before it. So the engine is then asked whether it is healthy, repeatedly. It counts as hung if neither these probes nor any leg
// has got an answer for the silence, for as long as legs usually take, and for as long as it may take to read the bodies that it has
// got. All legs to it end then whose answers have not begun, or can go on elsewhere. It is probed until it answers, and gets no leg before.
// For the client of another answer that has begun a pause is better than its end: it ends only if the engine hangs for long.
//
// A stream that pauses for longer than some of its last pauses has its engine probed too: a second is much for one that sends a token each
// 20 ms, and the first thing that is late at an engine which hangs is usually a token.
type hungList struct {
	silence time.Duration // 0: nothing is noticed
	log     *slog.Logger
	open    context.Context // ends the probes
	work    *sync.WaitGroup

	mu      sync.Mutex // guards the rest, with the engines and vigils
	engines map[pd.Target]*watchedEngine
}

const (
	// hungTick is the time between two looks at the legs of an engine, and between two probes without an answer.
	hungTick = 100 * time.Millisecond
	// hungProbe is how long a probe waits for its answer. An engine computes in another process or thread than the one that
	// answers, so a busy one needs some milliseconds.
	hungProbe = 350 * time.Millisecond
	// readsBytes is how many bytes of bodies an engine reads in a second, at least: parses them, tokenizes prompts, decodes images.
	// Meanwhile its server, which is one thread of Python, may answer nothing.
	readsBytes = 1 << 20
	// hungRetry is the time between two probes of an engine that is hung, or is only slow.
	hungRetry = time.Second
	// hungBegun is how long an engine must hang until answers end that have begun.
	hungBegun = 10 * time.Second
	// manyPauses is how many of the longest recent pauses of an engine's streams one may take. Streams are not even: while the engine
	// computes a long prompt between two tokens, a pause is some times as long as usual.
	manyPauses = 4
	// leastPause is the shortest pause that makes an engine suspect. Below it the probes would be many, and would say nothing: that of a
	// busy engine takes some milliseconds, and it is sent at hungTick after the pause at the earliest.
	leastPause = 250 * time.Millisecond
	// hungIdle is how long an engine is looked at after its last leg.
	hungIdle = 10 * time.Second
	// hungForget is for how long an engine is probed that is hung and that no request wants: it may not come back.
	hungForget = time.Minute
	// maxWatched bounds how many engines are looked at. Where no shared secret is required, clients may name any address that is
	// allowed.
	maxWatched = 256
)

func newHungList(silence time.Duration, log *slog.Logger, open context.Context, work *sync.WaitGroup) *hungList {
	return &hungList{silence: silence, log: log, open: open, work: work, engines: map[pd.Target]*watchedEngine{}}
}

// wait is what a leg waits for.
type wait uint8

const (
	waitPrefill wait = iota // the answer of a prefill leg
	waitRead                // that decode has read the KV cache from a prefill engine: the first event of its answer
	waitFirst               // the first event, or the whole, of an answer of the local engine
	waits
)

// watchedEngine is an engine with legs.
type watchedEngine struct {
	engine  transport.Engine
	recent  [waits]recentWaits
	vigils  map[*vigil]struct{}
	running bool          // a goroutine looks at it
	used    time.Time     // when a leg was last sent, or wanted to be
	sign    time.Time     // when a leg last got what it waited for
	pause   time.Duration // the longest recent one of its streams; 0 = not known
	hung    bool
	probed  chan struct{} // of one that is hung: closed after the next probe, and then another one
	wanted  chan struct{} // gets one when the next probe is to be now
}

// vigil watches an engine for one leg. A nil vigil does nothing.
type vigil struct {
	list     *hungList
	of       *watchedEngine
	wait     wait
	reading  time.Duration // how long the engine may take to read the body, and answer nothing
	began    time.Time
	heard    atomic.Int64 // time from began to the newest sign of the engine; 0 = none
	excused  time.Time    // when the engine last answered a probe
	pause    atomic.Int64 // the longest recent time between two signs, after the first one
	movable  atomic.Bool  // the answer can go on elsewhere
	answered bool         // what it waits for has come; only the goroutine of the leg reads it
	fail     func(error)
}

// watch begins a vigil for a leg whose body has this many bytes. If the engine is hung, or turns out to be, fail is called once, with
// errHung: before watch returns, or from another goroutine. The caller must call over.
func (l *hungList) watch(at pd.Target, e transport.Engine, what wait, size int64, fail func(error)) *vigil {
	if l.silence == 0 {
		return nil
	}
	v := &vigil{list: l, wait: what, reading: time.Duration(max(size, 0)) * time.Second / readsBytes, began: time.Now(), fail: fail}
	if hung := l.add(at, e, v); hung {
		fail(errHung)
	}
	return v
}

// add has a vigil begin, unless the engine is hung.
func (l *hungList) add(at pd.Target, e transport.Engine, v *vigil) (hung bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.engines[at]
	if w == nil {
		if len(l.engines) >= maxWatched {
			maps.DeleteFunc(l.engines, func(_ pd.Target, w *watchedEngine) bool { return !w.running })
		}
		w = &watchedEngine{engine: e, vigils: map[*vigil]struct{}{}, probed: make(chan struct{}), wanted: make(chan struct{}, 1)}
		if len(l.engines) < maxWatched {
			l.engines[at] = w
		}
	}
	v.of, w.used = w, v.began
	if w.hung {
		return true
	}
	w.vigils[v] = struct{}{}
	if !w.running && l.engines[at] == w && l.open.Err() == nil {
		w.running = true
		l.work.Go(func() { l.look(at, w) })
	}
	return false
}

// has reports whether an engine is hung.
func (l *hungList) has(at pd.Target) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.engines[at]
	if w == nil || !w.hung {
		return false
	}
	w.used = time.Now()
	return true
}

// askAgain has an engine that is hung probed at once, for a request that has no other one, and waits for that: it may have gone on since
// the last probe, and its legs fail until the next one.
func (l *hungList) askAgain(ctx context.Context, at pd.Target) {
	l.mu.Lock()
	w := l.engines[at]
	if w == nil || !w.hung {
		l.mu.Unlock()
		return
	}
	w.used = time.Now()
	probed := w.probed
	l.mu.Unlock()
	select {
	case w.wanted <- struct{}{}:
	default: // another request wants it too
	}
	select {
	case <-probed:
	case <-ctx.Done():
	case <-l.open.Done():
	}
}

// hears notes that the engine has sent something. What the vigil waited for has come with it; the rest of the answer may follow.
func (v *vigil) hears() {
	if v == nil {
		return
	}
	if v.answered {
		now, longest := int64(time.Since(v.began)), v.pause.Load()
		v.pause.Store(max(now-v.heard.Load(), longest-longest>>pauseDecay))
		v.heard.Store(now)
		return
	}
	v.list.mu.Lock()
	defer v.list.mu.Unlock()
	v.came()
}

// pauseDecay is how fast a long pause is forgotten: one in 2^pauseDecay of it with each sign, so that half of it is after 44 tokens.
const pauseDecay = 6

// moves says whether the answer can go on elsewhere: it then ends as soon as the engine counts as hung, also if it has begun.
func (v *vigil) moves(can bool) {
	if v != nil && v.movable.Load() != can {
		v.movable.Store(can)
	}
}

// begins notes that the client gets the answer from now on, if only its headers, so that it cannot come from elsewhere; or that more of an
// answer has come that is no stream.
func (v *vigil) begins() {
	if v != nil {
		v.heard.Store(max(1, int64(time.Since(v.began))))
	}
}

// over ends the vigil. answered says that what it waited for has come.
func (v *vigil) over(answered bool) {
	if v == nil {
		return
	}
	v.list.mu.Lock()
	defer v.list.mu.Unlock()
	if answered && !v.answered {
		v.came()
	}
	delete(v.of.vigils, v)
}

// came notes how long the wait was. The caller holds the list's mu.
func (v *vigil) came() {
	took := time.Since(v.began)
	v.answered = true
	v.heard.Store(max(1, int64(took)))
	v.of.sign = v.began.Add(took)
	v.of.recent[v.wait].add(took)
}

// quiet returns for how long nothing has come for the vigil, and how long that usually is at most.
func (v *vigil) quiet(now time.Time) (silent, usual time.Duration) {
	usual = v.of.recent[v.wait].most()
	last := v.began
	if heard := v.heard.Load(); heard > 0 {
		last, usual = last.Add(time.Duration(heard)), max(usual, hungRetry)
		if pause := max(time.Duration(v.pause.Load()), v.of.pause); pause > 0 {
			usual = min(usual, max(manyPauses*pause, leastPause))
		}
	}
	if v.excused.After(last) {
		last, usual = v.excused, max(usual, hungRetry)
	}
	return now.Sub(last), usual
}

// look looks at the legs of an engine until there have been none for a while, or the engine was hung for long.
func (l *hungList) look(at pd.Target, w *watchedEngine) {
	tick := time.NewTicker(hungTick)
	defer tick.Stop()
	var silent time.Time // since when probes get no answer; zero: they do
	for last := time.Now(); ; last = time.Now() {
		select {
		case <-l.open.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		patience, suspected, idle := l.suspects(w, now)
		if idle {
			return
		}
		if !suspected {
			silent = time.Time{}
			continue
		}
		err := l.probe(w)
		if late := time.Since(last); err == nil || late > hungTick+hungProbe+stallLate {
			l.excuse(w)
			silent = time.Time{}
			continue
		}
		if silent.IsZero() {
			silent = now
		}
		if time.Since(silent) < patience {
			continue
		}
		if !l.hang(w, silent) {
			silent = time.Time{}
			continue
		}
		l.log.Warn("engine accepts connections and answers nothing: until it does, no request is sent there", "engine", at.String(), "error", err)
		if !l.revives(at, w) {
			return
		}
		l.log.Info("engine answers again", "engine", at.String())
		silent = time.Time{}
	}
}

// stallLate is how late a look or a probe may be. Beyond it this process, and not the engine, stood still.
const stallLate = 500 * time.Millisecond

// suspects reports whether a leg waits for longer than is usual, and for how long the engine may then answer nothing. An engine
// without legs for hungIdle is idle: the caller must look at it no more.
func (l *hungList) suspects(w *watchedEngine, now time.Time) (patience time.Duration, yes, idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(w.vigils) == 0 && now.Sub(w.used) > hungIdle {
		w.running = false
		return 0, false, true
	}
	var usual, reading, pause time.Duration
	for v := range w.vigils {
		pause = max(pause, time.Duration(v.pause.Load()))
		if v.heard.Load() == 0 {
			reading += v.reading
		}
		if silent, its := v.quiet(now); silent > its && (!yes || its < usual) {
			usual, yes = its, true
		}
	}
	if pause > 0 {
		w.pause = pause
	}
	return max(l.silence, usual) + reading, yes, false
}

// probe asks the engine whether it is healthy, and fails if no answer comes in time. Any other one will do: an engine that calls itself
// unhealthy may be draining, and legs to one that resets connections, or is gone, end by themselves.
func (l *hungList) probe(w *watchedEngine) error {
	ctx, cancel := context.WithTimeout(l.open, hungProbe)
	defer cancel()
	if err := w.engine.Healthy(ctx); isTimeout(err) {
		return err
	}
	return nil
}

// excuse notes that the engine answers probes.
func (l *hungList) excuse(w *watchedEngine) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for v := range w.vigils {
		v.excused = now
	}
}

// hang marks an engine as hung, and ends its legs whose answers have not begun, or can go on elsewhere, unless one leg has got something
// since the engine is silent.
func (l *hungList) hang(w *watchedEngine, silent time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	sign := w.sign
	for v := range w.vigils {
		if heard := v.heard.Load(); heard > 0 && v.began.Add(time.Duration(heard)).After(sign) {
			sign = v.began.Add(time.Duration(heard))
		}
	}
	if sign.After(silent) {
		return false
	}
	w.hung = true
	w.end(func(v *vigil) bool { return v.heard.Load() == 0 || v.movable.Load() })
	return true
}

// end ends some of the legs of an engine. The caller holds the list's mu.
func (w *watchedEngine) end(which func(*vigil) bool) {
	for v := range w.vigils {
		if which(v) {
			v.fail(errHung) // it cancels a context: it does not wait
			delete(w.vigils, v)
		}
	}
}

// revives probes an engine that is hung until it answers: once a second, and when a request wants it. It gives up, and forgets the engine, if
// no request has wanted it for long.
func (l *hungList) revives(at pd.Target, w *watchedEngine) bool {
	retry, since := time.NewTicker(hungRetry), time.Now()
	defer retry.Stop()
	for {
		select {
		case <-l.open.Done():
			return false
		case <-retry.C:
		case <-w.wanted:
		}
		answers := l.probe(w) == nil
		if answers {
			l.excuse(w)
		}
		l.mu.Lock()
		if !answers && time.Since(since) > hungBegun {
			w.end(func(*vigil) bool { return true })
		}
		if answers {
			w.hung = false
		} else if len(w.vigils) == 0 && time.Since(w.used) > hungForget {
			delete(l.engines, at)
			w.running = false
		}
		close(w.probed)
		w.probed = make(chan struct{})
		running := w.running
		l.mu.Unlock()
		if answers || !running {
			return answers
		}
	}
}

// reads makes the bytes of an answer signs of its engine. Of an answer that is no stream, the headers already say that the engine has all
// of it: how its pieces come says nothing about the pauses of streams.
func (v *vigil) reads(resp *http.Response) {
	switch {
	case v == nil:
	case relay.IsEventStream(resp.Header):
		resp.Body = watchedBody{resp.Body, v.hears}
	default:
		v.hears()
		resp.Body = watchedBody{resp.Body, v.begins}
	}
}

// watchLocal begins a vigil for a leg to the local engine, whose body has this many bytes.
func (legs *Legs) watchLocal(size int64, fail func(error)) *vigil {
	return legs.hung.watch(legs.localEngine.target, legs.Decode, waitFirst, size, fail)
}

// Hung returns an error if the local engine hangs. It gets no leg until it answers.
func (legs *Legs) Hung() error {
	if legs.hung.has(legs.localEngine.target) {
		return errHung
	}
	return nil
}

// watchedBody is an answer whose bytes are signs of its engine.
type watchedBody struct {
	io.ReadCloser
	hears func()
}

// Read implements io.Reader.
func (b watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.hears()
	}
	return n, err
}

// recentWaits are the last waits of one kind at one engine.
type recentWaits struct {
	took [32]time.Duration
	n    int           // of all
	high time.Duration // nine in ten of the last ones took at most this
}

const (
	// fewWaits are too few to know what is usual.
	fewWaits = 8
	// unknownWait is what is taken for usual then: longer, and an engine that hangs at its first requests costs more.
	unknownWait = time.Second
)

func (r *recentWaits) add(took time.Duration) {
	r.took[r.n%len(r.took)] = took
	if r.n++; r.n%fewWaits == 0 {
		sorted := r.took
		known := sorted[:min(r.n, len(sorted))]
		slices.Sort(known)
		r.high = known[len(known)*9/10]
	}
}

// most returns how long a wait usually is at most. A leg that takes longer only has its engine probed.
func (r *recentWaits) most() time.Duration {
	if r.n < fewWaits {
		return unknownWait
	}
	return r.high
}
