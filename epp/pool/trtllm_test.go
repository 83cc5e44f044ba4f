package pool

import (
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool/page"
)

// trtllm-serve has its metrics page at a path of its own. An operator may have said another one.
func TestPageOfTRTLLM(t *testing.T) {
	const own = "/prometheus/metrics"
	e := startSGLang(t, map[string]string{own: "trtllm-serve.txt", "/other": "trtllm-serve.txt"})
	p := New(Options{})
	defer p.closeConnections()
	labels := map[string]string{epp.EngineLabel: "trtllm-serve"}
	s := labeled(t, p, e, labels)
	s.turn(t.Context())
	if n, ok := s.member.load.Load().Signals.Value(epp.Waiting); n != 2 || !ok || e.times(own) != 1 || e.times("/metrics") != 0 {
		t.Errorf("%v requests wait, after %d requests for %s", n, e.times(own), own)
	}
	source := DefaultSource()
	source.Path = "/other"
	if err := p.Configure(nil, source, page.DefaultExtractor()); err != nil {
		t.Fatal(err)
	}
	s.turn(t.Context())
	if e.times("/other") != 1 || e.times(own) != 1 {
		t.Errorf("%d requests for the operator's path, %d for the engine's", e.times("/other"), e.times(own))
	}
}
