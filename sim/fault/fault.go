package fault

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault is something that goes wrong on purpose. Of several, each request takes the first that matches it.
type Fault struct {
	// Leg says which requests it hits: "prefill" (those whose params ask for a remote decode), "decode" (all others that
	// generate), or "any" (also the default), which includes every other path of the data port but /metrics.
	Leg string `json:"leg"`
	// Fault is the name of a kind; Usage describes the kinds.
	Fault string `json:"fault"`
	// Arg is milliseconds, a status or the name of a damage: see Usage.
	Arg string `json:"arg"`
	// At moves reset-after, truncate, slow or crash to a point of the answer: see Usage. A crash at a point is the death of the
	// whole process: the connection is reset, and the port closes.
	At string `json:"at,omitempty"`
	// Count is how many requests it hits before it ends; 0: no limit.
	Count int `json:"count"`
	// Match is a part of the request's X-Request-Id or model; empty matches all.
	Match string `json:"match"`
}

// The values of Fault.Fault.
const (
	Refuse      = "refuse"
	ResetBefore = "reset-before"
	ResetAfter  = "reset-after"
	Truncate    = "truncate"
	Slow        = "slow"
	Status      = "status"
	Crash       = "crash"
	NoHandoff   = "no-handoff"
	BadHandoff  = "bad-handoff"
	Stale       = "stale"
)

// The values of Fault.Leg.
const (
	LegPrefill = "prefill"
	LegDecode  = "decode"
	LegAny     = "any"
)

// Forever is the Arg of a slow fault that lasts until the faults are cleared.
const Forever = "stop"

// Is reports whether a fault is of a kind. A nil fault is of none: most requests have no fault.
func (f *Fault) Is(kind string) bool { return f != nil && f.Fault == kind }

// normalize sets the default leg, and returns what is wrong with the fault.
func (f *Fault) normalize() error {
	if f.Leg == "" {
		f.Leg = LegAny
	}
	if !slices.Contains([]string{LegPrefill, LegDecode, LegAny}, f.Leg) {
		return fmt.Errorf("leg %q: want prefill, decode or any", f.Leg)
	}
	if f.Count < 0 {
		return fmt.Errorf("count %d: want 0 or more", f.Count)
	}
	if _, err := f.Point(); err != nil {
		return err
	}
	switch f.Fault {
	case Slow:
		if _, err := f.Delay(); err != nil {
			return err
		}
	case Status:
		if _, err := f.Status(); err != nil {
			return err
		}
	case BadHandoff:
		if _, ok := damages[f.Arg]; !ok {
			return fmt.Errorf("arg %q: want one of %s", f.Arg, strings.Join(Damages(), ", "))
		}
	default:
		if !slices.ContainsFunc(kinds, func(k kind) bool { return k.name == f.Fault }) {
			return fmt.Errorf("fault %q is not known: want one of %s", f.Fault, strings.Join(Kinds(), ", "))
		}
	}
	return nil
}

// Delay returns how long a slow fault holds a request back; 0 for Forever.
func (f *Fault) Delay() (time.Duration, error) {
	if f.Arg == Forever {
		return 0, nil
	}
	ms, err := strconv.ParseFloat(f.Arg, 64)
	if err != nil || ms < 0 {
		return 0, fmt.Errorf("arg %q: want milliseconds, or %q", f.Arg, Forever)
	}
	return time.Duration(ms * float64(time.Millisecond)), nil
}

// Status returns the HTTP status that a status fault answers with.
func (f *Fault) Status() (int, error) {
	code, err := strconv.Atoi(f.Arg)
	if err != nil || code < http.StatusBadRequest || code > 599 {
		return 0, fmt.Errorf("arg %q: want an HTTP status from 400 to 599", f.Arg)
	}
	return code, nil
}

// closesPort reports whether the fault hits every request, so that the port can be closed instead.
func (f *Fault) closesPort() bool {
	return f.Fault == Refuse && f.Leg == LegAny && f.Match == "" && f.Count == 0
}

func (f *Fault) matches(leg, requestID, model string) bool {
	return (f.Leg == LegAny || f.Leg == leg) &&
		(f.Match == "" || strings.Contains(requestID, f.Match) || strings.Contains(model, f.Match))
}
