package gateway_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/stack/gateway"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// picker is an ext-proc server that stores the events it receives.
type picker struct {
	*client.Baseline
	address string
	server  *grpc.Server
	ended   chan client.Mark // every stream that has ended

	mu     sync.Mutex
	events []client.Event
	script func(client.Event) (*client.Reply, error)
}

// startPicker starts a picker that names the given endpoints. script may answer or fail; nil does nothing.
func startPicker(t *testing.T, script func(client.Event) (*client.Reply, error), endpoints ...string) *picker {
	t.Helper()
	p := &picker{script: script, ended: make(chan client.Mark, 64), server: grpc.NewServer()}
	p.Baseline = &client.Baseline{Endpoints: strings.Join(endpoints, ","), Watch: p.watch}
	p.Register(p.server)
	l := listen(t)
	p.address = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- p.server.Serve(l) }()
	t.Cleanup(func() {
		p.server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *picker) watch(e client.Event) (*client.Reply, error) {
	if e.End {
		p.ended <- e.Mark
		return nil, nil
	}
	p.mu.Lock()
	e.Body = bytes.Clone(e.Body)
	p.events = append(p.events, e)
	p.mu.Unlock()
	if p.script == nil {
		return nil, nil
	}
	return p.script(e)
}

// received returns the events of one kind from streams with a mark.
func (p *picker) received(mark client.Mark, kind client.Kind) (events []client.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		if e.Mark == mark && e.Kind == kind {
			events = append(events, e)
		}
	}
	return events
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// runningGateway is a running gateway.
type runningGateway struct {
	url  string
	log  *log
	http *http.Client
}

// log stores the gateway's log.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// startGateway starts a gateway in front of pickers.
func startGateway(t *testing.T, change func(*gateway.Options), pickers ...string) *runningGateway {
	t.Helper()
	text := &log{}
	o := gateway.Options{Picker: client.Options{Addresses: pickers, Plaintext: true}, Keep: 1 << 20,
		Log: slog.New(slog.NewTextHandler(text, nil))}
	if change != nil {
		change(&o)
	}
	g, err := gateway.New(o)
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, l) }()
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return &runningGateway{url: "http://" + l.Addr().String(), log: text, http: &http.Client{Transport: transport}}
}

// single selects the layout with one filter.
func single(o *gateway.Options) { o.Single = true }

// startEndpoint starts an endpoint and returns its address.
func startEndpoint(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// echo answers with the size of the body and the name of the endpoint.
func echo(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			return
		}
		fmt.Fprintf(w, "%s %d", name, n)
	}
}

// answer is an answer with its body read.
type answer struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
}

func (g *runningGateway) do(t *testing.T, r *http.Request) answer {
	t.Helper()
	a, err := g.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{a.StatusCode, a.Header, a.Trailer, string(body)}
}

func (g *runningGateway) request(t *testing.T, method, path string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, g.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (g *runningGateway) post(t *testing.T, body string) answer {
	t.Helper()
	return g.do(t, g.request(t, http.MethodPost, "/v1/completions", strings.NewReader(body)))
}

// deadAddress is a loopback address where no process listens.
func deadAddress(t *testing.T) string {
	t.Helper()
	l := listen(t)
	defer l.Close()
	return l.Addr().String()
}
