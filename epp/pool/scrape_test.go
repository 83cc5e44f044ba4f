package pool

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool/page"
	"github.com/tandem-serving/tandem/pd"
)

// show serves one text.
func show(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
}

// flood writes line after line until the reader leaves, or more than any pool should have read.
func flood(written *atomic.Int64, line string) http.HandlerFunc {
	const most = 100 << 20
	return func(w http.ResponseWriter, _ *http.Request) {
		for written.Load() < most {
			n, err := w.Write([]byte(line))
			written.Add(int64(n))
			if err != nil {
				return
			}
		}
	}
}

func TestReadOverSockets(t *testing.T) {
	var written atomic.Int64
	noise := strings.Repeat("some_family{a=\"b\"} 1\n", 1000)
	cases := []struct {
		name   string
		serve  http.HandlerFunc
		result string
	}{
		{"a page", show(busyPage), "ok"},
		{"garbage", show(strings.Repeat("\x00\xff{\"", 5000)), "no-values"},
		{"page of something else", show("<html><body>hello</body></html>"), "no-values"},
		{"nothing", show(""), "no-values"},
		{"not found", http.NotFound, "status"},
		{"redirect", http.RedirectHandler("http://127.0.0.1:1/elsewhere", http.StatusFound).ServeHTTP, "status"},
		{"100 MB, announced", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(100<<20))
			flood(&written, noise)(w, r)
		}, "too-large"},
		{"100 MB", flood(&written, noise), "too-large"},
		{"100 MB in one line", flood(&written, strings.Repeat("x", 64<<10)), "too-large"},
		{"never begins", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "timeout"},
		{"never ends", func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(busyPage))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "timeout"},
		{"breaks off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(busyPage))
		}, "broken"},
		{"hangs up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "unreachable"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			engine := httptest.NewUnstartedServer(c.serve)
			engine.Config.ErrorLog = quiet()
			engine.Start()
			defer engine.Close()
			o := Options{Timeout: 10 * time.Second} // not reached, unless the case tests it
			if c.result == "timeout" {
				o.Timeout = 50 * time.Millisecond
			}
			p := New(o)
			configure(t, p, nil)
			defer p.closeConnections()
			s := scraperOf(p, engine.Listener.Addr().String())
			before := only(epp.Waiting, 3)
			before.At = time.Unix(1, 0)
			s.member.load.Store(&before)
			written.Store(0)
			_, err := s.read(t.Context())
			if got := resultOf(err); got != c.result {
				t.Errorf("got %s (%v), want %s", got, err, c.result)
			}
			s.turn(t.Context())
			engine.CloseClientConnections()
			if n := written.Load(); n > 32<<20 { // twice the limit, and what socket buffers hold
				t.Errorf("%d bytes were taken", n)
			}
			after := *s.member.load.Load()
			if failed := c.result != "ok"; failed != (after == before) || failed != (s.failures == 1) || failed == s.proven {
				t.Errorf("load %+v, %d failures, proven %v", after, s.failures, s.proven)
			}
		})
	}
}

// TestUnreachable: an endpoint that refuses connections, or hangs, or whose sidecar says that its engine does, is unreachable until its
// page can be read again. Its page is asked for as often as that of an idle one. The values of the last page are kept.
func TestUnreachable(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for _, c := range []struct {
		name        string
		serve       http.HandlerFunc // nil: connections are refused
		metrics     string           // another address of the page
		port        int              // another port of all pages
		unreachable bool
	}{
		{"connection refused", nil, "", 0, true},
		{"the engine does not", status(502), "", 0, true},
		{"the sidecar drains", status(503), "", 0, true},
		{"something is wrong", status(500), "", 0, false},
		{"there is no page", status(404), "", 0, false},
		{"it hangs up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "", 0, false},
		{"it hangs", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "", 0, true},
		{"the page is elsewhere", nil, "127.0.0.1:1", 0, false},
		{"all pages are elsewhere", nil, "", 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var bad atomic.Bool
			engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if bad.Load() {
					c.serve(w, r)
					return
				}
				show(busyPage)(w, r)
			}))
			engine.Config.ErrorLog = quiet()
			engine.Start()
			defer engine.Close()
			o := Options{Timeout: 10 * time.Second} // not reached, unless the case tests it
			if c.name == "it hangs" {
				o.Timeout = 200 * time.Millisecond
			}
			p := New(o)
			configure(t, p, nil)
			defer p.closeConnections()
			s := scraperOf(p, engine.Listener.Addr().String())
			if s.turn(t.Context()); s.member.load.Load().Unreachable {
				t.Fatal("an endpoint with a page is unreachable")
			}
			bad.Store(true)
			if c.serve == nil {
				engine.Close()
			}
			if c.metrics != "" {
				s.member.Endpoint = s.member.With(c.metrics, nil)
			}
			source := DefaultSource()
			source.Port = c.port
			if err := p.Configure(nil, source, page.DefaultExtractor()); err != nil {
				t.Fatal(err)
			}
			s.turn(t.Context())
			if s.member.load.Load().Unreachable && c.name == "it hangs" {
				t.Error("unreachable after one reading without an answer")
			}
			for range 3 {
				s.turn(t.Context())
			}
			load := s.member.load.Load()
			if load.Unreachable != c.unreachable || !load.Signals.Known(epp.Waiting) {
				t.Errorf("load %+v", load)
			}
			if soon := time.Until(s.due) < 2*s.idle; soon != c.unreachable {
				t.Errorf("after four failures it is asked again in %v, an idle one in %v", time.Until(s.due), s.idle)
			}
			if bad.Store(false); c.serve != nil {
				if s.turn(t.Context()); s.member.load.Load().Unreachable {
					t.Error("it is still unreachable when its page is back")
				}
			}
		})
	}
}

// TestPeer: what takes requests at an endpoint is known by its metrics page, if that is on the same port.
func TestPeer(t *testing.T) {
	var header, optional atomic.Value
	header.Store("")
	optional.Store("")
	serve := func(w http.ResponseWriter, r *http.Request) {
		if v := header.Load().(string); v != "" {
			w.Header().Set(pd.HeaderSidecar, v)
		}
		w.Header().Set(pd.HeaderSidecarReads, optional.Load().(string))
		show(busyPage)(w, r)
	}
	engine, elsewhere := httptest.NewServer(http.HandlerFunc(serve)), httptest.NewServer(http.HandlerFunc(serve))
	defer engine.Close()
	defer elsewhere.Close()
	p := New(Options{})
	configure(t, p, nil)
	defer p.closeConnections()
	s := scraperOf(p, engine.Listener.Addr().String())
	if got := s.member.Peer(); got != epp.PeerUnknown {
		t.Errorf("before the first page: %v", got)
	}
	for _, c := range []struct {
		sends string
		want  epp.Peer
	}{{"", epp.PeerOther}, {pd.SidecarTakesPlans, epp.PeerTandem}, {"something newer", epp.PeerOther}} {
		header.Store(c.sends)
		if s.turn(t.Context()); s.member.Peer() != c.want {
			t.Errorf("%q: %v, want %v", c.sends, s.member.Peer(), c.want)
		}
	}
	for reads, want := range map[string]bool{"": false, "ranks": true, "more, ranks": true, "rank": false} {
		optional.Store(reads)
		if s.turn(t.Context()); s.member.TakesRanks() != want {
			t.Errorf("a sidecar that reads %q: it takes ranks is %t", reads, !want)
		}
		if s.member.TakesSource() {
			t.Errorf("a sidecar that reads %q takes sources", reads)
		}
	}
	optional.Store("ranks, source-tokens")
	if s.turn(t.Context()); !s.member.TakesRanks() || !s.member.TakesSource() {
		t.Error("a sidecar that reads both takes one of them only")
	}
	apart := scraperOf(p, engine.Listener.Addr().String())
	apart.member.Endpoint = apart.member.With(elsewhere.Listener.Addr().String(), nil)
	apart.request, _ = apart.pages.source.request(apart.member.Metrics)
	header.Store(pd.SidecarTakesPlans)
	if apart.turn(t.Context()); apart.member.Peer() != epp.PeerUnknown || apart.member.load.Load().At.IsZero() {
		t.Errorf("a page of another port tells of the endpoint: %v", apart.member.Peer())
	}
}

// lateDial is the error of a dialer whose time is over.
type lateDial struct{}

func (lateDial) Error() string { return "i/o timeout" }
func (lateDial) Timeout() bool { return true }

func TestUnconnected(t *testing.T) {
	dial := func(cause error) error {
		return &url.Error{Op: "Get", Err: &net.OpError{Op: "dial", Net: "tcp", Err: cause}}
	}
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"refused", dial(syscall.ECONNREFUSED), true},
		{"no such host", dial(syscall.EHOSTUNREACH), true},
		{"no answer to the dial", dial(lateDial{}), true},
		{"out of files", dial(syscall.EMFILE), false},
		{"a slow page", &net.OpError{Op: "read", Err: lateDial{}}, false},
		{"reset", &net.OpError{Op: "read", Err: syscall.ECONNRESET}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := unconnected(c.err); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// TestSentIsOfTheAsking notes what was in flight when the page was asked for: what comes while the engine writes it may not be
// on it.
func TestSentIsOfTheAsking(t *testing.T) {
	var s *scraper
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		epp.ReserveAnyway(epp.Claim{Endpoint: s.member.Endpoint, Add: epp.InFlight{Requests: 1}})
		show(busyPage)(w, r)
	}))
	defer engine.Close()
	p := New(Options{})
	configure(t, p, nil)
	defer p.closeConnections()
	s = scraperOf(p, engine.Listener.Addr().String())
	for want := range 3 {
		s.turn(t.Context())
		if got := s.member.load.Load().Sent.Requests; got != want {
			t.Errorf("%d sent, want %d", got, want)
		}
	}
}

func TestConnectionIsKept(t *testing.T) {
	var connections atomic.Int64
	var encoding atomic.Value
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		encoding.Store(r.Header.Get("Accept-Encoding"))
		show(busyPage+strings.Repeat("# noise\n", 20_000))(w, r)
	}))
	engine.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	engine.Start()
	defer engine.Close()
	p := New(Options{})
	configure(t, p, nil)
	defer p.closeConnections()
	s := scraperOf(p, engine.Listener.Addr().String())
	for range 5 {
		if _, err := s.read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := connections.Load(); n != 1 || encoding.Load() != "identity" {
		t.Errorf("%d connections for 5 pages, asked for in %q; want 1, identity", n, encoding.Load())
	}
}

func TestRunOverSockets(t *testing.T) {
	asked := make(chan struct{}, 100)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		show(busyPage)(w, r)
		select {
		case asked <- struct{}{}:
		default:
		}
	}))
	defer engine.Close()
	p := New(Options{Busy: minInterval})
	configure(t, p, ofPool(specOf("a", engine.Listener.Addr().String())))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	for range 3 {
		<-asked
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if l := p.set.members[0].load.Load(); l.Signals != signals(1, 2, .5) || l.At.IsZero() {
		t.Errorf("load %+v", l)
	}
}
