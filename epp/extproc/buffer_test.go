package extproc

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Bodies beyond what may be held over all requests are refused, before they are read if their length is known. What is held
// is let go with its answer, whatever the answer is.
func TestBufferLimit(t *testing.T) {
	const limit = 1 << 20
	p := newPool(a)
	p.choose = func(r *epp.Request) (*epp.Decision, error) {
		if r.Model == "nobody" {
			return nil, pd.Refuse(pd.NoEndpoint, "None.")
		}
		return p.local(r, p.endpoints[0])
	}
	r := startRig(t, p, setting(func(c *Config) { c.BodyLimit, c.BufferLimit = limit/2, limit }))
	mustRefuse := func(what string, s *call, reason pd.Reason) {
		t.Helper()
		got := s.recv()
		if code := got.GetImmediateResponse().GetStatus().GetCode(); code != 503 || headersSet(t, got)["retry-after"] != "1" ||
			headersSet(t, got)[pd.HeaderDecision] != "refused;reason="+string(reason) {
			t.Errorf("%s: %s, want 503 and %s", what, describe1(got), reason)
		}
		s.mustFinish()
	}
	filler := strings.Repeat(" ", limit/4)
	var held []*call
	for range 4 {
		s := r.open(t, "")
		s.send(chat(more), requestBody(more, filler))
		held = append(held, s)
	}
	for r.held.Fits(1) { // nobody tells that a frame was read
		s := r.open(t, "")
		s.send(get("/v1/models"))
		s.recv()
		s.mustFinish()
	}
	announced := r.open(t, "")
	announced.send(chat(more, "content-length", fmt.Sprint(len(filler))))
	mustRefuse("a body that is announced", announced, pd.Busy)
	growing := r.open(t, "")
	growing.send(chat(more), requestBody(more, filler))
	mustRefuse("a body that grows", growing, pd.Busy)

	held[0].send(requestBody(ends, `{"model":"m","messages":[]}`))
	mustRefuse("what goes beyond of one that is held", held[0], pd.Busy)
	held[1].send(requestBody(ends, `{"model":"nobody","messages":[]}`))
	mustRefuse("one that nobody serves", held[1], pd.NoEndpoint)
	late := r.open(t, "")
	late.send(chat(more), requestBody(more, filler), requestBody(ends, `{"model":"m","messages":[]}`))
	if got := late.recv(); got.GetRequestHeaders() == nil {
		t.Errorf("when there is room again: %s", describe1(got))
	}
	for _, s := range append(held[2:], late) {
		s.cancel()
	}
	r.allGone(t)
	if n := r.held.Bytes(); n != 0 {
		t.Errorf("%v bytes are held by nobody", n)
	}
	r.mustMetric(t, 0, "tandem_buffered_bytes")
}
