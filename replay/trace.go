package replay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// Request is one request of a trace.
type Request struct {
	Due           time.Duration // after the beginning; of a later turn of a session, after the end of the turn before
	Input, Output int           // tokens; both at least 1
	// Blocks are the identities of the prompt's first parts, of Trace.BlockTokens each. The rest is shared with no other prompt.
	Blocks []int64
	// Streams are what the prompt consists of, if Blocks is nil; without either it shares nothing.
	Streams []Stream
	// After is the number of the turn before this one in its session, counted from 1 in Trace.Requests; 0: it is the first.
	After int
	Class int // index in Trace.Classes
}

// Stream is a text that prompts have in common, each as far as it goes. A prompt has Tokens of it; of its last stream, all that the others
// leave. The answer of a request that another turn follows continues its last stream.
type Stream struct {
	ID     uint64
	Tokens int
}

// Class is a kind of request.
type Class struct {
	Name     string
	Model    string // that its requests name: a LoRA adapter; "": the model that all engines have
	Flow     string // fairness id; "": the default one
	Priority int
	SLO      SLO // what its requests must meet; also the target that they name to the picker
}

// Trace is what clients ask for.
type Trace struct {
	Requests    []Request // first turns by Due, each turn behind the one before it
	BlockTokens int
	Classes     []Class // none: all requests are alike
	// Wanted is what clients tell the picker that they want, where their class does not say; zero: they do not tell.
	Wanted SLO
	// Concurrency has so many sessions run at a time: when one ends, the next begins, whatever its Due. 0: sessions begin when due.
	Concurrency int
}

// Closed reports whether arrivals depend on the ends of requests.
func (t *Trace) Closed() bool {
	return t.Concurrency > 0 || slices.ContainsFunc(t.Requests, func(r Request) bool { return r.After > 0 })
}

// refusalPause is after how long the next session begins in the place of one whose last turn was refused.
const refusalPause = time.Second

// Check returns why a trace cannot be run on a pool; nil if it can.
func (o *Options) Check(t *Trace) error {
	if len(t.Requests) == 0 {
		return errors.New("the trace has no requests")
	}
	if o.Oracle && o.Engine.TokenArrives {
		return errors.New("the oracle knows only engines whose hand-off begins when the prompt is computed, as vLLM's does")
	}
	if err := cmp.Or(o.checkNetwork(), o.checkVariants(), o.scaleProblem()); err != nil {
		return err
	}
	kinds := o.kinds()
	for i := range kinds {
		k := &kinds[i].Engine
		if t.BlockTokens%k.BlockTokens != 0 {
			return fmt.Errorf("the trace names parts of %d tokens, which are not whole blocks of %d", t.BlockTokens, k.BlockTokens)
		}
		if err := k.AdapterProblem(); err != nil {
			return err
		}
	}
	for i := range t.Requests {
		r := &t.Requests[i]
		for k := range kinds {
			if err := kinds[k].Engine.Problem(r.Input, r.Output); err != nil {
				return fmt.Errorf("request %d: %w", i+1, err)
			}
		}
		if r.After > i {
			return fmt.Errorf("request %d is to follow request %d, which comes no earlier", i+1, r.After)
		}
	}
	followed := t.turns()
	for i := range t.Requests {
		if after := t.Requests[i].After; after > 0 && int(followed[after-1]) != i {
			return fmt.Errorf("requests %d and %d are to follow request %d", i+1, followed[after-1]+1, after)
		}
	}
	return nil
}

// turns returns the index of each request's next turn, 0 if there is none; nil if there are no sessions.
func (t *Trace) turns() (next []int32) {
	for i := range t.Requests {
		if after := t.Requests[i].After; after > 0 {
			if next == nil {
				next = make([]int32, len(t.Requests))
			}
			next[after-1] = int32(i)
		}
	}
	return next
}

// asked is what the requests of a class tell the picker besides their prompt.
type asked struct {
	Class
	headers epp.Headers
	seed    uint64 // of the hashes of prompts: engines share no KV between adapters
}

// asks returns what the requests of each class tell the picker.
func (t *Trace) asks() []asked {
	classes := t.Classes
	if len(classes) == 0 {
		classes = []Class{{}}
	}
	all := make([]asked, len(classes))
	for i, c := range classes {
		a := asked{Class: c, seed: seed}
		for _, b := range []byte(c.Model) {
			a.seed = mix(a.seed, uint64(b))
		}
		if c.SLO == (SLO{}) {
			c.SLO = t.Wanted
		}
		sent := headers{}
		if c.Flow != "" {
			sent[epp.HeaderFlow] = c.Flow
		}
		if c.SLO.TTFT > 0 {
			sent[epp.HeaderTTFT] = strconv.FormatFloat(float64(c.SLO.TTFT)/1e6, 'f', -1, 64)
		}
		if c.SLO.TPOT > 0 {
			sent[epp.HeaderTPOT] = strconv.FormatFloat(float64(c.SLO.TPOT)/1e6, 'f', -1, 64)
		}
		if c.Model == "" {
			a.Model = "replayed"
		}
		if len(sent) > 0 {
			a.headers = sent
		}
		all[i] = a
	}
	return all
}

// adapter returns the LoRA adapter of a class, "" if it has none.
func (w *world) adapter(class int) string {
	if len(w.trace.Classes) == 0 {
		return ""
	}
	return w.trace.Classes[class].Model
}

// headers implements epp.Headers.
type headers map[string]string

// Get implements epp.Headers.
func (h headers) Get(name string) string { return h[name] }
