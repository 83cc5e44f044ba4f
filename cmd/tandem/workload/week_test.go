package workload

import (
	"math/rand/v2"
	"testing"
	"time"
)

var wholeWeek = []int{0, 1, 2, 3, 4, 5, 6}

// TestDaysOfAWeek: some days are as they are in the whole week, and follow one another.
func TestDaysOfAWeek(t *testing.T) {
	random := func() *rand.Rand { return rand.New(rand.NewPCG(1, 1)) }
	whole, some := minutes(random(), UsualWeek, 2, wholeWeek), minutes(random(), UsualWeek, 2, []int{3, 5})
	const day = 24 * 60
	if len(some) != 2*day || some[0] != whole[3*day] || some[day] != whole[5*day] {
		t.Errorf("%d minutes, which begin with %v and %v", len(some), some[0], some[day])
	}
	if n, want := OfWeek(random(), UsualWeek, 2, wholeWeek), int(2*Week.Seconds()); n < want-1 || n > want+1 {
		t.Errorf("%d calls in a week, want %d", n, want)
	}
}

// hours returns how many calls are due in each hour.
func hours(calls []Call) (n []int) {
	for i := range calls {
		for h := int(calls[i].Due.Hours()); len(n) <= h; {
			n = append(n, 0)
		}
		n[int(calls[i].Due.Hours())]++
	}
	return n
}

// TestSpaceWeek: a week has the mean rate, a daily pattern, a quiet weekend and a flash crowd, and the next week too.
func TestSpaceWeek(t *testing.T) {
	const rate = 0.5
	calls := make([]Call, int(rate*2*Week.Seconds()))
	SpaceWeek(rand.New(rand.NewPCG(1, 1)), calls, UsualWeek, rate, wholeWeek)
	for i := 1; i < len(calls); i++ {
		if calls[i].Due < calls[i-1].Due {
			t.Fatalf("call %d is due before the one before it", i)
		}
	}
	if last := calls[len(calls)-1].Due; last < 2*Week-3*time.Hour || last > 2*Week+3*time.Hour {
		t.Errorf("two weeks of calls last %v", last)
	}
	n := hours(calls)
	days, night := 0, 0
	weekdays, weekends := 0, 0
	for h, calls := range n[:7*24] {
		switch h % 24 {
		case 14, 15:
			days += calls
		case 2, 3:
			night += calls
		}
		if h/24 < 5 {
			weekdays += calls
		} else {
			weekends += calls
		}
	}
	if ratio := float64(days) / float64(night); ratio < 3 || ratio > 8 {
		t.Errorf("the afternoon has %.1f times the calls of the night", ratio)
	}
	if ratio := float64(weekends) / 2 / (float64(weekdays) / 5); ratio < 0.4 || ratio > 0.65 {
		t.Errorf("a day of the weekend has %.2f times the calls of a working day", ratio)
	}
	for week := range 2 {
		crowd, usual := 0, 0
		for i := range calls {
			switch at := calls[i].Due - time.Duration(week)*Week - FlashAt - flashRise; {
			case at >= 0 && at < flashLast:
				crowd++
			case at >= -time.Hour && at < -time.Hour+flashLast:
				usual++
			}
		}
		if ratio := float64(crowd) / float64(usual); ratio < 3.5 || ratio > 7 {
			t.Errorf("week %d: the flash crowd is %.1f times the load of the hour before, want about 5", week+1, ratio)
		}
	}
}

// TestOfficeWeek: from one minute to the next the rate becomes ten times as high at nine, and falls at five; the weekend is quiet.
func TestOfficeWeek(t *testing.T) {
	calls := make([]Call, int(Week.Seconds()))
	SpaceWeek(rand.New(rand.NewPCG(1, 1)), calls, OfficeWeek, 1, wholeWeek)
	n := hours(calls)
	for _, test := range []struct {
		day, hour   int
		least, most float64 // times the calls of the hour before
	}{{0, 9, 6, 16}, {0, 12, 0.5, 2}, {4, 17, 0.05, 0.2}, {5, 9, 0.5, 2}, {6, 17, 0.5, 2}} {
		at := test.day*24 + test.hour
		if ratio := float64(n[at]) / float64(n[at-1]); ratio < test.least || ratio > test.most {
			t.Errorf("day %d has %d calls in the hour from %d:00 and %d before, want %v to %v times as many", test.day, n[at], test.hour, n[at-1], test.least, test.most)
		}
	}
}

// TestWeeksAreReproducible: the same seed gives the same week, another one another.
func TestWeeksAreReproducible(t *testing.T) {
	spaced := func(seed uint64) []Call {
		calls := make([]Call, 1000)
		SpaceWeek(rand.New(rand.NewPCG(seed, 1)), calls, UsualWeek, 0.1, wholeWeek)
		return calls
	}
	if a, b := spaced(1), spaced(1); a[999].Due != b[999].Due {
		t.Errorf("%v and %v of the same seed", a[999].Due, b[999].Due)
	}
	if a, b := spaced(1), spaced(2); a[999].Due == b[999].Due {
		t.Error("two seeds give the same week")
	}
}

// TestLaterTurnsAreNotSpaced: later turns wait for the answer before them.
func TestLaterTurnsAreNotSpaced(t *testing.T) {
	calls := []Call{{}, {After: 1}, {}}
	SpaceWeek(rand.New(rand.NewPCG(1, 1)), calls, UsualWeek, 0.01, wholeWeek)
	if calls[0].Due == 0 || calls[1].Due != 0 || calls[2].Due <= calls[0].Due {
		t.Errorf("%+v", calls)
	}
}
