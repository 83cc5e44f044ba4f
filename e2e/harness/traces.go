package harness

import (
	"math"
	"testing"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/tandem-serving/tandem/e2e/otlp"
	"github.com/tandem-serving/tandem/pd"
)

// StartReceiver runs a collector to which the programs of a test send their traces.
func StartReceiver(t *testing.T) *otlp.Receiver {
	t.Helper()
	return otlp.Start(t, "127.0.0.1:0")
}

// MustAddUp fails unless the phases of a server span sum to its duration, and returns their number.
func MustAddUp(t *testing.T, s *trace.Span) (phases int) {
	t.Helper()
	attrs, sum := Attributes(s), 0.0
	for ph := range pd.Phase(pd.PhaseCount) {
		if v, ok := attrs["tandem.phase."+ph.String()+"_ms"]; ok {
			phases++
			sum += v.GetDoubleValue()
		}
	}
	if length := Milliseconds(s); math.Abs(length-sum) > 0.001 {
		t.Errorf("phases of %s sum to %v ms, the span is %v ms", s.Name, sum, length)
	}
	return phases
}

// Milliseconds returns the duration of a span.
func Milliseconds(s *trace.Span) float64 {
	return float64(s.EndTimeUnixNano-s.StartTimeUnixNano) / float64(time.Millisecond)
}

// Attributes returns the attributes of a span, by name.
func Attributes(s *trace.Span) map[string]*common.AnyValue { return otlp.Span{Span: s}.Attributes() }
