package pool

import (
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool/page"
)

// sglangEngine serves recorded pages of an SGLang engine, and counts the requests for each.
type sglangEngine struct {
	*httptest.Server
	mu    sync.Mutex
	pages map[string]string // path → file of package page, "" = 404
	asked map[string]int
}

func startSGLang(t *testing.T, pages map[string]string) *sglangEngine {
	t.Helper()
	e := &sglangEngine{pages: pages, asked: map[string]int{}}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.asked[r.URL.Path]++
		if e.pages[r.URL.Path] == "" {
			http.NotFound(w, r)
			return
		}
		text, err := os.ReadFile("page/testdata/" + e.pages[r.URL.Path])
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(text)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *sglangEngine) show(path, file string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pages[path] = file
}

func (e *sglangEngine) times(path string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked[path]
}

// labeled makes a scraper of an endpoint that was started with labels.
func labeled(t *testing.T, p *Pool, e *sglangEngine, labels map[string]string) *scraper {
	t.Helper()
	if err := p.Configure(nil, DefaultSource(), page.DefaultExtractor()); err != nil {
		t.Fatal(err)
	}
	s := scraperOf(p, e.Listener.Addr().String())
	s.member.Endpoint = s.member.With("", labels)
	s.pages = nil // so that the labels are read
	return s
}

func TestSGLangPages(t *testing.T) {
	all := func(metrics, loads, info string) map[string]string {
		return map[string]string{"/metrics": metrics, "/v1/loads": loads, "/model_info": info}
	}
	quiet := signals(0, 0, 0).With(epp.Delayed, 0)
	for _, c := range []struct {
		name   string
		labels map[string]string
		pages  map[string]string
		want   epp.Load
	}{
		{"an endpoint with the label", map[string]string{epp.EngineLabel: "sglang"}, all("sglang-plain.txt", "sglang-loads-plain.json", "sglang-model-info-plain.json"),
			epp.Load{Mode: epp.EnginePlain, Signals: quiet, Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 1024}}},
		{"without a label", nil, all("sglang-plain.txt", "sglang-loads-plain.json", "sglang-model-info-plain.json"),
			epp.Load{Mode: epp.EnginePlain, Signals: quiet, Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 1024}}},
		{"a decode engine before its first request", nil, all("sglang-decode-fresh.txt", "sglang-loads-decode.json", "sglang-model-info-decode.json"),
			epp.Load{Mode: epp.EngineDecode, Signals: quiet, Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 1024, NoPrefixes: true}}},
		{"a decode engine of a version without the other pages", nil, all("sglang-decode-fresh.txt", "", ""),
			epp.Load{Mode: epp.EngineDecode, Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 1024, NoPrefixes: true}}},
		{"a prefill engine with two ranks", nil, all("sglang-prefill-dp2.txt", "sglang-loads-prefill-dp2.json", "sglang-model-info-plain.json"),
			epp.Load{Mode: epp.EnginePrefill, Signals: quiet, Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 2048}, Ranks: &epp.Ranks{{Rank: 0}, {Rank: 1}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine, p := startSGLang(t, c.pages), New(Options{})
			s := labeled(t, p, engine, c.labels)
			defer p.closeConnections()
			s.turn(t.Context())
			got := *s.member.load.Load()
			c.want.At, c.want.Engine = got.At, epp.EngineSGLang
			if !reflect.DeepEqual(got, c.want) || got.At.IsZero() {
				t.Errorf("got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// TestSGLangPagesAreAskedSparingly: whether the engine keeps prefixes is asked once, its loads each time, and a page that is not
// there not at once again. An engine that was started anew is asked anew.
func TestSGLangPagesAreAskedSparingly(t *testing.T) {
	engine, p := startSGLang(t, map[string]string{"/metrics": "sglang-decode-fresh.txt", "/model_info": "sglang-model-info-decode.json"}), New(Options{})
	s := labeled(t, p, engine, nil)
	defer p.closeConnections()
	for range 3 {
		s.turn(t.Context())
	}
	if loads, info := engine.times("/v1/loads"), engine.times("/model_info"); loads != 1 || info != 1 {
		t.Errorf("the missing page was asked for %d times, the other %d times, want 1 and 1", loads, info)
	}
	engine.show("/v1/loads", "sglang-loads-decode.json")
	s.sglang.loads.due = time.Now()
	for range 3 {
		s.turn(t.Context())
	}
	if loads := engine.times("/v1/loads"); loads != 4 {
		t.Errorf("the loads were asked for %d times, want 4", loads)
	}
	engine.show("/metrics", "")
	s.turn(t.Context())
	for path, file := range map[string]string{"/metrics": "sglang-plain.txt", "/v1/loads": "sglang-loads-plain.json", "/model_info": "sglang-model-info-plain.json"} {
		engine.show(path, file)
	}
	s.turn(t.Context())
	if load := s.member.load.Load(); load.Mode != epp.EnginePlain || load.Cache.NoPrefixes {
		t.Errorf("after it was started as a plain engine: %+v", load)
	}
}

// TestOtherEnginesAreNotAskedSGLangPages: no other engine has them.
func TestOtherEnginesAreNotAskedSGLangPages(t *testing.T) {
	engine, p := startSGLang(t, map[string]string{"/metrics": "vllm-load.txt"}), New(Options{})
	s := labeled(t, p, engine, nil)
	defer p.closeConnections()
	s.turn(t.Context())
	if load := s.member.load.Load(); load.At.IsZero() || load.Mode != epp.EngineAny || engine.times("/v1/loads")+engine.times("/model_info") > 0 {
		t.Errorf("load %+v, asked %v", load, engine.asked)
	}
}
