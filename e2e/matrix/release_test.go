package matrix

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"testing"

	"go.opentelemetry.io/otel/attribute"
)

// way is how a hand-off is given back that decode does not take up.
type way string

const (
	usual    way = ""          // as its effect has it
	nowise   way = "nowise"    // there is none, decode has it, or nobody knows of it
	direct   way = "direct"    // the sidecar tells prefill, for nobody else knows of it or reads it
	byDecode way = "by decode" // decode is made to tell prefill, for it may be reading
	// asAnswered: the status of a whole answer says that decode does not read. What a stream's first event says is not read.
	asAnswered way = "direct if whole, else by decode"
)

// ways are the promises, with a keeper that works.
var ways = map[effect]way{
	comesLate:     direct,
	transferFails: byDecode,
	decodeGone:    direct, // nobody there reads any more
	redoLost:      byDecode,
	redoFails:     direct,
	believed:      direct,
}

// way looks a strike's way up.
func (s strike) way() way {
	told, ok := ways[s.effect]
	switch {
	case s.told != usual:
		return s.told
	case ok:
		return told
	case s.effect != drained && s.effect != clientLeft:
		return nowise
	case s.state == handedOff:
		return direct
	case s.state == beforeHeaders, s.state == beforeEvent:
		return byDecode
	}
	return nowise
}

// way is that of one form.
func (r row) way() way {
	w := r.strike.way()
	if w != asAnswered {
		return w
	}
	if r.stream {
		return byDecode
	}
	return direct
}

// loses is why the hand-off of a row is lost.
func (r row) loses() loss {
	if r.lost == decodeLost && (r.keeper == works || r.keeper == unsure) {
		return saved
	}
	return r.lost
}

// releases are what is counted of a row's release, by way and result.
func (r row) releases() map[[2]string]float64 {
	decode := [2]string{"cancel", "ok"}
	// 400 and 404 are what a decode engine answers that has taken note. From what stands before it they look the same.
	believed := r.status == http.StatusBadRequest || r.status == http.StatusNotFound
	if r.lost == decodeLost && !believed || r.effect == decodeGone || r.effect == redoLost {
		decode[1] = "failed"
	}
	switch w := r.way(); {
	case w == nowise:
		return nil
	case w == byDecode, r.keeper == none, r.keeper == down:
		return map[[2]string]float64{decode: 1}
	case r.keeper == unsure:
		return map[[2]string]float64{{"nixl", "unsure"}: 1, decode: 1}
	}
	return map[[2]string]float64{{"nixl", "ok"}: 1}
}

// judgeRelease checks which way the hand-off was given back, and that this was not told twice.
func (r row) judgeRelease(t *testing.T, s *stage, counted counts) {
	t.Helper()
	want := r.releases()
	for _, way := range []string{"nixl", "cancel"} {
		for _, result := range []string{"ok", "failed", "unsure"} {
			if r.deed == kill && result == "unsure" {
				continue // decode has said that it does not read, and prefill is not there to be told
			}
			counted.must(t, want[[2]string{way, result}], "tandem_kv_release_total", "way", way, "result", result)
		}
	}
	if r.lost == saved || want != nil {
		counted.must(t, want[[2]string{"cancel", "failed"}], "tandem_kv_stranded_total")
	}
	spans, last := 0, "nixl"
	if want[[2]string{"nixl", "ok"}] == 0 {
		last = "cancel"
	}
	for _, span := range s.spans.Ended() {
		if span.Name() != "release" {
			continue
		}
		if spans++; attributeOf(span, attribute.Key("tandem.release.way")) != last {
			t.Errorf("the release's span is %v, want %s", span.Attributes(), last)
		}
	}
	if released := want != nil; (spans == 1) != released || spans > 1 {
		t.Errorf("%d spans of releases, for %v", spans, want)
	}
	r.judgeStrays(t, s)
}

var strays = regexp.MustCompile(`(?m)^vllm:nixl_num_notifications_after_expiry_total\{[^}]*\} (\S+)$`)

// judgeStrays looks at notices of hand-offs that an engine does not hold. Each is told of once, but
//
//   - by a decode engine that loses its leg, or dies, when it has read the hand-off, and has told prefill so: nobody else
//     knows whether it has, and a hand-off that stays held is worse;
//   - by one that gets to read only what is no more, or somebody else's;
//   - by a keeper that cannot say whether it has told.
func (r row) judgeStrays(t *testing.T, s *stage) {
	t.Helper()
	for i, e := range s.prefill {
		select {
		case <-e.Engine.Done():
			continue
		default:
		}
		e.Engine.ClearFaults() // or it would not tell
		page := httptest.NewRecorder()
		e.Engine.Handler().ServeHTTP(page, httptest.NewRequestWithContext(within(t), http.MethodGet, "/metrics", nil))
		m := strays.FindStringSubmatch(page.Body.String())
		if m == nil {
			t.Fatalf("prefill %d does not count strays: %d %s", i, page.Code, page.Body)
		}
		n, err := strconv.ParseFloat(m[1], 64)
		if may := (r.stray || r.keeper == unsure) && i == 0; err != nil || n > 1 || n == 1 && !may {
			t.Errorf("prefill %d got %s notices of what it does not hold, %v", i, m[1], err)
		}
	}
}
