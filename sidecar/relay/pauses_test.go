package relay

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pd"
)

// observed is a histogram that remembers its values.
type observed struct {
	values    []time.Duration
	exemplars []time.Duration // the values that came with one
}

// Observe implements prometheus.Observer.
func (o *observed) Observe(v float64) {
	o.values = append(o.values, time.Duration(v*float64(time.Second)).Round(time.Millisecond))
}

// ObserveWithExemplar implements prometheus.ExemplarObserver.
func (o *observed) ObserveWithExemplar(v float64, _ prometheus.Labels) {
	o.Observe(v)
	o.exemplars = append(o.exemplars, o.values[len(o.values)-1])
}

// The pauses of a stream are those between its tokens, whatever else it sends.
func TestPauses(t *testing.T) {
	const token, usage, done = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n", "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4}}\n\n", "data: [DONE]\n\n"
	const failure = "data: {\"error\": {\"message\": \"no\"}}\n\n"
	ms := func(n ...int) (all []time.Duration) {
		for _, one := range n {
			all = append(all, time.Duration(one)*time.Millisecond)
		}
		return all
	}
	for _, c := range []struct {
		name     string
		reads    []string // each arrives 1, 2, 3 … times 10 ms after the one before
		want     []time.Duration
		exemplar []time.Duration // of a sampled trace
		streamed bool
	}{
		{"no token", []string{done}, nil, nil, false},
		{"one token has no pause", []string{token, done}, nil, nil, true},
		{"the longest comes last, with the trace", []string{token, token, token, token, done}, ms(20, 30, 40), ms(40), true},
		{"tokens that arrive together are one arrival", []string{token, token + token, done}, ms(20), ms(20), true},
		{"half a token is none", []string{token, token[:9], token[9:], done}, ms(50), ms(50), true},
		{"usage at the end is no token", []string{token, token, usage, done}, ms(20), ms(20), true},
		{"a comment is no token", []string{token, ": ping\n\n", token, done}, ms(50), ms(50), true},
		{"an error is no token", []string{token, token, failure, done}, ms(20), ms(20), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				to := relayPauses(t, c.reads, prometheus.Labels{"trace_id": "1"}, c.streamed)
				if !slices.Equal(to.values, c.want) || !slices.Equal(to.exemplars, c.exemplar) {
					t.Errorf("observed %v, with the trace %v, want %v and %v", to.values, to.exemplars, c.want, c.exemplar)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				to := relayPauses(t, c.reads, nil, c.streamed)
				if len(to.values) != len(c.want) || to.exemplars != nil {
					t.Errorf("without a sampled trace: observed %v, with exemplars %v", to.values, to.exemplars)
				}
			})
		})
	}
}

// relayPauses relays a stream whose reads arrive later and later, and returns its pauses.
func relayPauses(t *testing.T, reads []string, exemplar prometheus.Labels, streamed bool) *observed {
	t.Helper()
	body, engine := io.Pipe()
	go func() {
		for i, read := range reads {
			<-time.After(time.Duration(i+1) * 10 * time.Millisecond)
			_, _ = engine.Write([]byte(read))
		}
		_ = engine.Close()
	}()
	to := &observed{}
	c := &Client{Exchange: unhindered{}, Context: t.Context(), Writer: httptest.NewRecorder(), API: pd.APICompletions,
		Log: slog.New(slog.DiscardHandler), ITL: &ByVerdict{pd.Local: to}, Trace: exemplar}
	c.Decision.Verdict = pd.Local
	c.Clock = pd.StartPhaseClock(time.Now())
	err := c.RelayFresh(&http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: body})
	if err != nil {
		t.Fatal(err)
	}
	if c.Streamed != streamed {
		t.Errorf("streamed is %v, want %v", c.Streamed, streamed)
	}
	return to
}
