package filter

import (
	"math"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// The values of the parameter onAllFull.
const (
	allFullKeep   = "keep"
	allFullRefuse = "refuse"
)

func checkAllFull(report epp.Report, value string) {
	if value != allFullKeep && value != allFullRefuse {
		report("onAllFull", "must be %s or %s, got %q", allFullKeep, allFullRefuse, value)
	}
}

// checkHeadroom sets no upper bound: the operator decides how far above the threshold an endpoint may go.
func checkHeadroom(report epp.Report, value float64) {
	if param.AtLeast(report, "headroom", value, 0); math.IsInf(value, 1) {
		report("headroom", "must be a number, got %v", value)
	}
}

// sheds reports whether a full pool may refuse a request. Only requests that make an engine generate are refused: a list of
// models costs nothing, so full endpoints serve it too.
func sheds(r *epp.Request) bool { return r.API.Generates() }

// spare keeps the candidates with spare capacity. If there are none, it keeps all, or none if refuse is set.
func spare(c []epp.Candidate, refuse bool, hasCapacity func(*epp.Candidate) bool) []epp.Candidate {
	for i := range c {
		if hasCapacity(&c[i]) {
			return Keep(c, hasCapacity)
		}
	}
	if refuse {
		return c[:0]
	}
	return c
}

// mean returns the mean of rate over the candidates, 1 if there are none.
func mean(c []epp.Candidate, rate func(*epp.Candidate) float64) float64 {
	if len(c) == 0 {
		return 1
	}
	sum := 0.0
	for i := range c {
		sum += rate(&c[i])
	}
	return sum / float64(len(c))
}
