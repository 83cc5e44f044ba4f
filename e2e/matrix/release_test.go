package matrix

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"testing"

	"go.opentelemetry.io/otel/attribute"
)

// way is how the sidecar releases a hand-off that decode does not read.
type way string

const (
	byEffect    way = ""           // as ways says for the effect
	notReleased way = "not at all" // there is no hand-off, decode has read it, or the sidecar does not know it
	direct      way = "direct"     // the sidecar tells prefill: no decode engine reads the hand-off
	byDecode    way = "by decode"  // the sidecar makes decode tell prefill: decode may be reading the hand-off
	byAbort     way = "by abort"   // the sidecar asks both engines to abort their legs
	// asAnswered: the status of a whole answer says that decode does not read. A stream fails after status 200, in its first
	// event, which the sidecar does not parse.
	asAnswered way = "direct if whole, else by decode"
)

// ways says how hand-offs must be released if the keeper works.
var ways = map[effect]way{
	comesLate:     direct,
	transferFails: byDecode,
	decodeGone:    direct, // the engine that could read is gone
	redoLost:      byDecode,
	redoFails:     direct,
	passedOn:      direct,
}

// way returns how the hand-off of a failure must be released. A protocol without notices has one way less.
func (s failure) way() way {
	w := s.wayIfNoticed()
	if w == direct && !s.protocol.notices {
		return byDecode
	}
	return w
}

func (s failure) wayIfNoticed() way {
	told, ok := s.protocol.ways[s.effect]
	switch {
	case s.release != byEffect:
		return s.release
	case s.state == received:
		return notReleased
	case ok:
		return told
	case s.effect != drained && s.effect != clientLeft:
		return notReleased
	case s.state == handedOff:
		return direct
	case s.state == beforeHeaders, s.state == beforeEvent:
		return byDecode
	}
	return notReleased
}

// way resolves asAnswered for the row's form of answer.
func (r row) way() way {
	w := r.failure.way()
	if w != asAnswered {
		return w
	}
	if r.stream {
		return byDecode
	}
	return direct
}

// expectedLoss returns why the hand-off of a row stays pinned. A keeper that tells prefill itself prevents decodeLost.
func (r row) expectedLoss() loss {
	if r.lost == decodeLost && (r.keeper == works || r.keeper == unsure) {
		return notLost
	}
	return r.lost
}

// releases returns the counts of a row's release, by the labels way and result.
func (r row) releases() map[[2]string]float64 {
	decode := [2]string{"cancel", "ok"}
	// A decode engine answers 400 or 404 after it has noted the hand-off. The sidecar cannot tell these from faults that give
	// the same status.
	noted := r.protocol.start == nil && (r.status == http.StatusBadRequest || r.status == http.StatusNotFound)
	unasked := r.protocol.pushes && r.effect != drained && r.effect != clientLeft // decode tells prefill nothing of what it has not got
	if r.lost == decodeLost && !noted || unasked || r.effect == decodeGone || r.effect == redoLost {
		decode[1] = "failed"
	}
	switch w := r.way(); {
	case w == notReleased:
		return nil
	case w == byAbort:
		return map[[2]string]float64{{"abort", "ok"}: 1}
	case w == byDecode, r.keeper == none, r.keeper == down:
		return map[[2]string]float64{decode: 1}
	case r.keeper == unsure:
		return map[[2]string]float64{{"nixl", "unsure"}: 1, decode: 1}
	}
	return map[[2]string]float64{{"nixl", "ok"}: 1}
}

// checkRelease checks how the hand-off was released, and that it was released once.
func (r row) checkRelease(t *testing.T, s *fixture, counted counts) {
	t.Helper()
	want := r.releases()
	if r.either && want != nil {
		counted.must(t, 1, "tandem_kv_release_total", "way", "cancel")
		return
	}
	for _, way := range []string{"nixl", "cancel", "abort"} {
		for _, result := range []string{"ok", "failed", "unsure"} {
			if way == "abort" && r.unabortable() {
				continue
			}
			if r.action == kill && result == "unsure" {
				continue // decode has answered that it does not read, and the prefill engine is gone
			}
			counted.must(t, want[[2]string{way, result}], "tandem_kv_release_total", "way", way, "result", result)
		}
	}
	counted.must(t, want[[2]string{"abort", "ok"}], "tandem_kv_release_total", "way", "abort")
	if r.lost == notLost || want != nil {
		counted.must(t, want[[2]string{"cancel", "failed"}], "tandem_kv_stranded_total")
	}
	spans, last := 0, "cancel"
	for _, way := range []string{"nixl", "abort"} {
		if want[[2]string{way, "ok"}] > 0 {
			last = way
		}
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
	r.checkStrays(t, s)
}

var strays = regexp.MustCompile(`(?m)^vllm:nixl_num_notifications_after_expiry_total\{[^}]*\} (\S+)$`)

// checkStrays checks the notices of hand-offs that a prefill engine does not hold. There must be none, because each hand-off
// is released once, with these exceptions:
//
//   - A decode engine reads a hand-off and tells prefill so, then expectedLoss its leg or dies. The sidecar cannot know that it has
//     read, and releases again: a hand-off that stays pinned would be worse.
//   - A decode engine reads a hand-off that has expired, or that belongs to another request.
//   - A keeper cannot say whether it has sent its notice.
func (r row) checkStrays(t *testing.T, s *fixture) {
	t.Helper()
	if r.protocol.start != nil {
		return // its engines get no notices
	}
	for i, e := range s.prefill {
		select {
		case <-e.done:
			continue
		default:
		}
		e.faults.Clear() // or it would not answer
		page := httptest.NewRecorder()
		e.handler.ServeHTTP(page, httptest.NewRequestWithContext(within(t), http.MethodGet, "/metrics", nil))
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
