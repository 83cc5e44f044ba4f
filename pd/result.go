package pd

import (
	"errors"
	"fmt"
	"strconv"
)

// Result is what happened to a request, in HeaderDecision:
//
//	remote|local|refused;reason=<token>[;attempts=<n>;candidate=<index>]
//
// It goes to clients, so it contains no address.
type Result struct {
	Verdict   Verdict
	Reason    Reason
	Attempts  int // prefill legs that were sent; 0 = none, and Candidate has no meaning
	Candidate int // index in HeaderPrefill of the last candidate that was tried
}

// maxAttempts bounds the attempts in a header; real ones are few.
const maxAttempts = 1000

// ParseResult parses HeaderDecision.
func ParseResult(value string) (Result, error) {
	d := Result{Candidate: -1}
	head, err := splitParams(value, d.set)
	if err != nil {
		return Result{}, fmt.Errorf("reading %s: %w", HeaderDecision, err)
	}
	for _, v := range []Verdict{Local, Remote, Refused} {
		if head == v.String() {
			d.Verdict = v
		}
	}
	if d.Verdict == 0 {
		return Result{}, fmt.Errorf("reading %s: must begin with remote, local or refused", HeaderDecision)
	}
	if !d.Reason.Explains(d.Verdict) {
		return Result{}, fmt.Errorf("reading %s: reason %q does not explain %s", HeaderDecision, d.Reason, d.Verdict)
	}
	if (d.Attempts > 0) != (d.Candidate >= 0) {
		return Result{}, fmt.Errorf("reading %s: attempts and candidate come together", HeaderDecision)
	}
	d.Candidate = max(d.Candidate, 0)
	return d, nil
}

func (d *Result) set(name, v string) (err error) {
	switch name {
	case "reason":
		d.Reason = Reason(v)
	case "attempts":
		d.Attempts, err = parseCount(v)
	case "candidate":
		d.Candidate, err = parseCount(v)
	default:
		err = errUnknownParam
	}
	return err
}

// String returns the result in the form that ParseResult parses.
func (d Result) String() string {
	b := make([]byte, 0, 64)
	b = append(b, d.Verdict.String()...)
	b = append(append(b, ";reason="...), d.Reason...)
	if d.Attempts > 0 {
		b = strconv.AppendInt(append(b, ";attempts="...), int64(d.Attempts), 10)
		b = strconv.AppendInt(append(b, ";candidate="...), int64(d.Candidate), 10)
	}
	return string(b)
}

func parseCount(v string) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n > maxAttempts || v[0] < '0' { // a number has no sign
		return 0, errors.New("must be a count")
	}
	return n, nil
}
