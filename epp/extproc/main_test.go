package extproc

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout ends a test that hangs. Nothing is measured by it.
const testTimeout = 30 * time.Second

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// wait waits for a channel to deliver or to be closed.
func wait[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-within(t).Done():
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// pool is a pool of endpoints, and a scheduler over it that a test controls.
type pool struct {
	endpoints []*epp.Endpoint
	blocks    epp.PromptSpec
	reads     epp.APISet // 0: the usual ones
	stages    epp.Stages // nil: decode and prefill
	// choose makes the decision; nil sends everything to the first endpoint, locally.
	choose func(r *epp.Request) (*epp.Decision, error)
	// wait, if not nil, blocks a pick before choose. Its error is the pick's.
	wait  func(ctx context.Context) error
	queue time.Duration // how long requests may wait for capacity
}

func newPool(addresses ...string) *pool {
	p := &pool{}
	for _, a := range addresses {
		p.endpoints = append(p.endpoints, epp.NewEndpoint("ns", a, netip.MustParseAddrPort(a), "", nil))
	}
	return p
}

func (p *pool) Needs() epp.PromptSpec { return p.blocks }

func (p *pool) Reads() epp.APISet { return p.reads }

func (p *pool) Wait() time.Duration { return p.queue }

// usual are the stages of most tests.
var usual = epp.Stages{epp.DecodeRow("decode"), epp.PrefillRow("prefill", 3)}

func (p *pool) Stages() epp.Stages {
	if p.stages != nil {
		return p.stages
	}
	return usual
}

func (p *pool) Pick(ctx context.Context, r *epp.Request) (*epp.Decision, error) {
	if p.wait != nil {
		if err := p.wait(ctx); err != nil {
			return nil, err
		}
	}
	if p.choose != nil {
		return p.choose(r)
	}
	return p.local(r, p.endpoints...)
}

// tokens are what every request is charged with.
const tokens = 100

func (p *pool) local(r *epp.Request, decode ...*epp.Endpoint) (*epp.Decision, error) {
	claim := epp.Claim{Endpoint: decode[0], Add: epp.InFlight{Requests: 1, Tokens: tokens}, Keep: epp.InFlight{Requests: 1}}
	return &epp.Decision{Picks: []epp.StagePick{{Row: &usual[0], Endpoints: decode}}, Verdict: pd.Local, Reason: pd.BelowThreshold,
		Tokens: r.Prompt.Tokens, Reservation: epp.ReserveAnyway(claim)}, nil
}

func (p *pool) remote(decode *epp.Endpoint, prefill ...*epp.Endpoint) (*epp.Decision, error) {
	one := epp.InFlight{Requests: 1}
	return &epp.Decision{Verdict: pd.Remote, Reason: pd.Uncached,
		Picks: []epp.StagePick{{Row: &usual[0], Endpoints: []*epp.Endpoint{decode}}, {Row: &usual[1], Endpoints: prefill}},
		Reservation: epp.ReserveAnyway(epp.Claim{Endpoint: decode, Add: one, Keep: one},
			epp.Claim{Endpoint: prefill[0], Add: epp.InFlight{Requests: 1, Tokens: tokens}})}, nil
}

func (p *pool) Find(addr netip.AddrPort) (*epp.Endpoint, bool) {
	for _, e := range p.endpoints {
		if e.Addr == addr {
			return e, true
		}
	}
	return nil, false
}

// load returns the load in flight at each endpoint, as "requests/tokens …".
func (p *pool) load() string {
	var all []string
	for _, e := range p.endpoints {
		f := e.InFlight()
		all = append(all, fmt.Sprintf("%d/%d", f.Requests, f.Tokens))
	}
	return strings.Join(all, " ")
}

func (p *pool) mustLoad(t testing.TB, want string) {
	t.Helper()
	if got := p.load(); got != want {
		t.Errorf("in flight: %s, want %s", got, want)
	}
}

// observer keeps outcomes.
type observer struct {
	mu  sync.Mutex
	all []epp.Outcome
}

func (o *observer) Observe(outcome *epp.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, *outcome)
}

// rig is a server behind a real gRPC server on loopback, with a connection to it.
type rig struct {
	*Server
	pool     *pool
	ledger   *epp.Ledger
	reg      *prometheus.Registry
	observer *observer
	log      *lines
	grpc     *grpc.Server
	stub     procv3.ExternalProcessorClient
	conn     *grpc.ClientConn
	handlers counter
}

// counter counts streams from the arrival of their headers to the end of their handler.
type counter struct {
	mu      sync.Mutex
	running int
	none    chan struct{} // closed when none runs any more
	first   chan struct{} // closed when the first one has arrived
}

// arrived is called by gRPC in the order in which streams come, before it starts their handlers. Health checks of gateways are not
// counted.
func (c *counter) arrived(ctx context.Context, call *tap.Info) (context.Context, error) {
	if call.FullMethodName != procv3.ExternalProcessor_Process_FullMethodName {
		return ctx, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.none == nil {
		close(c.first)
	}
	if c.running == 0 {
		c.none = make(chan struct{})
	}
	c.running++
	return ctx, nil
}

func (c *counter) handle(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.running--; c.running == 0 {
			close(c.none)
		}
	}()
	return handler(srv, s)
}

type option func(*Config, *Deps)

func setting(change func(*Config)) option { return func(c *Config, _ *Deps) { change(c) } }

// lines keeps the log's records.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func startRig(t testing.TB, p *pool, options ...option) *rig {
	t.Helper()
	r := makeRig(t, p, nil, options...)
	r.serve(t)
	return r
}

// makeRig makes a rig that does not serve yet.
func makeRig(t testing.TB, p *pool, more []grpc.ServerOption, options ...option) *rig {
	t.Helper()
	r := &rig{pool: p, ledger: epp.NewLedger(time.Hour, epp.SystemClock), reg: prometheus.NewRegistry(), observer: &observer{}, log: &lines{},
		handlers: counter{first: make(chan struct{})}}
	cfg := Defaults()
	cfg.BodyLimit = 1 << 20
	deps := Deps{Scheduler: p, Endpoints: p, Ledger: r.ledger, Observers: []epp.Observer{r.observer}, Metrics: r.reg,
		Log: slog.New(slog.NewTextHandler(r.log, nil))}
	for _, o := range options {
		o(&cfg, &deps)
	}
	var err error
	if r.Server, err = New(cfg, deps); err != nil {
		t.Fatal(err)
	}
	r.grpc = grpc.NewServer(slices.Concat(ServerOptions(cfg, nil), []grpc.ServerOption{grpc.InTapHandle(r.handlers.arrived),
		grpc.StreamInterceptor(r.handlers.handle)}, more)...)
	r.Register(r.grpc)
	return r
}

func (r *rig) serve(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.serveOn(t, listener)
}

func (r *rig) serveOn(t testing.TB, listener net.Listener) {
	t.Helper()
	served := make(chan error, 1)
	go func() { served <- r.grpc.Serve(listener) }()
	t.Cleanup(func() {
		r.grpc.Stop()
		r.ledger.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	r.dial(t, listener.Addr().String())
}

func (r *rig) dial(t testing.TB, address string, options ...grpc.DialOption) {
	t.Helper()
	conn, err := grpc.NewClient(address, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	r.conn, r.stub = conn, procv3.NewExternalProcessorClient(conn)
}

// gone waits until no handler runs.
func (r *rig) gone(t testing.TB) {
	t.Helper()
	r.handlers.mu.Lock()
	running, none := r.handlers.running, r.handlers.none
	r.handlers.mu.Unlock()
	if running > 0 {
		wait(t, none, "the handlers to end")
	}
}

// allGone waits until the handlers of all streams that were opened have ended, also of those that were cancelled at once:
// another stream comes after them on the same connection.
func (r *rig) allGone(t testing.TB) {
	t.Helper()
	s := r.open(quietT{t}, client.MarkAcct)
	defer s.cancel()
	s.send(get("/x"))
	s.recv()
	s.mustFinish()
	r.gone(t)
}

// quietT keeps no clean-ups: some tests have too many streams for that.
type quietT struct{ testing.TB }

func (quietT) Cleanup(func()) {}

// outcomes waits until all streams have ended and returns their outcomes.
func (r *rig) outcomes(t testing.TB) []epp.Outcome {
	t.Helper()
	r.gone(t)
	r.observer.mu.Lock()
	defer r.observer.mu.Unlock()
	return slices.Clone(r.observer.all)
}

// metric sums a metric's series that have the labels (name, value, name, value …).
func (r *rig) metric(t testing.TB, name string, labels ...string) (sum float64) {
	t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			fits := true
			for i := 0; i < len(labels); i += 2 {
				fits = fits && have[labels[i]] == labels[i+1]
			}
			if fits {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func (r *rig) mustMetric(t testing.TB, want float64, name string, labels ...string) {
	t.Helper()
	if got := r.metric(t, name, labels...); got != want {
		t.Errorf("%s%v is %v, want %v", name, labels, got, want)
	}
}

// call is one stream as a gateway has it.
type call struct {
	t      testing.TB
	stream grpc.BidiStreamingClient[procv3.ProcessingRequest, procv3.ProcessingResponse]
	cancel context.CancelFunc
	first  *procv3.ProtocolConfiguration // sent with the first frame
}

// The settings of the filters that are served.
var (
	duplexNone = &procv3.ProtocolConfiguration{RequestBodyMode: modev3.ProcessingMode_FULL_DUPLEX_STREAMED}
	duplexBoth = &procv3.ProtocolConfiguration{RequestBodyMode: modev3.ProcessingMode_FULL_DUPLEX_STREAMED,
		ResponseBodyMode: modev3.ProcessingMode_FULL_DUPLEX_STREAMED}
	noneNone = &procv3.ProtocolConfiguration{}
)

// open opens a stream with a mark, "" for none; md is more metadata (name, value …).
func (r *rig) open(t testing.TB, mark client.Mark, md ...string) *call {
	t.Helper()
	if mark != "" {
		md = append(md, client.MetadataFilter, string(mark))
	}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), md...), testTimeout)
	t.Cleanup(cancel)
	s, err := r.stub.Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := &call{t: t, stream: s, cancel: cancel, first: duplexNone}
	if mark == client.MarkAcct {
		c.first = noneNone
	}
	return c
}

// send sends frames. It ignores a stream that the server has ended; recv reports why.
func (c *call) send(frames ...*procv3.ProcessingRequest) {
	c.t.Helper()
	for _, f := range frames {
		if c.first != nil {
			f.ProtocolConfig, c.first = c.first, nil
		}
		if err := c.stream.Send(f); err == io.EOF {
			return
		} else if err != nil {
			c.t.Fatal(err)
		}
	}
}

// recv receives one answer.
func (c *call) recv() *procv3.ProcessingResponse {
	c.t.Helper()
	a, err := c.stream.Recv()
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	return a
}

// rest receives the remaining answers, and how the server ended the stream: nil is in good order.
func (c *call) rest() (answers []*procv3.ProcessingResponse, err error) {
	c.t.Helper()
	for {
		a, err := c.stream.Recv()
		if err == io.EOF {
			return answers, nil
		} else if err != nil {
			if status.Code(err) == codes.DeadlineExceeded {
				c.t.Fatal("the stream hangs")
			}
			return answers, err
		}
		answers = append(answers, a)
	}
}

// finish half-closes the stream, as a gateway does when the HTTP stream has ended, and receives the rest.
func (c *call) finish() ([]*procv3.ProcessingResponse, error) {
	c.t.Helper()
	if err := c.stream.CloseSend(); err != nil {
		c.t.Fatal(err)
	}
	return c.rest()
}

// mustFinish demands that the stream ends in good order without further answers.
func (c *call) mustFinish() {
	c.t.Helper()
	if answers, err := c.finish(); len(answers) > 0 || err != nil {
		c.t.Errorf("at the end of the stream: %v, %v", describe(answers), err)
	}
}

func headerMap(fields []string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(fields); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: fields[i], RawValue: []byte(fields[i+1])})
	}
	return m
}

const (
	more = false // of the message follows
	ends = true  // it ends here
)

func requestHeaders(end bool, fields ...string) *procv3.ProcessingRequest {
	return &procv3.ProcessingRequest{Request: &procv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &procv3.HttpHeaders{Headers: headerMap(fields), EndOfStream: end}}}
}

// chat returns the headers of a chat call, with others (name, value …).
func chat(end bool, fields ...string) *procv3.ProcessingRequest {
	return requestHeaders(end, append([]string{":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json",
		"x-request-id", "r-1"}, fields...)...)
}

func get(path string) *procv3.ProcessingRequest {
	return requestHeaders(ends, ":method", "GET", ":path", path)
}

func requestBody(end bool, text string) *procv3.ProcessingRequest {
	return &procv3.ProcessingRequest{Request: &procv3.ProcessingRequest_RequestBody{
		RequestBody: &procv3.HttpBody{Body: []byte(text), EndOfStream: end}}}
}

func requestTrailers(fields ...string) *procv3.ProcessingRequest {
	return &procv3.ProcessingRequest{Request: &procv3.ProcessingRequest_RequestTrailers{
		RequestTrailers: &procv3.HttpTrailers{Trailers: headerMap(fields)}}}
}

func responseHeaders(end bool, fields ...string) *procv3.ProcessingRequest {
	return &procv3.ProcessingRequest{Request: &procv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &procv3.HttpHeaders{Headers: headerMap(append([]string{":status", "200"}, fields...)), EndOfStream: end}}}
}

func responseBody(end bool, text string) *procv3.ProcessingRequest {
	return &procv3.ProcessingRequest{Request: &procv3.ProcessingRequest_ResponseBody{
		ResponseBody: &procv3.HttpBody{Body: []byte(text), EndOfStream: end}}}
}

func responseTrailers(fields ...string) *procv3.ProcessingRequest {
	return &procv3.ProcessingRequest{Request: &procv3.ProcessingRequest_ResponseTrailers{
		ResponseTrailers: &procv3.HttpTrailers{Trailers: headerMap(fields)}}}
}

// served sets in a frame which endpoint served, as Envoy's load balancer does.
func served(f *procv3.ProcessingRequest, address string) *procv3.ProcessingRequest {
	return with(f, epp.NamespaceLB, epp.HeaderServed, structpb.NewStringValue(address))
}

// with puts a value into a frame's metadata.
func with(f *procv3.ProcessingRequest, namespace, key string, v *structpb.Value) *procv3.ProcessingRequest {
	f.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		namespace: {Fields: map[string]*structpb.Value{key: v}}}}
	return f
}

const prompt = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`

// describe says in words what answers are.
func describe(answers []*procv3.ProcessingResponse) []string {
	var all []string
	for _, a := range answers {
		all = append(all, describe1(a))
	}
	return all
}

func describe1(a *procv3.ProcessingResponse) string {
	streamed := func(b *procv3.BodyResponse) string {
		part := b.GetResponse().GetBodyMutation().GetStreamedResponse()
		if part == nil {
			return "body that is not streamed"
		}
		text := fmt.Sprintf("body %q", part.GetBody())
		if part.GetEndOfStream() {
			text += " end"
		}
		return text
	}
	switch r := a.GetResponse().(type) {
	case *procv3.ProcessingResponse_RequestHeaders:
		return "request headers"
	case *procv3.ProcessingResponse_RequestBody:
		return "request " + streamed(r.RequestBody)
	case *procv3.ProcessingResponse_RequestTrailers:
		return "request trailers"
	case *procv3.ProcessingResponse_ResponseHeaders:
		return "response headers"
	case *procv3.ProcessingResponse_ResponseBody:
		return "response " + streamed(r.ResponseBody)
	case *procv3.ProcessingResponse_ResponseTrailers:
		return "response trailers"
	case *procv3.ProcessingResponse_ImmediateResponse:
		return fmt.Sprintf("immediate %d", r.ImmediateResponse.GetStatus().GetCode())
	}
	return "nothing"
}

func mutationOf(a *procv3.ProcessingResponse) *procv3.HeaderMutation {
	switch r := a.GetResponse().(type) {
	case *procv3.ProcessingResponse_RequestHeaders:
		return r.RequestHeaders.GetResponse().GetHeaderMutation()
	case *procv3.ProcessingResponse_ResponseHeaders:
		return r.ResponseHeaders.GetResponse().GetHeaderMutation()
	case *procv3.ProcessingResponse_ResponseTrailers:
		return r.ResponseTrailers.GetHeaderMutation()
	case *procv3.ProcessingResponse_ImmediateResponse:
		return r.ImmediateResponse.GetHeaders()
	}
	return nil
}

// headersSet returns the headers an answer sets. They must be sent the way Envoy reads them.
func headersSet(t testing.TB, a *procv3.ProcessingResponse) map[string]string {
	t.Helper()
	h := map[string]string{}
	for _, o := range mutationOf(a).GetSetHeaders() {
		key := o.GetHeader().GetKey()
		if _, twice := h[key]; twice {
			t.Errorf("%s is set twice", key)
		}
		if o.GetHeader().GetValue() != "" || o.GetAppendAction() != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			t.Errorf("%s must overwrite, by raw_value: %v", key, o)
		}
		h[key] = string(o.GetHeader().GetRawValue())
	}
	return h
}
