package load

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// objective is a service level objective: upper bounds for what one request may take, in the order of bounds.
type objective map[string]time.Duration

// bounds are what can be bounded.
var bounds = []string{"ttft", "tpot", "itl", "e2e"}

// UnmarshalText reads bounds such as ttft=500ms,itl=50ms.
func (o *objective) UnmarshalText(text []byte) error {
	read := objective{}
	for part := range strings.SplitSeq(string(text), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if !slices.Contains(bounds, name) {
			return fmt.Errorf("%q is not one of %s, as in ttft=500ms,itl=50ms", name, strings.Join(bounds, ", "))
		}
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return fmt.Errorf("%q is not a time such as 500ms", value)
		}
		if _, twice := read[name]; twice {
			return fmt.Errorf("%s is given twice", name)
		}
		read[name] = d
	}
	*o = read
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (o objective) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// String returns the bounds as text; "" if there are none.
func (o objective) String() string {
	var parts []string
	for _, name := range bounds {
		if d, ok := o[name]; ok {
			parts = append(parts, name+"="+d.String())
		}
	}
	return strings.Join(parts, ",")
}

// milliseconds returns the bounds for JSON.
func (o objective) milliseconds() map[string]float64 {
	all := map[string]float64{}
	for name, d := range maps.All(o) {
		all[name] = ms(d)
	}
	return all
}

// needsStream reports whether a bound is on something that only streams show.
func (o objective) needsStream() bool {
	_, onlyE2E := o["e2e"]
	return len(o) > 1 || len(o) == 1 && !onlyE2E
}

// meets reports whether a request was answered within all bounds. A request with a single token has no itl and no tpot to miss.
func (o objective) meets(s *sample) bool {
	if !s.sent() || s.answer.Failure != nil {
		return false
	}
	took := map[string]time.Duration{"e2e": s.e2e(), "ttft": s.ttft()}
	if tpot, ok := s.tpot(); ok {
		took["tpot"] = tpot
	}
	if gaps := s.answer.Gaps; len(gaps) > 0 {
		sorted := slices.Sorted(slices.Values(gaps))
		took["itl"] = sorted[(95*len(sorted)+99)/100-1]
	}
	for name, bound := range o {
		if took[name] > bound {
			return false
		}
	}
	return true
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
