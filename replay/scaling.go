package replay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/epp/scale"
)

// Scaling has the pool of a run follow an autoscaler. The pool begins as Options.Pool has it.
type Scaling struct {
	// Begin returns the autoscaler of a run: one is not used for two.
	Begin           func() Autoscaler
	Prefill, Decode ScaledRole // Decode are the engines that generate answers, also those that do both
}

// ScaledRole says within what limits a role scales, and how fast.
type ScaledRole struct {
	Min, Max int
	Ready    time.Duration // from the decision for an engine until it serves: a node, its image, the weights
}

// ScaleEvery is how often the autoscaler is asked: as often as Kubernetes asks HorizontalPodAutoscalers (--horizontal-pod-autoscaler-sync-period).
const ScaleEvery = 15 * time.Second

// drainEvery is how often an engine that leaves is looked at, whether its last request has ended.
const drainEvery = time.Second

// Autoscaler decides how many engines of each role there should be.
type Autoscaler interface {
	// Sizes returns the wanted sizes. It is called each ScaleEvery. The limits of the roles are applied to them afterwards.
	Sizes(now time.Duration, prefill, decode Seen) (wantedPrefill, wantedDecode int)
}

// Seen is what an autoscaler sees of a role.
type Seen struct {
	Replicas int     // that the role has: those that serve, and those that start
	Serving  int     // of these
	Waiting  int     // requests in serving engines
	Running  int     // likewise
	KVUsage  float64 // sum over the serving engines of the share of the KV cache in use
	Desired  int     // replicas by the plugin replica-sizer; 0 if the configuration has none
}

// Resize is a change of the size of a role.
type Resize struct {
	At   time.Duration
	Role string
	Size int // engines that serve or start
}

// sizer is the plugin replica-sizer.
type sizer interface {
	Sizes() []scale.Size
	Need(l *scale.Load) scale.Needed
}

// scaled is a pool that scales.
type scaled struct {
	by              Autoscaler // nil: it does not
	prefill, decode group
}

// group is the engines of a role.
type group struct {
	role     string
	limits   ScaledRole
	serving  []*node // the oldest first
	starting []*starting
	made     int // names of engines that were used
}

// starting is an engine that does not serve yet.
type starting struct {
	since     time.Duration
	cancelled bool
}

func (g *group) size() int { return len(g.serving) + len(g.starting) }

// scaleProblem returns why the pool cannot scale; nil if it can.
func (o *Options) scaleProblem() error {
	s := o.Scaling
	switch {
	case s == nil:
		return nil
	case o.Replicas > 1:
		return errors.New("a pool that scales has one picker: each of several would compute sizes of its own")
	case o.Pool.Both > 0 && o.Pool.Decode > 0:
		return fmt.Errorf("the pool %v has two kinds of engines that generate answers: one that scales has D or B", o.Pool)
	}
	for _, role := range []struct {
		name   string
		of     ScaledRole
		begins int
		least  int
	}{{"prefill", s.Prefill, o.Pool.Prefill, 0}, {"decode", s.Decode, o.Pool.Decode + o.Pool.Both, 1}} {
		r := role.of
		switch {
		case r.Min < role.least || r.Max < r.Min || r.Max > maxEngines:
			return fmt.Errorf("%s cannot scale from %d to %d engines", role.name, r.Min, r.Max)
		case role.begins < r.Min || role.begins > r.Max:
			return fmt.Errorf("%s begins with %d engines, and is to have from %d to %d", role.name, role.begins, r.Min, r.Max)
		case r.Ready <= 0:
			return fmt.Errorf("%s: an engine cannot serve %v after the decision for it", role.name, r.Ready)
		}
	}
	return nil
}

// scale has the pool scale, if it does.
func (w *world) scale() {
	o := w.options.Scaling
	if o == nil {
		return
	}
	s := &w.scaled
	s.by = o.Begin()
	s.prefill, s.decode = group{role: "prefill", limits: o.Prefill}, group{role: "decode", limits: o.Decode}
	if w.options.Pool.Both > 0 {
		s.decode.role = "both"
	}
	for _, n := range w.nodes {
		g := &s.decode
		if n.role == "prefill" {
			g = &s.prefill
		}
		g.serving, g.made = append(g.serving, n), g.made+1
	}
	for _, g := range []*group{&s.prefill, &s.decode} {
		w.resized(g)
	}
	w.clock.after(ScaleEvery, w.follow)
}

// follow asks the autoscaler, and has the pool become so large.
func (w *world) follow() {
	if w.left == 0 {
		return
	}
	s := &w.scaled
	prefill, decode := w.seen(&s.prefill), w.seen(&s.decode)
	if p := w.pickers[0].sizer; p != nil {
		for _, size := range p.Sizes() {
			if size.Role == "prefill" {
				prefill.Desired = size.Desired
			} else {
				decode.Desired = size.Desired
			}
		}
	}
	wantedPrefill, wantedDecode := s.by.Sizes(w.clock.now, prefill, decode)
	w.resize(&s.prefill, wantedPrefill)
	w.resize(&s.decode, wantedDecode)
	w.clock.after(ScaleEvery, w.follow)
}

// seen reads the engines of a role.
func (w *world) seen(g *group) Seen {
	s := Seen{Replicas: g.size(), Serving: len(g.serving)}
	for _, n := range g.serving {
		waiting, _ := n.engine.Waiting()
		s.Waiting, s.Running, s.KVUsage = s.Waiting+waiting, s.Running+n.engine.Running(), s.KVUsage+n.engine.Usage(w.clock.now)
	}
	return s
}

// resize starts engines, or has some leave: first those that start, the latest first, then those with the fewest requests.
func (w *world) resize(g *group, wanted int) {
	wanted = max(g.limits.Min, min(wanted, g.limits.Max))
	if wanted == g.size() {
		return
	}
	for g.size() < wanted {
		w.launch(g)
	}
	for g.size() > wanted {
		if last := len(g.starting) - 1; last >= 0 {
			one := g.starting[last]
			one.cancelled, g.starting = true, g.starting[:last]
			w.result.engineTime += w.clock.now - one.since
			continue
		}
		n := slices.MinFunc(g.serving, func(a, b *node) int { return cmp.Or(a.flights-b.flights, int(b.joined-a.joined)) })
		g.serving = slices.DeleteFunc(g.serving, func(other *node) bool { return other == n })
		w.retire(n)
	}
	w.resized(g)
}

// resized notes the size of a role.
func (w *world) resized(g *group) {
	w.result.Sizes = append(w.result.Sizes, Resize{w.clock.now, g.role, g.size()})
}

// launch has an engine start, and later serve.
func (w *world) launch(g *group) {
	one := &starting{since: w.clock.now}
	g.starting = append(g.starting, one)
	w.clock.after(g.limits.Ready, func() {
		if one.cancelled {
			return
		}
		g.starting = slices.DeleteFunc(g.starting, func(other *starting) bool { return other == one })
		n := w.join(fmt.Sprintf("%s-%d", g.role, g.made), g.role)
		n.joined = one.since
		g.serving, g.made = append(g.serving, n), g.made+1
		l := &w.pickers[0].loads
		l.join(n)
		l.readFirst(l.pages[n.slot])
		w.pickers[0].capacity()
	})
}

// retire has an engine get no new requests, and go when it has nothing left to do.
func (w *world) retire(n *node) {
	n.leaving = true
	w.pickers[0].loads.leave(n)
	w.drain(n)
}

// drain has an engine that leaves go if no request is on its way to it or in it, and no other engine reads its blocks. Otherwise it looks
// again later.
func (w *world) drain(n *node) {
	waiting, _ := n.engine.Waiting()
	if n.flights == 0 && waiting+n.engine.Running() == 0 && n.engine.Usage(w.clock.now) == 0 {
		n.gone = true
		w.result.engineTime += w.clock.now - n.joined
		return
	}
	w.clock.after(drainEvery, func() { w.drain(n) })
}

// account adds the time of the engines that are still there.
func (w *world) account() {
	if w.scaled.by == nil {
		return
	}
	r := w.result
	r.perEngine = w.options.Hardware.GPUs
	for _, n := range w.nodes {
		if !n.gone {
			r.engineTime += r.End - min(r.End, n.joined)
		}
	}
	for _, g := range []*group{&w.scaled.prefill, &w.scaled.decode} {
		for _, one := range g.starting {
			r.engineTime += r.End - min(r.End, one.since)
		}
	}
}

// reversals returns how often the sizes of one role change their direction within a time, at most.
func reversals(all []Resize, within time.Duration) (most int) {
	type path struct {
		size, direction int
		turns           []time.Duration
	}
	roles := map[string]*path{}
	for _, r := range all {
		p := roles[r.Role]
		if p == nil {
			roles[r.Role] = &path{size: r.Size}
			continue
		}
		direction := cmp.Compare(r.Size, p.size)
		if direction == 0 {
			continue
		}
		if p.direction != 0 && direction != p.direction {
			p.turns = append(p.turns, r.At)
			first := slices.IndexFunc(p.turns, func(at time.Duration) bool { return r.At-at < within })
			most = max(most, len(p.turns)-first)
		}
		p.size, p.direction = r.Size, direction
	}
	return most
}
