package workload

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/epp/capture"
)

// captured reads captures of Tandem's picker.
func (r *reading) captured(from io.Reader) error {
	c, err := capture.Read(from, r.unusable)
	if err != nil {
		return err
	}
	r.capture = c
	var known []int64
	prioritized := false
	for i := range c.Requests {
		prioritized = prioritized || c.Requests[i].Priority != 0
		if n := c.Requests[i].OutputTokens; n >= 0 {
			known = append(known, n)
		}
	}
	if len(known) == 0 {
		return fmt.Errorf("the length of no answer is known: the gateway must send the headers and trailers of answers to the picker")
	}
	slices.Sort(known)
	median := known[len(known)/2]
	for i := range c.Requests {
		q := &c.Requests[i]
		call := Call{Due: time.Duration(q.Arrived) * time.Microsecond, Input: q.InputTokens, Output: int(q.OutputTokens), Blocks: q.Blocks,
			BlockTokens: c.BlockTokens(), session: r.session(q.Session), Think: time.Duration(max(0, q.Phases.Total)) * time.Microsecond}
		if q.OutputTokens < 0 {
			call.Output = int(median)
		}
		if prioritized {
			call.Class = r.class(Class{Name: fmt.Sprintf("priority %d", q.Priority), Share: 1, Priority: q.Priority})
		}
		if err := r.add("request", i+1, call, nil); err != nil {
			return err
		}
	}
	if n := len(c.Requests) - len(known); n > 0 {
		r.note = fmt.Sprintf("the length of %d answers is not known: they are taken to have %d tokens, the median of the others", n, median)
	}
	return nil
}
