package pool

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool/page"
)

// text is a reader whose result is what the page says.
type text struct{}

func (text) Read(from io.Reader, _ *epp.Endpoint) (epp.Further, error) {
	said, err := io.ReadAll(from)
	return epp.Further{Models: []epp.Model{{ID: string(said)}}}, err
}

// said returns what is known of an endpoint from a page that is read by text.
func said(s *scraper) string {
	if f := s.member.further.Load(); f != nil {
		return f.Models[0].ID
	}
	return ""
}

// furtherOf returns a page at a path, of the port of the endpoint unless there is another one.
func furtherOf(path string, port int) Further {
	source := DefaultSource()
	source.Path, source.Port, source.Interval = path, port, time.Hour
	return Further{Name: path, Source: FurtherSource{Source: source}, Reader: text{}}
}

// serveOn serves the endpoint's address, and returns its port.
func serveOn(t *testing.T, handler http.Handler) (addr string, port int) {
	engine := httptest.NewServer(handler)
	t.Cleanup(engine.Close)
	addr = engine.Listener.Addr().String()
	_, text, _ := net.SplitHostPort(addr)
	port, _ = strconv.Atoi(text)
	return addr, port
}

// look has a scraper read its further pages, all of them at once.
func look(t *testing.T, s *scraper) {
	for _, f := range s.further.states {
		f.due = time.Time{}
	}
	s.readFurther(t.Context())
	s.further.work.Wait()
}

func TestFurtherPages(t *testing.T) {
	paths := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })
	_, elsewhere := serveOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "elsewhere") }))
	_, broken := serveOn(t, http.NotFoundHandler())
	ofNode := furtherOf("/node", elsewhere)
	ofNode.Source.Node = true
	for _, tc := range []struct {
		name  string
		pages []Further
		node  string
		want  string
	}{
		{"none", nil, "", ""},
		{"of the endpoint's port", []Further{furtherOf("/v1/models", 0)}, "", "/v1/models"},
		{"of another port", []Further{furtherOf("/metrics", elsewhere)}, "", "elsewhere"},
		{"of the node", []Further{ofNode}, "127.0.0.1", "elsewhere"},
		{"of a node that is not known", []Further{ofNode}, "", ""},
		{"not to be had", []Further{furtherOf("/", broken)}, "", ""},
		{"one of two", []Further{furtherOf("/", broken), furtherOf("/a", 0)}, "", "/a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := New(Options{})
			defer p.closeConnections()
			if err := p.Configure(nil, DefaultSource(), page.DefaultExtractor(), tc.pages...); err != nil {
				t.Fatal(err)
			}
			addr, _ := serveOn(t, paths)
			s := scraperOf(p, addr)
			if tc.node != "" {
				s.member.spec.Node = netip.MustParseAddr(tc.node)
				s.member.describe()
			}
			look(t, s)
			if got := said(s); got != tc.want {
				t.Errorf("the pages say %q, want %q", got, tc.want)
			}
		})
	}
}

// TestFurtherPageFails: what it said is kept for three intervals, and over reloads, and the log has one line for the failures.
func TestFurtherPageFails(t *testing.T) {
	var down atomic.Bool
	addr, _ := serveOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			http.Error(w, "down", http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, "up")
	}))
	lines := new(logged)
	p := New(Options{Log: lines.logger()})
	defer p.closeConnections()
	if err := p.Configure(nil, Source{}, page.Extractor{}, furtherOf("/page", 0)); err != nil {
		t.Fatal(err)
	}
	s := scraperOf(p, addr)
	age := func(d time.Duration) { s.further.states[0].at = time.Now().Add(-d) }
	for i, step := range []struct {
		do                func()
		want              string
		warnings, notices int
	}{
		{func() {}, "up", 0, 0},
		{func() { down.Store(true) }, "up", 1, 0},
		{func() { age(2 * time.Hour) }, "up", 1, 0},
		{func() { age(3 * time.Hour) }, "", 1, 0},
		{func() { down.Store(false) }, "up", 1, 1},
	} {
		step.do()
		look(t, s)
		if got, w, n := said(s), lines.count("page cannot be read"), lines.count("page can be read again"); got != step.want || w != step.warnings || n != step.notices {
			t.Errorf("step %d: the page says %q, %d warnings, %d notices; want %+v", i, got, w, n, step)
		}
	}
	for _, reload := range []struct {
		pages []Further
		want  string
	}{{[]Further{furtherOf("/page", 0)}, "up"}, {[]Further{furtherOf("/other", 0), furtherOf("/page", 0)}, "up"}, {nil, ""}} {
		if err := p.Configure(nil, Source{}, page.Extractor{}, reload.pages...); err != nil {
			t.Fatal(err)
		}
		s.prepare()
		if got := said(s); got != reload.want {
			t.Errorf("after a reload with %d pages %q is known, want %q", len(reload.pages), got, reload.want)
		}
	}
}

// TestFurtherWhileScraping: a running pool has it in its snapshots, and does not read it more often than the interval says.
func TestFurtherWhileScraping(t *testing.T) {
	var asked atomic.Int64
	addr, _ := serveOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = io.WriteString(w, busyPage)
			return
		}
		asked.Add(1)
		_, _ = io.WriteString(w, "up")
	}))
	p := New(Options{Log: slog.New(slog.DiscardHandler), Busy: minInterval, Idle: minInterval})
	changes := p.Subscribe(epp.LoadsChanged)
	defer changes.Close()
	if err := p.Configure(ofPool(epp.Spec{Name: "a", Addr: netip.MustParseAddrPort(addr)}), DefaultSource(), page.DefaultExtractor(), furtherOf("/page", 0)); err != nil {
		t.Fatal(err)
	}
	start(t, p)
	for pages := 0; pages < 5; { // metrics pages, after the further one
		<-changes.Ready()
		changes.Take()
		if s := p.Snapshot(); len(s.Loads) == 1 && s.Loads[0].Further != nil && !s.Loads[0].At.IsZero() {
			pages++
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the page was read %d times, with an interval of an hour", n)
	}
}

func TestFurtherIsChecked(t *testing.T) {
	bad := furtherOf("no path", 0)
	err := New(Options{}).Configure(nil, DefaultSource(), page.DefaultExtractor(), bad)
	if err == nil || !strings.Contains(err.Error(), "source no path: ") {
		t.Errorf("error %v", err)
	}
}
