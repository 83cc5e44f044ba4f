package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// dist is a distribution of lengths, or of times. Values beyond least and most become least and most.
type dist struct {
	kind        kind
	mean        float64
	spread      float64 // standard deviation: of a normal distribution, or of a lognormal one's logarithm
	least, most float64 // most 0: unbounded
}

// kind is a kind of distribution.
type kind uint8

const (
	fixedKind kind = iota
	uniformKind
	normalKind
	exponentialKind // above least
	lognormalKind
)

// fixed is always n.
func fixed(n float64) dist { return dist{mean: n} }

// between has all whole numbers from least to most equally often.
func between(least, most float64) dist {
	return dist{kind: uniformKind, mean: (least + most) / 2, least: least, most: most}
}

// around is a normal distribution.
func around(mean, spread, least, most float64) dist {
	return dist{normalKind, mean, spread, least, most}
}

// decaying is an exponential distribution above least: many small values, few large ones.
func decaying(mean, least, most float64) dist {
	return dist{kind: exponentialKind, mean: mean, least: least, most: most}
}

// skewed is a lognormal distribution of this mean.
func skewed(mean, spread, least, most float64) dist {
	return dist{lognormalKind, mean, spread, least, most}
}

// draw returns a value. A fixed one takes no random number.
func (d dist) draw(r *rand.Rand) float64 {
	v := d.mean
	switch d.kind {
	case uniformKind:
		v = d.least + float64(r.IntN(int(d.most-d.least)+1))
	case normalKind:
		v += d.spread * r.NormFloat64()
	case exponentialKind:
		v = d.least + (d.mean-d.least)*r.ExpFloat64()
	case lognormalKind:
		v = d.mean * math.Exp(d.spread*r.NormFloat64()-d.spread*d.spread/2)
	}
	if v = max(v, d.least); d.most > 0 {
		v = min(v, d.most)
	}
	return v
}

// tokens returns a length.
func (d dist) tokens(r *rand.Rand) int { return int(math.Round(d.draw(r))) }

// seconds returns a time; the distribution is in seconds.
func (d dist) seconds(r *rand.Rand) time.Duration {
	return time.Duration(d.draw(r) * float64(time.Second))
}

// Rates are the requests in a second at the beginning and at the end; in between the rate changes evenly.
type Rates struct{ First, Last float64 }

// maxRate bounds a rate.
const maxRate = 1e6

// UnmarshalText reads a rate such as 8, or two such as 3-60.
func (s *Rates) UnmarshalText(text []byte) error {
	first, last, changes := strings.Cut(string(text), "-")
	if !changes {
		last = first
	}
	var ends [2]float64
	for i, s := range []string{first, last} {
		v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil || !(v > 0 && v <= maxRate) {
			return fmt.Errorf("%q is not a rate such as 8, or two such as 3-60", text)
		}
		ends[i] = v
	}
	*s = Rates{ends[0], ends[1]}
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (s Rates) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String returns the rate or the rates as text; "" if there are none.
func (s Rates) String() string {
	first, last := strconv.FormatFloat(s.First, 'g', -1, 64), strconv.FormatFloat(s.Last, 'g', -1, 64)
	switch {
	case s == Rates{}:
		return ""
	case s.First == s.Last:
		return first
	}
	return first + "-" + last
}

// Arrivals say when sessions begin.
type Arrivals struct {
	Rates    Rates
	Constant bool // evenly spaced; otherwise a Poisson process
}

// Space sets when the first turns of calls are due.
func (a Arrivals) Space(r *rand.Rand, calls []Call) {
	n := 0
	for i := range calls {
		if calls[i].After == 0 {
			n++
		}
	}
	expected := 0.0 // arrivals until then
	for i := range calls {
		if calls[i].After > 0 {
			continue
		}
		if !a.Constant {
			expected += r.ExpFloat64()
		}
		calls[i].Due = time.Duration(a.Rates.after(expected, float64(n)) * float64(time.Second))
		if a.Constant {
			expected++
		}
	}
}

// after returns the seconds after which so many of n arrivals are expected: the rate changes over all n.
func (s Rates) after(expected, n float64) float64 {
	change := (s.Last - s.First) * (s.First + s.Last) / (2 * n) // in a second
	// expected = First·t + change·t²/2. With a falling rate, arrivals beyond the last expected one may have no solution.
	root := math.Sqrt(max(0, s.First*s.First+2*change*expected))
	return 2 * expected / (s.First + root)
}
