package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Fault is something that goes wrong on purpose. Post several: each request takes the first that fits it.
type Fault struct {
	// Leg is which requests it hits: "prefill" (those whose params ask for a remote decode), "decode" (all others that
	// generate), or "any" (also the default), which includes every other path of the data port but /metrics.
	Leg string `json:"leg"`
	// Fault is one of:
	//
	//	refuse        the connection is closed without an answer. With leg "any", no match and no count, the port is
	//	              closed as well while the fault stands: connecting is refused.
	//	reset-before  the connection is reset (RST) before any byte of an answer; the engine never sees the request
	//	reset-after   the engine works; the connection is reset after the headers and, of a stream, the first event
	//	truncate      the engine works; the body ends too early by FIN: after half of its bytes, or after the first event
	//	slow          the engine sees the request Arg milliseconds later; Arg "stop": never, the client waits until it
	//	              leaves or the fault is deleted
	//	status        answers with HTTP status Arg in the engine's envelope; the engine never sees the request. 503 is
	//	              the answer of admission, which lets the hand-off of a decode leg go
	//	crash         the engine dies when it gets the request: what runs ends with 500, and the port closes
	//	no-handoff    a prefill leg without kv_transfer_params in its answer; nothing is held for a decode engine
	//	bad-handoff   a prefill leg whose kv_transfer_params are damaged; Arg says how (see Damages)
	//	stale         a prefill leg whose lease is over at once, and whose blocks have been overwritten
	Fault string `json:"fault"`
	Arg   string `json:"arg"`
	// At has reset-after, truncate, slow or crash strike at a point of the answer instead:
	//
	//	headers  the engine has done the work, or of a stream admitted the request; nothing has been sent
	//	body     the headers have been sent, and nothing of the body
	//	2        so many events of a stream have been sent, or half of the bytes of a whole answer
	//
	// A crash at a point is the death of the whole process: the connection is reset, and the port closes.
	At string `json:"at,omitempty"`
	// Count is how many requests it hits before it is used up; 0: no limit.
	Count int `json:"count"`
	// Match is a part of the request's X-Request-Id or model; empty fits all.
	Match string `json:"match"`
}

// The values of Fault.Fault.
const (
	faultRefuse      = "refuse"
	faultResetBefore = "reset-before"
	faultResetAfter  = "reset-after"
	faultTruncate    = "truncate"
	faultSlow        = "slow"
	faultStatus      = "status"
	faultCrash       = "crash"
	faultNoHandoff   = "no-handoff"
	faultBadHandoff  = "bad-handoff"
	faultStale       = "stale"
)

const (
	legPrefill = "prefill"
	legDecode  = "decode"
	legAny     = "any"
)

// is may be asked of nil: most requests have no fault.
func (f *Fault) is(kind string) bool { return f != nil && f.Fault == kind }

func (f *Fault) validate() error {
	if f.Leg == "" {
		f.Leg = legAny
	}
	if !slices.Contains([]string{legPrefill, legDecode, legAny}, f.Leg) {
		return fmt.Errorf("leg %q: want prefill, decode or any", f.Leg)
	}
	if f.Count < 0 {
		return fmt.Errorf("count %d: want 0 or more", f.Count)
	}
	if _, err := f.point(); err != nil {
		return err
	}
	switch f.Fault {
	case faultSlow:
		if _, err := f.delay(); err != nil {
			return err
		}
	case faultStatus:
		if _, err := f.status(); err != nil {
			return err
		}
	case faultBadHandoff:
		if _, ok := damages[f.Arg]; !ok {
			return fmt.Errorf("arg %q: want one of %s", f.Arg, strings.Join(Damages(), ", "))
		}
	case faultRefuse, faultResetBefore, faultResetAfter, faultTruncate, faultCrash, faultNoHandoff, faultStale:
	default:
		return fmt.Errorf("fault %q is not known", f.Fault)
	}
	return nil
}

// closesPort tells whether the fault can do without seeing requests.
func (f *Fault) closesPort() bool {
	return f.Fault == faultRefuse && f.Leg == legAny && f.Match == "" && f.Count == 0
}

func (f *Fault) fits(leg, requestID, model string) bool {
	return (f.Leg == legAny || f.Leg == leg) &&
		(f.Match == "" || strings.Contains(requestID, f.Match) || strings.Contains(model, f.Match))
}

// faultList is what stands at the moment, oldest first.
type faultList struct {
	mu      sync.Mutex
	list    []*faultEntry
	cleared chan struct{} // closed, and replaced, when the list is emptied
	watch   func(closed bool)
}

type faultEntry struct {
	Fault
	left int // requests it still hits; -1: no limit
}

func newFaultList() *faultList { return &faultList{cleared: make(chan struct{})} }

// AddFault lets a fault stand. Errors name the member that is wrong.
func (e *Engine) AddFault(f Fault) error {
	if err := f.validate(); err != nil {
		return fmt.Errorf("adding a fault: %w", err)
	}
	l := e.faults
	l.mu.Lock()
	defer l.mu.Unlock()
	left := f.Count
	if left == 0 {
		left = -1
	}
	l.list = append(l.list, &faultEntry{Fault: f, left: left})
	l.changed()
	return nil
}

// ClearFaults ends all faults, also for the requests that hang in one.
func (e *Engine) ClearFaults() {
	l := e.faults
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = nil
	close(l.cleared)
	l.cleared = make(chan struct{})
	l.changed()
}

func (l *faultList) changed() {
	if l.watch != nil {
		l.watch(slices.ContainsFunc(l.list, func(f *faultEntry) bool { return f.closesPort() }))
	}
}

// closePort closes the data port for good.
func (l *faultList) closePort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch != nil {
		l.watch(true)
		l.watch = nil
	}
}

// onPort has f told whether the data port has to be closed, now and at every change.
func (l *faultList) onPort(f func(closed bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch = f
	l.changed()
}

// none spares requests from being looked at.
func (l *faultList) none() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.list) == 0
}

// take returns the fault that hits a request, or nil, and a channel that is closed when faults are cleared.
func (l *faultList) take(leg, requestID, model string) (*Fault, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range l.list {
		if !f.fits(leg, requestID, model) {
			continue
		}
		if f.left > 0 {
			if f.left--; f.left == 0 {
				l.list = slices.Delete(l.list, i, i+1)
			}
		}
		hit := f.Fault
		return &hit, l.cleared
	}
	return nil, l.cleared
}

var errCrashed = errors.New("crash fault")
