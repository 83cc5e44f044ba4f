package cluster

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// row is what came of one scenario.
type row struct {
	name    string
	began   time.Time
	took    time.Duration
	outcome string
	skipped string   // why it was
	saw     []string // what was seen to be so

	mu       sync.Mutex // guards the fields below
	counts   tally
	stranded int // hand-offs that ran out
}

func (r *row) begin() { r.began = time.Now() }

// end closes the row, whichever way the scenario has ended.
func (r *row) end(t *testing.T) {
	if !r.began.IsZero() {
		r.took = time.Since(r.began)
	}
	switch {
	case t.Failed():
		r.outcome = "FAILED"
	case t.Skipped():
		r.outcome = "skipped"
	default:
		r.outcome = "ok"
	}
}

// add counts requests.
func (r *row) add(more tally) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.add(more)
}

// table returns a line of figures for each scenario, and below it what was seen.
func table(rows []*row) string {
	var b strings.Builder
	fmt.Fprintln(&b)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "scenario\toutcome\ttime\tright\tended by event\tcut\trefused\tfailed\thand-offs\tstranded\t")
	var total time.Duration
	var all tally
	for _, r := range rows {
		n := r.counts
		fmt.Fprintf(w, "%s\t%s\t%.1f s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", r.name, r.outcome, r.took.Seconds(), n.right, n.events, n.cut,
			n.refused, n.failed, n.remote, r.stranded)
		total += r.took
		all.add(n)
	}
	fmt.Fprintf(w, "all\t\t%.1f s\t%d\t%d\t%d\t%d\t%d\t%d\t\t\n", total.Seconds(), all.right, all.events, all.cut, all.refused, all.failed, all.remote)
	_ = w.Flush() // a strings.Builder takes everything
	for _, r := range rows {
		if r.skipped != "" {
			fmt.Fprintf(&b, "%s: %s\n", r.name, r.skipped)
		}
		for _, s := range r.saw {
			fmt.Fprintf(&b, "%s: %s\n", r.name, s)
		}
	}
	return b.String()
}
