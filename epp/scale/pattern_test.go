package scale

import (
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
)

// monday is when the first day of these tests begins.
var monday = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

const slowStart = 20 * time.Minute

// office is the rate of a pool that is used from nine to five, but for twenty minutes at noon.
func office(t time.Time) float64 {
	switch minute := t.Hour()*60 + t.Minute(); {
	case minute >= 12*60 && minute < 12*60+20:
		return 10
	case minute >= 9*60 && minute < 17*60:
		return 100
	}
	return 10
}

// of returns the demand of so many requests in a second.
func of(rate float64) amounts { return amounts{rate, 1000 * rate, 100 * rate} }

func newOffice(days Days) *pattern { return newPattern(Pattern{Days: days, Share: 0.8}) }

// see has a pattern learn from one moment to another, along with a trend that expects what is there.
func (p *pattern) see(from, to time.Time, rate func(time.Time) float64) {
	for now := from.Add(Interval); !now.After(to); now = now.Add(Interval) {
		present := of(rate(now.Add(-Interval / 2)))
		p.learn(now, Interval, present, now.Add(slowStart), present)
	}
}

// days returns a moment so many days after monday, at an hour.
func days(n int, at time.Duration) time.Time { return monday.AddDate(0, 0, n).Add(at) }

func clockTime(hour, minute int) time.Duration {
	return time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute
}

// TestPatternForecastsAnEdge: after two days, the demand rises as long before nine as a replica takes to start. The lull at noon takes no replicas away,
// because it ends within that time. How busy the day is after the rise, the trend knows.
func TestPatternForecastsAnEdge(t *testing.T) {
	p := newOffice(DaysAlike)
	p.see(days(0, 0), days(2, 0), office)
	for _, test := range []struct {
		hour, minute int
		relied, held float64 // 0: the trend knows more
	}{{3, 0, 0, 10}, {8, 30, 0, 10}, {8, 36, 100, 100}, {8, 59, 100, 100}, {9, 0, 100, 100}, {9, 29, 100, 100}, {9, 30, 0, 100}, {12, 5, 100, 100}, {16, 55, 0, 100},
		{17, 0, 0, 10}, {23, 50, 0, 10}} {
		got := p.ahead(days(2, clockTime(test.hour, test.minute)), slowStart)
		if got.relied != of(test.relied) || got.held != of(test.held) || !got.inUse {
			t.Errorf("at %d:%02d %+v, want %v requests a second, and not fewer replicas than for %v", test.hour, test.minute, got, test.relied, test.held)
		}
	}
}

// TestPatternNeedsTwoDays: before there are two days it has no effect, and says so.
func TestPatternNeedsTwoDays(t *testing.T) {
	p := newOffice(DaysAlike)
	edge := clockTime(8, 50)
	for n := range 4 {
		p.see(days(n, 0), days(n, edge), office)
		got := p.ahead(days(n, edge), slowStart)
		if got.inUse != (n >= 2) || got.inUse != (got.relied != amounts{}) {
			t.Errorf("after %d days %+v", n, got)
		}
		p.see(days(n, edge), days(n+1, 0), office)
	}
}

// TestPatternIgnoresAnOddDay: a holiday, or a day with ten times the requests, changes nothing for the days after it.
func TestPatternIgnoresAnOddDay(t *testing.T) {
	for name, factor := range map[string]float64{"holiday": 0, "half": 0.5, "crowd": 10} {
		t.Run(name, func(t *testing.T) {
			p := newOffice(DaysAlike)
			p.see(days(0, 0), days(5, 0), office)
			p.see(days(5, 0), days(6, 0), func(t time.Time) float64 { return factor * office(t) })
			p.see(days(6, 0), days(6, clockTime(8, 40)), office)
			if got := p.ahead(days(6, clockTime(8, 40)), slowStart); got.relied != of(100) {
				t.Errorf("%+v, want 100 requests a second", got)
			}
		})
	}
}

// TestPatternGivesUpForToday: on a holiday the pattern stops counting soon after what it forecast has not come.
func TestPatternGivesUpForToday(t *testing.T) {
	p := newOffice(DaysAlike)
	quiet := func(time.Time) float64 { return 10 }
	p.see(days(0, 0), days(5, 0), office)
	p.see(days(5, 0), days(5, clockTime(8, 59)), quiet)
	if got := p.ahead(days(5, clockTime(8, 59)), slowStart); !got.inUse {
		t.Errorf("%+v before nine", got)
	}
	p.see(days(5, clockTime(8, 59)), days(5, clockTime(9, 21)), quiet)
	if got := p.ahead(days(5, clockTime(9, 21)), slowStart); got.inUse {
		t.Errorf("%+v when nothing has come for twenty minutes", got)
	}
}

// TestPatternChanges: hours that move make the pattern lose confidence, until days of the new kind are most of those that it knows.
func TestPatternChanges(t *testing.T) {
	p := newOffice(DaysAlike)
	late := func(t time.Time) float64 { return office(t.Add(-5 * time.Hour)) }
	p.see(days(0, 0), days(6, 0), office)
	if c := p.confidence(0, ofRequests); c < 0.9 {
		t.Errorf("confidence %v when every day was alike", c)
	}
	p.see(days(6, 0), days(8, 0), late)
	if c := p.confidence(0, ofRequests); c >= 0.8 {
		t.Errorf("confidence %v after two days with other hours", c)
	}
	if got := p.ahead(days(8, clockTime(8, 45)), slowStart); got.usual != of(10) {
		t.Errorf("%+v at the old hours after two days with other ones", got)
	}
	p.see(days(8, 0), days(14, 0), late)
	got := p.ahead(days(14, clockTime(13, 45)), slowStart)
	if got.relied != of(100) || p.ahead(days(14, clockTime(8, 45)), slowStart).usual != of(10) {
		t.Errorf("%+v after a week of the new hours", got)
	}
}

// TestPatternOfNoPattern: where the load has steps at random hours, the pattern is not relied upon.
func TestPatternOfNoPattern(t *testing.T) {
	p := newOffice(DaysAlike)
	step := []int{3, 19, 8, 14, 1, 22, 11, 5, 16}
	for n, hour := range step {
		p.see(days(n, 0), days(n+1, 0), func(t time.Time) float64 {
			if h := t.Hour(); h == hour || h == hour+1 {
				return 100
			}
			return 10
		})
		for hour := range 24 {
			if got := p.ahead(days(n+1, clockTime(hour, 0)), slowStart); got.usual[ofRequests] > 10 {
				t.Errorf("after %d days, at %d:00: %+v", n+1, hour, got)
			}
		}
	}
}

// TestPatternOfDays: which days are alike decides what is expected of a Saturday and a Monday.
func TestPatternOfDays(t *testing.T) {
	week := func(t time.Time) float64 {
		switch t.Weekday() {
		case time.Saturday, time.Sunday:
			return 10
		case time.Monday:
			return 2 * office(t)
		}
		return office(t)
	}
	for _, test := range []struct {
		days             Days
		monday, saturday float64
	}{{DaysWeekend, 100, 10}, {DaysOfWeek, 200, 10}} {
		p := newOffice(test.days)
		p.see(days(0, 0), days(14, 0), week)
		for n, want := range map[int]float64{14: test.monday, 19: test.saturday} {
			if got := p.ahead(days(n, clockTime(10, 0)), slowStart).usual; got[ofRequests] != want {
				t.Errorf("%s, day %d: %v, want %v", test.days, n, got, want)
			}
		}
	}
}

// TestPatternOfAZone: hours are those of the zone, also after its clocks have been set forward.
func TestPatternOfAZone(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	p := newPattern(Pattern{Days: DaysAlike, Zone: berlin, Share: 0.8})
	local := func(t time.Time) float64 { return office(t.In(berlin)) }
	change := time.Date(2026, 3, 29, 0, 0, 0, 0, berlin)
	p.see(change.AddDate(0, 0, -4), change.AddDate(0, 0, 1), local)
	if got := p.ahead(time.Date(2026, 3, 30, 8, 40, 0, 0, berlin), slowStart); got.relied != of(100) {
		t.Errorf("%+v twenty minutes before nine in summer time", got)
	}
	if got := p.ahead(time.Date(2026, 3, 30, 7, 40, 0, 0, berlin), slowStart); got.usual != of(10) {
		t.Errorf("%+v an hour earlier", got)
	}
}

// TestPatternSurvivesStepsOfTheClock: a clock that was wrong for a while leaves days behind that cannot have been, and they are forgotten.
func TestPatternSurvivesStepsOfTheClock(t *testing.T) {
	p := newOffice(DaysAlike)
	crowd := func(time.Time) float64 { return 1000 }
	p.see(days(0, 0), days(4, 0), office)
	p.see(days(3000, 0), days(3002, 0), crowd)                                 // years ahead
	p.see(days(4, 0), days(4, clockTime(3, 0)), office)                        // and back
	p.see(days(4, clockTime(14, 0)), days(4, clockTime(14, 30)), crowd)        // hours ahead
	p.see(days(3, clockTime(23, 59)), days(4, 0), office)                      // into yesterday
	p.see(days(4, clockTime(3, 0)), days(4, clockTime(8, 40)), office)         // and right
	p.learn(days(4, clockTime(8, 40)), 9*time.Hour, of(1e6), monday, of(1e-6)) // an interval that lasted for hours
	if got := p.ahead(days(4, clockTime(8, 40)), slowStart); got.relied != of(100) {
		t.Errorf("%+v, want 100 requests a second", got)
	}
	for _, d := range p.kinds[0].days {
		if d.number > p.open.day {
			t.Errorf("day %d is kept on day %d", d.number, p.open.day)
		}
	}
}

// TestPatternWithGaps: a bucket of which less than half was seen is not known.
func TestPatternWithGaps(t *testing.T) {
	p := newOffice(DaysAlike)
	for n := range 3 {
		p.see(days(n, 0), days(n, clockTime(9, 4)), office)
		p.see(days(n, clockTime(9, 10)), days(n+1, 0), office)
	}
	if _, known := p.usual(p.at(days(3, clockTime(9, 0)))); known != 0 {
		t.Errorf("%d days are known of ten minutes of which four were seen", known)
	}
	if d, known := p.usual(p.at(days(3, clockTime(9, 10)))); known != 3 || d != of(100) {
		t.Errorf("%v of %d days, want 100 of 3", d, known)
	}
}

// TestPatternIsBounded: whatever the days, a pattern keeps six of each kind, and few forecasts of the trend.
func TestPatternIsBounded(t *testing.T) {
	p := newOffice(DaysOfWeek)
	for n := 0; n < 400; n++ {
		for hour := range 24 {
			now := days(n, clockTime(hour, 1))
			p.learn(now, Interval, of(10), now.Add(time.Duration(n)*time.Hour), of(10))
		}
	}
	for i := range p.kinds {
		if n := len(p.kinds[i].days); n > keptDays+1 || cap(p.kinds[i].days) > 4*keptDays {
			t.Errorf("%d days of kind %d are kept, with space for %d", n, i, cap(p.kinds[i].days))
		}
	}
	if len(p.guesses) > mostGuesses || len(p.scores) > recentScores {
		t.Errorf("%d guesses and %d scores are kept", len(p.guesses), len(p.scores))
	}
}

// TestLoadIsRaised: a load becomes at least a demand, and its prompts and answers as long as the demand has them.
func TestLoadIsRaised(t *testing.T) {
	for _, test := range []struct {
		name string
		to   amounts
		want amounts
	}{
		{"nothing is known", amounts{}, of(10)},
		{"less", of(5), of(10)},
		{"more of the same", of(30), of(30)},
		{"more requests of unknown length", amounts{30}, of(30)},
		{"longer prompts", amounts{10, 20000, 1000}, amounts{10, 20000, 1000}},
		{"more and shorter ones", amounts{40, 20000, 4000}, amounts{40, 20000, 4000}},
		{"longer ones alone", amounts{0, 20000, 0}, amounts{10, 20000, 1000}},
		{"no longer than four times", amounts{10, 1e6, 1e6}, amounts{10, 40000, 4000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			prompts := []Prompts{{Share: 0.5, Tokens: 500}, {Share: 0.5, Tokens: 1500}}
			l := Load{Rate: 10, Prompts: prompts, Prompt: 2000, Answer: 100}
			l.raise(test.to)
			for i, got := range l.amounts() {
				if want := test.want[i]; got < 0.999*want || got > 1.001*want {
					t.Errorf("%v, want %v", l.amounts(), test.want)
					break
				}
			}
			if prompts[0].Tokens != 500 {
				t.Error("the prompts of the other load have changed")
			}
		})
	}
}

// early is when the busy hours of TestSizesGoAheadOfAnEdge begin: the clock of a bench starts at 0:16.
const early = time.Hour

// startPatterned starts a sizer whose replicas take twenty minutes, and which has seen three days with busy hours from one to nine.
func startPatterned(t *testing.T, c Pattern, busy, quiet float64) *bench {
	t.Helper()
	return startAfter(t, c, func(at time.Duration) float64 {
		if at >= early && at < 9*time.Hour {
			return busy
		}
		return quiet
	})
}

// startAfter does so for other days, by the rate at a time of day.
func startAfter(t *testing.T, c Pattern, rate func(at time.Duration) float64) *bench {
	t.Helper()
	b := startSizer(t, 1, 1)
	b.config.Prefill.Ready, b.config.Decode.Ready = slowStart, slowStart
	b.config.Pattern = c
	b.learnPattern(c)
	if b.pattern != nil {
		begin := time.Unix(0, 0).UTC()
		b.pattern.see(begin.AddDate(0, 0, -3), begin, func(t time.Time) float64 { return rate(t.Sub(t.Truncate(24 * time.Hour))) })
	}
	return b
}

// TestSizesGoAheadOfAnEdge: replicas are wanted so early that they serve when the busy hours begin, and as many as these take.
func TestSizesGoAheadOfAnEdge(t *testing.T) {
	const quiet, busy = 1, 100
	serve := func(c Pattern, intervals int, rate float64) (*bench, int, int) {
		b := startPatterned(t, c, busy, quiet)
		b.serve(t, intervals, rate, 1000, 100, nothing)
		p, d := b.sizes()
		return b, p, d
	}
	_, wantP, wantD := serve(Pattern{}, 60, busy)
	_, fewP, fewD := serve(Pattern{}, 84, quiet)
	if wantP < fewP+3 {
		t.Fatalf("%d+%d replicas for the busy hours, %d+%d for the others: the test would show nothing", wantP, wantD, fewP, fewD)
	}
	c := Pattern{Days: DaysAlike, Share: 0.8}
	if _, p, d := serve(c, 56, quiet); p > fewP || d > fewD { // 0:30
		t.Errorf("%d+%d replicas half an hour before, want %d+%d", p, d, fewP, fewD)
	}
	b, p, d := serve(c, 84, quiet) // 0:37
	if p < wantP-1 || d < wantD {
		t.Errorf("%d+%d replicas twenty minutes before the busy hours, want %d+%d", p, d, wantP, wantD)
	}
	b.serve(t, 60, quiet, 1000, 100, func() { // until 0:52
		if sameP, sameD := b.sizes(); sameP < p || sameD < d {
			t.Fatalf("%d+%d replicas before the busy hours, after %d+%d", sameP, sameD, p, d)
		}
	})
}

// TestSizesOutlastALull: replicas stay through a lull that is usual at that hour and ends before new ones would serve. By the trend alone they go.
func TestSizesOutlastALull(t *testing.T) {
	const quiet, busy = 1, 100
	lull := func(at time.Duration) float64 {
		if at >= 20*time.Minute && at < 50*time.Minute {
			return quiet
		}
		return busy
	}
	after := func(c Pattern) (before, p int) {
		b := startAfter(t, c, lull)
		b.serve(t, 14, busy, 1000, 100, nothing) // until 0:20
		before, _ = b.sizes()
		b.serve(t, 104, quiet, 1000, 100, nothing) // until 0:46
		p, _ = b.sizes()
		return before, p
	}
	if before, p := after(Pattern{}); p >= before {
		t.Fatalf("%d replicas, before %d: the lull takes none away, and the test would show nothing", p, before)
	}
	if before, p := after(Pattern{Days: DaysAlike, Share: 0.8}); p < before-1 {
		t.Errorf("%d replicas before the lull ends, %d before it has begun", p, before)
	}
}

// TestPatternMetrics: the forecasts are told, and only where a pattern is learnt.
func TestPatternMetrics(t *testing.T) {
	registry := func(b *bench) *prometheus.Registry {
		r := prometheus.NewRegistry()
		r.MustRegister(b.Sizer)
		return r
	}
	b := startPatterned(t, Pattern{Days: DaysAlike, Share: 0.8}, 30, 1)
	b.serve(t, 84, 1, 1000, 100, nothing)
	for metric, want := range map[string]struct {
		n           int
		least, most float64
	}{
		"tandem_forecast_requests_per_second": {2, 30.5, 33}, "tandem_pattern_confidence": {1, 0.9, 1}, "tandem_pattern_in_use": {1, 1, 1},
	} {
		if n, sum := gathered(t, registry(b), metric); n != want.n || sum < want.least || sum > want.most {
			t.Errorf("%s: %d series with a sum of %v, want %+v", metric, n, sum, want)
		}
		if n, _ := gathered(t, registry(startSizer(t, 1, 1)), metric); n != 0 {
			t.Errorf("%s has %d series without a pattern", metric, n)
		}
	}
}

// TestPatternOutlivesAReload: a sizer of a new configuration goes on with what was learnt, unless it is of other days or hours.
func TestPatternOutlivesAReload(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		then Pattern
		kept bool
	}{
		{"the same", Pattern{Days: DaysAlike, Share: 0.8}, true},
		{"another share", Pattern{Days: DaysAlike, Share: 0.5}, true},
		{"other days", Pattern{Days: DaysWeekend, Share: 0.8}, false},
		{"another zone", Pattern{Days: DaysAlike, Zone: berlin, Share: 0.8}, false},
		{"none", Pattern{}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock := &handClock{now: monday}
			state := new(State)
			first := New(Config{Pattern: Pattern{Days: DaysAlike, Share: 0.8}}, state, latency.NewModel(clock), clock)
			learnt := state.pattern
			second := New(Config{Pattern: test.then}, state, latency.NewModel(clock), clock)
			if kept := state.pattern == learnt; kept != test.kept || state.pattern != nil && state.pattern.Share != test.then.Share {
				t.Errorf("kept: %v, want %v", kept, test.kept)
			}
			for _, s := range []*Sizer{first, second} {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestPatternWithoutRaces computes sizes, counts picks and reads metrics at the same time, which the race detector watches.
func TestPatternWithoutRaces(t *testing.T) {
	b := startPatterned(t, Pattern{Days: DaysAlike, Share: 0.8}, 30, 1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(b.Sizer)
	d := b.decision(1000)
	var all sync.WaitGroup
	for _, run := range []func(){
		func() { b.clock.advance() },
		func() { b.Picked(nil, nil, d) },
		func() { b.Observe(&epp.Outcome{Decision: d}) },
		func() { _, _ = registry.Gather() },
		func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.learnPattern(b.config.Pattern)
		},
	} {
		all.Go(func() {
			for range 100 {
				run()
			}
		})
	}
	all.Wait()
}
