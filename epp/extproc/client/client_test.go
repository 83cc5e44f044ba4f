package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/tandem-serving/tandem/epp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs an ext-proc server on loopback and returns its address.
func serve(t *testing.T, register func(*grpc.Server), options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// scripted is a server that a function implements. It keeps the frames that it receives.
type scripted struct {
	extproc.UnimplementedExternalProcessorServer
	process func(extproc.ExternalProcessor_ProcessServer) error
}

func (s scripted) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	return s.process(stream)
}

func dial(t *testing.T, o Options) *Conn {
	t.Helper()
	c, err := Dial(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func open(t *testing.T, c *Conn, f Filter) *Stream {
	t.Helper()
	s, err := c.Open(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// baseline opens a stream to a Baseline.
func baseline(t *testing.T, f *Baseline, filter Filter) *Stream {
	t.Helper()
	return open(t, dial(t, Options{Addresses: []string{serve(t, func(s *grpc.Server) { f.Register(s) })}, Plaintext: true}), filter)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func recv(t *testing.T, s *Stream, want Kind) Answer {
	t.Helper()
	a, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if a.Kind != want {
		t.Fatalf("answer of kind %d, want %d", a.Kind, want)
	}
	return a
}

var head = RequestHead{Method: "POST", Scheme: "http", Authority: "models", Path: "/v1/completions?x=1",
	Header: http.Header{"X-Request-Id": {"42"}, "Accept": {"a", "b"}}}

func TestBaselineRequest(t *testing.T) {
	var seen []Event
	ended := make(chan bool)
	f := &Baseline{Endpoints: "10.0.0.1:8000,10.0.0.2:8000", Watch: func(e Event) (*Reply, error) {
		if e.End {
			close(ended)
			return nil, nil
		}
		seen = append(seen, e)
		return nil, nil
	}}
	s := baseline(t, f, Picker())
	must(t, s.RequestHeaders(head, false))
	must(t, s.RequestBody([]byte("hello "), false))
	must(t, s.RequestBody([]byte("world"), false))
	must(t, s.RequestBody(nil, true))
	a := recv(t, s, RequestHeaders)
	if a.Endpoints != f.Endpoints || !slices.Equal(a.Mutation.Set, []Field{{Name: epp.HeaderDestination, Value: f.Endpoints}}) {
		t.Errorf("picked %q by metadata, %v by header", a.Endpoints, a.Mutation.Set)
	}
	if s.RequestDone() {
		t.Error("the request is done before its body is answered")
	}
	var body string
	for end := false; !end; {
		piece := recv(t, s, RequestBody)
		body, end = body+string(piece.Body), piece.End
	}
	if body != "hello world" || !s.RequestDone() {
		t.Errorf("body %q, done %v", body, s.RequestDone())
	}
	s.Close()
	<-ended
	if h := seen[0].Header; seen[0].Mark != MarkPicker || len(seen) != 4 || h[":path"][0] != head.Path || h[":authority"][0] != "models" ||
		!slices.Equal(h["Accept"], head.Header["Accept"]) {
		t.Errorf("the server saw %+v", seen)
	}
}

func TestBaselineAnswer(t *testing.T) {
	var served []string
	ended := make(chan bool)
	f := &Baseline{Watch: func(e Event) (*Reply, error) {
		if e.End {
			close(ended)
		} else if e.Kind == ResponseHeaders {
			served = append(served, e.Served)
		}
		return nil, nil
	}}
	s := baseline(t, f, Duplex())
	must(t, s.RequestHeaders(head, true))
	recv(t, s, RequestHeaders)
	if !s.RequestDone() {
		t.Error("a request without body is not done")
	}
	must(t, s.ResponseHeaders(ResponseHead{Status: 200, Served: "10.0.0.2:8000"}, false))
	recv(t, s, ResponseHeaders)
	must(t, s.ResponseBody([]byte("token"), false))
	if a := recv(t, s, ResponseBody); string(a.Body) != "token" || a.End {
		t.Errorf("body %+v", a)
	}
	must(t, s.ResponseTrailers(http.Header{"Server-Timing": {"decode;dur=1"}}))
	recv(t, s, ResponseTrailers)
	s.Close()
	<-ended
	if !slices.Equal(served, []string{"10.0.0.2:8000"}) {
		t.Errorf("served %q", served)
	}
}

// A baseline without Watch distinguishes the filters too: it answers an accounting stream at once.
func TestBaselineAccounting(t *testing.T) {
	s := baseline(t, &Baseline{Endpoints: "10.0.0.1:8000"}, Acct())
	must(t, s.RequestHeaders(head, false))
	if a := recv(t, s, RequestHeaders); len(a.Mutation.Set) > 0 || a.Endpoints != "" {
		t.Errorf("answer %+v changes the request", a)
	}
	must(t, s.ResponseHeaders(ResponseHead{Status: 200}, false))
	recv(t, s, ResponseHeaders)
}

func TestFirstFrame(t *testing.T) {
	const none, duplex = extprocfilter.ProcessingMode_NONE, extprocfilter.ProcessingMode_FULL_DUPLEX_STREAMED
	tests := []struct {
		name              string
		filter            Filter
		request, response extprocfilter.ProcessingMode_BodySendMode
	}{
		{"picker", Picker(), duplex, none},
		{"acct", Acct(), none, none},
		{"single", Single(), duplex, none},
		{"duplex", Duplex(), duplex, duplex},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			frames := make(chan *extproc.ProcessingRequest, 2)
			address := serve(t, func(g *grpc.Server) {
				extproc.RegisterExternalProcessorServer(g, scripted{process: func(stream extproc.ExternalProcessor_ProcessServer) error {
					defer close(frames)
					for {
						frame, err := stream.Recv()
						if err != nil {
							return nil
						}
						frames <- frame
					}
				}})
			})
			s := open(t, dial(t, Options{Addresses: []string{address}, Plaintext: true}), test.filter)
			hinted := head
			hinted.Subset = []string{"10.0.0.1:8000"}
			must(t, s.RequestHeaders(hinted, true))
			must(t, s.ResponseHeaders(ResponseHead{Status: 200}, true))
			must(t, s.frames.CloseSend())
			first, second := <-frames, <-frames
			if c := first.GetProtocolConfig(); c.GetRequestBodyMode() != test.request || c.GetResponseBodyMode() != test.response {
				t.Errorf("protocol config %v", c)
			}
			if second.ProtocolConfig != nil {
				t.Error("the second frame has a protocol config too")
			}
			for _, h := range first.GetRequestHeaders().GetHeaders().GetHeaders() {
				if h.Value != "" || h.RawValue == nil || h.Key != strings.ToLower(h.Key) {
					t.Errorf("header %v is not as Envoy sends it", h)
				}
			}
			hint := first.GetMetadataContext().GetFilterMetadata()[epp.NamespaceSubset].GetFields()[epp.HeaderSubset]
			if got := hint.GetListValue().GetValues(); len(got) != 1 || got[0].GetStringValue() != "10.0.0.1:8000" {
				t.Errorf("subset hint %v", hint)
			}
		})
	}
}

func TestReplyAndEnds(t *testing.T) {
	t.Run("immediate", func(t *testing.T) {
		want := &Reply{Status: 429, Header: http.Header{"retry-after": {"1"}}, Body: []byte("full")}
		s := baseline(t, &Baseline{Watch: func(Event) (*Reply, error) { return want, nil }}, Picker())
		must(t, s.RequestHeaders(head, false))
		r := recv(t, s, Immediate).Reply
		if r.Status != 429 || r.Header.Get("Retry-After") != "1" || r.Header.Get("Content-Type") != "text/plain" || string(r.Body) != "full" {
			t.Errorf("reply %+v", r)
		}
	})
	t.Run("error", func(t *testing.T) {
		s := baseline(t, &Baseline{Watch: func(Event) (*Reply, error) { return nil, status.Error(codes.Internal, "broken") }}, Picker())
		must(t, s.RequestHeaders(head, false))
		if _, err := s.Recv(); status.Code(err) != codes.Internal {
			t.Errorf("error %v", err)
		}
	})
	t.Run("server leaves", func(t *testing.T) {
		address := serve(t, func(g *grpc.Server) {
			extproc.RegisterExternalProcessorServer(g, scripted{process: func(extproc.ExternalProcessor_ProcessServer) error { return nil }})
		})
		s := open(t, dial(t, Options{Addresses: []string{address}, Plaintext: true}), Picker())
		if _, err := s.Recv(); err != io.EOF || s.RequestDone() {
			t.Errorf("error %v, request done %v", err, s.RequestDone())
		}
	})
	t.Run("unreachable picker", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		address := l.Addr().String()
		l.Close()
		c := dial(t, Options{Addresses: []string{address}, Plaintext: true})
		if _, err := c.Open(t.Context(), Picker()); status.Code(err) != codes.Unavailable {
			t.Errorf("error %v", err)
		}
	})
	t.Run("client leaves", func(t *testing.T) {
		ended := make(chan bool)
		f := &Baseline{Watch: func(e Event) (*Reply, error) {
			if e.End {
				close(ended)
			}
			return nil, nil
		}}
		c := dial(t, Options{Addresses: []string{serve(t, func(g *grpc.Server) { f.Register(g) })}, Plaintext: true})
		ctx, leave := context.WithCancel(t.Context())
		s, err := c.Open(ctx, Picker())
		must(t, err)
		must(t, s.RequestHeaders(head, true))
		recv(t, s, RequestHeaders)
		leave()
		<-ended
	})
}

func TestTLS(t *testing.T) {
	pair := certificate(t)
	security, err := credentials.NewServerTLSFromFile(pair.cert, pair.key)
	must(t, err)
	f := &Baseline{Endpoints: "10.0.0.1:8000"}
	address := serve(t, func(g *grpc.Server) { f.Register(g) }, grpc.Creds(security))
	for name, ca := range map[string]string{"not verified": "", "verified": pair.cert} {
		t.Run(name, func(t *testing.T) {
			s := open(t, dial(t, Options{Addresses: []string{address}, CAFile: ca}), Picker())
			must(t, s.RequestHeaders(head, true))
			recv(t, s, RequestHeaders)
		})
	}
	t.Run("signed by another", func(t *testing.T) {
		c := dial(t, Options{Addresses: []string{address}, CAFile: certificate(t).cert})
		if _, err := c.Open(t.Context(), Picker()); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("error %v", err)
		}
	})
}

func TestDialRefuses(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	must(t, os.WriteFile(empty, nil, 0o600))
	tests := []struct {
		name    string
		options Options
		want    string
	}{
		{"no address", Options{}, "no address given"},
		{"no port", Options{Addresses: []string{"x"}}, "missing port"},
		{"no file", Options{Addresses: []string{"x:1"}, CAFile: "missing.pem"}, "missing.pem"},
		{"no certificate", Options{Addresses: []string{"x:1"}, CAFile: empty}, "contains no certificate"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Dial(test.options); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func TestMutation(t *testing.T) {
	wire := &extproc.HeaderMutation{
		SetHeaders: []*core.HeaderValueOption{
			{Header: &core.HeaderValue{Key: "X-New", RawValue: []byte("raw"), Value: "ignored"}},
			{Header: &core.HeaderValue{Key: "x-value", Value: "ignored"}},
			{Header: &core.HeaderValue{Key: "x-there", RawValue: []byte("b")}, AppendAction: core.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD},
			{Header: &core.HeaderValue{Key: ":path", RawValue: []byte("/other")}},
			{Header: &core.HeaderValue{Key: ":method", RawValue: []byte("PUT")}},
			{Header: &core.HeaderValue{Key: "Host", RawValue: []byte("evil")}},
			{Header: &core.HeaderValue{Key: "x-envoy-retry-on", RawValue: []byte("5xx")}},
			{Header: &core.HeaderValue{Key: "content-length", RawValue: []byte("7")}},
			{Header: &core.HeaderValue{Key: "", RawValue: []byte("7")}},
		},
		RemoveHeaders: []string{"X-GONE", "x-absent", "host", ":authority", ""},
	}
	h, path := http.Header{"X-There": {"a"}, "X-Gone": {"x"}}, "/v1"
	rejected := parseMutation(wire).Apply(h, &path)
	want := http.Header{"X-New": {"raw"}, "X-Value": {""}, "X-There": {"b"}}
	if path != "/other" || rejected != 7 || len(h) != len(want) {
		t.Errorf("path %q, %d rejected, headers %v", path, rejected, h)
	}
	for name, values := range want {
		if !slices.Equal(h[name], values) {
			t.Errorf("%s is %q, want %q", name, h[name], values)
		}
	}
	m := Mutation{Set: []Field{{Name: "x-there", Value: "c", Append: true}, {Name: ":path", Value: "/"}}}
	if rejected := m.Apply(h, nil); rejected != 1 || !slices.Equal(h["X-There"], []string{"b", "c"}) {
		t.Errorf("%d rejected, headers %v", rejected, h)
	}
}

func TestSendOrder(t *testing.T) {
	tests := []struct {
		name   string
		filter Filter
		send   func(*Stream) error
	}{
		{"body first", Picker(), func(s *Stream) error { return s.RequestBody(nil, true) }},
		{"headers twice", Picker(), func(s *Stream) error {
			return errors.Join(s.RequestHeaders(head, false), s.RequestHeaders(head, false))
		}},
		{"body of an accounting stream", Acct(), func(s *Stream) error {
			return errors.Join(s.RequestHeaders(head, false), s.RequestBody(nil, true))
		}},
		{"body after the end", Picker(), func(s *Stream) error {
			return errors.Join(s.RequestHeaders(head, true), s.RequestBody(nil, true))
		}},
		{"trailers after the end", Picker(), func(s *Stream) error {
			return errors.Join(s.RequestHeaders(head, true), s.RequestTrailers(nil))
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := test.send(baseline(t, &Baseline{}, test.filter)); err == nil || err == io.EOF {
				t.Errorf("error %v", err)
			}
		})
	}
}
