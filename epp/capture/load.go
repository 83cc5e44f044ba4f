package capture

import (
	"reflect"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// newLoad returns the line of a load, without its name.
func newLoad(l *epp.Load) Load {
	c := Load{Unread: l.At.IsZero(), Unreachable: l.Unreachable, Mode: l.Mode.String(), Engine: l.Engine, Requests: l.Sent.Requests, Tokens: l.Sent.Tokens,
		Batch: l.Batch, Cache: l.Cache, Ranks: l.Ranks, LoRA: l.LoRA, Attributes: l.Attributes, Further: l.Further}
	for _, s := range epp.Signals() {
		if v, ok := l.Signals.Value(s); ok {
			if c.Signals == nil {
				c.Signals = map[string]float64{}
			}
			c.Signals[s.String()] = v
		}
	}
	return c
}

// Load returns the load that the line tells of. began is when the capture began.
func (l *Load) Load(began time.Time) epp.Load {
	out := epp.Load{Unreachable: l.Unreachable, Mode: epp.ParseEngineMode(l.Mode), Engine: l.Engine, Sent: epp.InFlight{Requests: l.Requests, Tokens: l.Tokens},
		Batch: l.Batch, Cache: l.Cache, Ranks: l.Ranks, LoRA: l.LoRA, Attributes: l.Attributes, Further: l.Further}
	if !l.Unread {
		out.At = began.Add(time.Duration(l.At) * time.Microsecond)
	}
	for name, v := range l.Signals {
		if s, ok := epp.SignalNamed(name); ok {
			out.Signals.Set(s, v)
		}
	}
	return out
}

// equal reports whether two loads differ in the time of their reading only.
func (l *Load) equal(o *Load) bool {
	a, b := *l, *o
	a.At, a.Snapshot, b.At, b.Snapshot = 0, 0, 0, 0
	return reflect.DeepEqual(a, b)
}
