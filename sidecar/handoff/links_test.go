package handoff

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// fixedClock is a clock that only the test moves.
type fixedClock struct{ time.Time }

func (c *fixedClock) now() time.Time { return c.Time }

// series returns the metrics of links as a page shows them, without those of other names.
func series(t *testing.T, s *Links, names ...string) (lines []string) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(s)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if len(names) > 0 && !slices.Contains(names, f.GetName()) {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			value := fmt.Sprint(m.GetCounter().GetValue())
			if m.Summary != nil {
				value = fmt.Sprintf("%d, %vs", m.Summary.GetSampleCount(), m.Summary.GetSampleSum())
			}
			lines = append(lines, f.GetName()+" "+strings.Join(labels, " ")+" "+value)
		}
	}
	return lines
}

func TestLinks(t *testing.T) {
	clock := &fixedClock{time.Unix(1, 0)}
	s := NewLinks(1000, clock.now)
	s.Read("10.0.0.1:8000", 3, 250*time.Millisecond)
	s.Read("10.0.0.1:8000", 4, 0) // no stream
	s.Unread("10.0.0.1:8000", linkLate)
	s.Unread("10.0.0.2:8000", linkPrefill)
	want := []string{
		"tandem_kv_link_blocks_total 10.0.0.1:8000 7",
		"tandem_kv_link_blocks_total 10.0.0.2:8000 0",
		"tandem_kv_link_bytes_total 10.0.0.1:8000 7000",
		"tandem_kv_link_bytes_total 10.0.0.2:8000 0",
		"tandem_kv_link_handoffs_total 10.0.0.1:8000 late 1",
		"tandem_kv_link_handoffs_total 10.0.0.1:8000 read 2",
		"tandem_kv_link_handoffs_total 10.0.0.2:8000 prefill-failed 1",
		"tandem_kv_link_seconds 10.0.0.1:8000 1, 0.25s",
		"tandem_kv_link_seconds 10.0.0.2:8000 0, 0s",
	}
	if got := series(t, s); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Without the size of a block there is no metric of bytes, rather than a wrong one.
func TestLinksOfUnknownBlocks(t *testing.T) {
	s := NewLinks(0, time.Now)
	s.Read("10.0.0.1:8000", 3, 0)
	if got := series(t, s, "tandem_kv_link_bytes_total"); got != nil {
		t.Errorf("got %q", got)
	}
}

// However many pods there are, the number of series is bounded; pods that are gone make space for others.
func TestLinksAreBounded(t *testing.T) {
	clock := &fixedClock{time.Unix(1, 0)}
	s := NewLinks(0, clock.now)
	use := func(from, to int) {
		for i := from; i < to; i++ {
			s.Unread(fmt.Sprintf("10.0.0.%d:8000", i), linkPrefill)
		}
	}
	pods := func() int { return len(series(t, s, "tandem_kv_link_blocks_total")) }
	use(0, 10*maxLinks)
	if got := pods(); got != maxLinks+1 {
		t.Errorf("%d pods, want %d and one for all others", got, maxLinks)
	}
	if got := s.pod[otherLinks].results[linkPrefill]; got != 9*maxLinks {
		t.Errorf("%d hand-offs of other pods, want %d", got, 9*maxLinks)
	}
	clock.Time = clock.Add(linkIdle)
	use(0, 1)
	clock.Time = clock.Add(time.Second)
	use(1000, 1001)
	if s.pod["10.0.0.1000:8000"] == nil || s.pod["10.0.0.0:8000"] == nil || len(s.pod) != 2 {
		t.Errorf("%d pods are left an hour after most had their last hand-off, want the used one and a new one", len(s.pod))
	}
	clock.Time = clock.Add(linkIdle + time.Second)
	if got := pods(); got != 0 {
		t.Errorf("%d pods are left that are gone", got)
	}
}
