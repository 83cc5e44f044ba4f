package scale

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

func TestStarts(t *testing.T) {
	const usual = 2 * time.Minute
	type event struct {
		at     time.Duration
		wanted int    // -1: no wish
		joins  string // "": none
		leaves string
	}
	wish := func(at time.Duration, wanted int) event { return event{at: at, wanted: wanted} }
	join := func(at time.Duration, replica string) event { return event{at: at, wanted: -1, joins: replica} }
	leave := func(at time.Duration, replica string) event { return event{at: at, wanted: -1, leaves: replica} }
	// starts of one replica after another, which take so many seconds
	each := func(seconds ...int) (all []event) {
		at := time.Duration(0)
		for i, s := range seconds {
			took := time.Duration(s) * time.Second
			all = append(all, wish(at, i+1), join(at+took, fmt.Sprint(i)))
			at += took
		}
		return all
	}
	for _, test := range []struct {
		name   string
		events []event
		want   time.Duration
	}{
		{"nothing", nil, usual},
		{"two are too few", each(10, 10), usual},
		{"the median", each(100, 30, 50), 50 * time.Second},
		{"one that waited for a node does not count for much", each(40, 40, 40, 3000), 40 * time.Second},
		{"the latest nine", each(900, 900, 900, 900, 900, 900, 60, 60, 60, 60, 60), time.Minute},
		{"those that were there were not wished for", []event{join(0, "a"), join(0, "b"), join(0, "c"), wish(0, 3)}, usual},
		{"at once", []event{wish(0, 3), join(time.Minute, "a"), join(time.Minute, "b"), join(3*time.Minute, "c")}, time.Minute},
		{"a wish that is repeated is as old as it is", []event{wish(0, 3), wish(time.Minute, 3), join(time.Minute, "a"), join(time.Minute, "b"), join(time.Minute, "c")}, time.Minute},
		{"a wish that is given up", []event{wish(0, 3), wish(50*time.Second, 0), wish(time.Minute, 3), join(90*time.Second, "a"), join(90*time.Second, "b"), join(90*time.Second, "c")}, 30 * time.Second},
		{"a wish that is not granted", []event{wish(0, 3), wish(2*time.Hour, 3), join(2*time.Hour+time.Minute, "a"), join(2*time.Hour+time.Minute, "b"), join(2*time.Hour+time.Minute, "c")}, time.Minute},
		{"the same replica joins again", []event{wish(0, 3), join(time.Minute, "a"), join(time.Minute, "a"), join(time.Minute, "a")}, usual},
		{"of two wishes the earlier one is granted first, whichever replica it was for", []event{wish(0, 3), join(time.Minute, "a"), join(time.Minute, "b"), leave(time.Minute, "b"), wish(time.Minute, 3), join(3*time.Minute, "b"), join(4*time.Minute, "c")}, 3 * time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			var s starts
			begin := time.Unix(1000, 0)
			for _, e := range test.events {
				now := begin.Add(e.at)
				if e.wanted >= 0 {
					s.wish(now, e.wanted)
				}
				if e.joins != "" {
					s.join(now, e.joins)
				}
				if e.leaves != "" {
					s.leave(e.leaves)
				}
			}
			if got := s.median(usual); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

// TestSizesForecastByStarts: after decode replicas have shown that they take eight minutes to start, a rising load is forecast as far ahead, also by a
// sizer that a reload has made.
func TestSizesForecastByStarts(t *testing.T) {
	const served = 33 // intervals: eight minutes after the first one
	rise := func(b *bench) (needed int, start time.Duration) {
		b.serve(t, 60, 1, 500, 100, nothing)
		for i := range 20 { // five minutes
			b.serve(t, 1, 2+4*float64(i), 2000, 200, nothing)
		}
		for _, s := range b.Sizes() {
			if s.Role == "decode" {
				needed, start = s.Needed, s.Start
			}
		}
		return needed, start
	}
	busy := func() *bench {
		b := startSizer(t, 1, 1)
		b.serve(t, served, 60, 500, 2000, nothing)
		if _, d := b.sizes(); d < 4 {
			t.Fatalf("%d decode replicas are wanted, want 4", d)
		}
		return b
	}
	usual, told := rise(busy())
	b := busy()
	for i := range 3 {
		e := epp.NewEndpoint("default", fmt.Sprintf("later-%d", i), netip.MustParseAddrPort(fmt.Sprintf("10.0.1.%d:8000", i)), "", map[string]string{pd.RoleLabel: "decode"})
		e.Slot = 10 + i
		b.EndpointJoined(e)
		b.EndpointLeft(e)
	}
	if err := b.Close(); err != nil { // before the next one sets the only timer of the clock
		t.Fatal(err)
	}
	reloaded := New(b.config, b.State, b.model, b.clock)
	for _, e := range append(b.prefill, b.decode...) {
		reloaded.EndpointJoined(e)
	}
	b.Sizer = reloaded
	more, learnt := rise(b)
	if told != 2*time.Minute || learnt < 7*time.Minute || learnt > 8*time.Minute {
		t.Errorf("replicas start within %v by the configuration, and %v by what was seen: want 2 and about 8 minutes", told, learnt)
	}
	if more <= usual {
		t.Errorf("%d decode replicas with a start of eight minutes, %d with two: want more", more, usual)
	}
}
