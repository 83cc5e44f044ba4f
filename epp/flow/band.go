package flow

import (
	"container/list"
	"math"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// lane is what a request needs: the stages up to and including this one.
type lane uint8

const (
	laneFirst lane = iota // the first stage only
	laneSplit             // also the stage that splits requests
	lanes
)

// pass and laneOf carry the lane of a request from Admit to Settled. Note 0 is a request that is not counted.
func (l lane) pass() epp.Pass { return epp.Pass{Note: uint8(l + 1)} }
func laneOf(p epp.Pass) lane  { return lane(p.Note - 1) }

// item is a request that waits.
type item struct {
	flow  *flow
	lane  lane
	load  epp.InFlight  // that the pick will charge
	bytes int64         // of its body
	at    time.Time     // when it arrived
	ttl   time.Duration // 0 = none
	slo   time.Duration // target of the time to first token; 0 = none
	seq   uint64        // in the order of arrival
	due   int64         // what the band's ordering goes by, before seq
	index int           // in its line; -1 = it does not wait any more
	// charged are the tokens that its flow was charged at its dispatch.
	charged int
	// series counts the items of its origin that wait.
	series *series
	// older and newer link the waiting items of a band.
	older, newer *item
	done         chan error         // gets the result: nil = dispatched
	told         func(*item, error) // is called with it instead; nil = it is not
	timer        epp.Timer          // of ttl; nil = none
}

func (i *item) before(other *item) bool {
	if i.due != other.due {
		return i.due < other.due
	}
	return i.seq < other.seq
}

// line holds the waiting items of one lane of a flow.
type line struct {
	flow  *flow
	items heap[*item]
	index int // among the band's ready lines; -1 = it has no items
}

// flow is the requests of a band with one fairness id.
type flow struct {
	id       string
	band     *band
	lines    [lanes]line
	requests int
	bytes    int64
	turn     float64       // the flow with the lowest one is next, unless the band is strict; see also key
	fresh    bool          // its next request counts as its first one (DeepestFirst)
	answer   float64       // moving average of the lengths of its answers in tokens; 0 = not known
	resting  *list.Element // in the band's list; nil while requests wait
	rested   time.Time     // when the last of them left
}

// band is the queue of one priority.
type band struct {
	priority int
	settings *Band
	flows    map[string]*flow
	ready    [lanes]heap[*line] // with items
	requests int
	bytes    int64
	newest   *item
	oldest   *item
	resting  *list.List // flows without items, whose turn is remembered; the one that rested first is in front
	// clock is what turns are measured from: how many turns there were (RoundRobin), or the turn of the flow that was dispatched
	// last (ServedTokens).
	clock float64
	// landmark is when tokens count as they are, for LeastAttained; later ones count more. DeepestFirst measures arrivals from it.
	landmark time.Time
	made     time.Time // the band; orderings measure from it
}

const (
	maxHalfLife = 512             // landmark moves before weights of tokens exceed 2^512
	restServed  = 5 * time.Minute // how long ServedTokens remembers the turn of a flow without requests
	answerPart  = 8               // the moving average of answers follows the last 16 or so
	mostResting = 10_000          // flows of a band without requests that are remembered: clients choose the ids
)

func newBand(priority int, settings *Band, now time.Time) *band {
	b := &band{priority: priority, settings: settings, flows: make(map[string]*flow), resting: list.New(), landmark: now, made: now}
	for l := range b.ready {
		b.ready[l] = heap[*line]{less: b.before, place: func(l *line, i int) { l.index = i }}
	}
	return b
}

// before reports whether the next item of line x goes before that of line y.
func (b *band) before(x, y *line) bool {
	if b.settings.Fairness != GlobalStrict {
		if kx, ky := b.key(x), b.key(y); kx != ky {
			return kx < ky
		}
	}
	return x.items.top().before(y.items.top())
}

// key returns what lines are ordered by. That of a flow of DeepestFirst is lower the earlier its next request came; the time that has
// passed since raises all flows alike, so that the order does not change while they wait.
func (b *band) key(l *line) float64 {
	if b.settings.Fairness != DeepestFirst {
		return l.flow.turn
	}
	turn := l.flow.turn
	if l.flow.fresh {
		turn = 0
	}
	return turn + b.settings.Depth.PerSecond*l.items.top().at.Sub(b.landmark).Seconds()
}

func newFlow(b *band, id string) *flow {
	f := &flow{id: id, band: b}
	for l := range f.lines {
		f.lines[l] = line{flow: f, index: -1, items: heap[*item]{less: (*item).before, place: func(it *item, i int) { it.index = i }}}
	}
	return f
}

// flow returns the flow with an id, a new one if there is none.
func (b *band) flow(id string) *flow {
	f, ok := b.flows[id]
	if !ok {
		f = newFlow(b, id)
		b.flows[id] = f
	}
	return f
}

// add has an item of a flow wait.
func (b *band) add(it *item) {
	f := it.flow
	if f.requests == 0 {
		b.join(f, it.at)
	}
	it.due = b.dueOf(it)
	l := &f.lines[it.lane]
	l.items.push(it)
	if l.index < 0 {
		b.ready[it.lane].push(l)
	} else {
		b.ready[it.lane].fix(l.index)
	}
	it.older, it.newer = b.newest, nil
	if b.newest != nil {
		b.newest.newer = it
	} else {
		b.oldest = it
	}
	b.newest = it
	b.count(it, 1)
}

// remove removes an item that waits.
func (b *band) remove(it *item, now time.Time) {
	f, l := it.flow, &it.flow.lines[it.lane]
	l.items.remove(it.index)
	if l.items.len() == 0 {
		b.ready[it.lane].remove(l.index) // it has no first item any more, but it is not compared
	} else {
		b.ready[it.lane].fix(l.index)
	}
	if it.newer != nil {
		it.newer.older = it.older
	} else {
		b.newest = it.older
	}
	if it.older != nil {
		it.older.newer = it.newer
	} else {
		b.oldest = it.newer
	}
	it.older, it.newer = nil, nil
	b.count(it, -1)
	if f.requests == 0 {
		b.rest(f, now)
	}
}

func (b *band) count(it *item, n int) {
	b.requests += n
	b.bytes += int64(n) * it.bytes
	it.flow.requests += n
	it.flow.bytes += int64(n) * it.bytes
}

// dueOf returns what the band's ordering goes by.
func (b *band) dueOf(it *item) int64 {
	within := time.Duration(0)
	switch b.settings.Ordering {
	case EDF:
		within = it.ttl
	case SLODeadline:
		within = it.slo
	default:
		return 0
	}
	if within == 0 {
		return math.MaxInt64
	}
	return int64(it.at.Add(within).Sub(b.made)) // by the monotonic clock: the wall clock may be set while requests wait
}

// next returns the item that goes next among the lanes that are open, nil if none waits there.
func (b *band) next(open [lanes]bool) *item {
	var first *line
	for l := range b.ready {
		if !open[l] || b.ready[l].len() == 0 {
			continue
		}
		if top := b.ready[l].top(); first == nil || b.goesFirst(top, first) {
			first = top
		}
	}
	if first == nil {
		return nil
	}
	return first.items.top()
}

// goesFirst is before for lines that may belong to one flow, which orders its items itself.
func (b *band) goesFirst(x, y *line) bool {
	if x.flow == y.flow {
		return x.items.top().before(y.items.top())
	}
	return b.before(x, y)
}

// join gives a turn to a flow that had no requests.
func (b *band) join(f *flow, now time.Time) {
	b.wake(f)
	switch b.settings.Fairness {
	case RoundRobin:
		b.clock++
		f.turn = b.clock
	case DeepestFirst:
		idle := b.settings.Depth.Idle
		f.fresh = idle > 0 && now.Sub(f.rested) > idle
	}
}

// wake ends the rest of a flow. One that has been idle has no credit for it.
func (b *band) wake(f *flow) {
	if f.resting != nil {
		b.resting.Remove(f.resting)
		f.resting = nil
	}
	if b.settings.Fairness == ServedTokens {
		f.turn = max(f.turn, b.clock)
	}
}

// rest handles a flow whose last request has left.
func (b *band) rest(f *flow, now time.Time) {
	if !b.settings.Fairness.charges() {
		delete(b.flows, f.id)
		return
	}
	f.rested = now
	f.resting = b.resting.PushBack(f)
	if b.resting.Len() > mostResting {
		b.drop(b.resting.Front())
	}
}

// drop forgets a flow that rests.
func (b *band) drop(e *list.Element) {
	b.resting.Remove(e)
	delete(b.flows, e.Value.(*flow).id)
}

// forget forgets flows that have rested for long, and those whose turn is what they would get as new ones.
func (b *band) forget(now time.Time) {
	keep := b.settings.keep()
	for e := b.resting.Front(); e != nil; e = b.resting.Front() {
		f := e.Value.(*flow)
		if now.Sub(f.rested) < keep && (b.settings.Fairness != ServedTokens || f.turn > b.clock) {
			return
		}
		b.drop(e)
	}
}

// dispatched gives the flow of a dispatched item its next turn.
func (b *band) dispatched(it *item, now time.Time) {
	f := it.flow
	switch b.settings.Fairness {
	case RoundRobin:
		b.clock++
		f.turn = b.clock
		b.fix(f)
	case ServedTokens:
		b.clock = max(b.clock, f.turn)
		fallthrough
	case LeastAttained:
		it.charged = max(1, it.load.Tokens) + outputWeight*int(f.answer)
		b.charge(f, it.charged, now)
	case DeepestFirst:
		f.fresh = false
		b.charge(f, -1, now)
	}
}

// charge moves the turn of a flow by tokens that it was served, or that it was charged too much if they are negative.
func (b *band) charge(f *flow, tokens int, now time.Time) {
	weight := 1.0
	if b.settings.Fairness == LeastAttained {
		age := float64(now.Sub(b.landmark)) / float64(b.settings.Attained.halfLife())
		if age > maxHalfLife {
			b.moveLandmark(age, now)
			age = 0
		}
		weight = math.Exp2(age)
	}
	f.turn += weight * float64(tokens)
	b.fix(f)
}

// fix restores the order after the turn of a flow has changed.
func (b *band) fix(f *flow) {
	for l := range f.lines {
		if i := f.lines[l].index; i >= 0 {
			b.ready[l].fix(i)
		}
	}
}

// settle charges a flow with what a request has cost beyond what it was charged when it was dispatched. answer is the length of the
// answer in tokens, -1 if it is not known.
func (b *band) settle(id string, tokens int, answer int64, now time.Time) {
	f := b.flow(id)
	if f.requests == 0 {
		b.wake(f)
		b.rest(f, now)
	}
	switch {
	case answer < 0:
	case f.answer == 0:
		f.answer = float64(answer)
	default:
		f.answer += (float64(answer) - f.answer) / answerPart
	}
	b.charge(f, tokens, now)
}

// moveLandmark scales the turns so that they count from now. Their order stays.
func (b *band) moveLandmark(age float64, now time.Time) {
	for _, f := range b.flows {
		f.turn *= math.Exp2(-age)
	}
	b.landmark = now
}
