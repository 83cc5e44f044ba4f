package passthrough

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// Proxy is the handler of passed-through calls. Make it with New.
type Proxy struct {
	intake *intake.Intake
	proxy  *httputil.ReverseProxy
}

// byProtocol sends calls of gRPC over HTTP/2, and all others over HTTP/1, which every engine speaks.
type byProtocol struct{ one, two http.RoundTripper }

// RoundTrip implements http.RoundTripper. The body of a call of gRPC is one that can be closed: httputil.ReverseProxy wraps it in one
// that cannot, and then waits for the client, when an engine ends a call before its client has sent all.
func (b byProtocol) RoundTrip(r *http.Request) (*http.Response, error) {
	call, ok := r.Context().Value(bodyKey{}).(*callBody)
	if !ok || call.grpc == nil {
		return b.one.RoundTrip(r)
	}
	closed := *r
	closed.Body = call.grpc
	return b.two.RoundTrip(&closed)
}

// New makes a proxy to an engine, which does not get the stripped headers. Calls of gRPC go over grpc. It panics if the engine's URL
// cannot be parsed.
func New(engine transport.Engine, grpc http.RoundTripper, in *intake.Intake, stripped transport.Stripped, log *slog.Logger) *Proxy {
	to, err := url.Parse(engine.URL)
	if err != nil {
		panic(err) // the configuration's host and port were validated
	}
	p := &Proxy{intake: in}
	p.proxy = &httputil.ReverseProxy{
		Transport:      byProtocol{engine.Transport, grpc},
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		Rewrite:        func(r *httputil.ProxyRequest) { rewrite(r, to, stripped) },
		ModifyResponse: modifyResponse,
		ErrorHandler:   p.refuse,
	}
	return p
}

// forwardedHeaders are headers that httputil.ReverseProxy drops, and that rewrite restores.
var forwardedHeaders = [...]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// rewrite directs a request to the engine. It changes only headers that clients may not set.
func rewrite(p *httputil.ProxyRequest, to *url.URL, stripped transport.Stripped) {
	p.Out.URL.Scheme, p.Out.URL.Host = to.Scheme, to.Host
	p.Out.Host = p.In.Host
	p.Out.URL.RawQuery = p.In.URL.RawQuery  // an engine may parse what net/url cannot
	for _, name := range forwardedHeaders { // the proxy before this sidecar has written them
		if values, ok := p.In.Header[name]; ok {
			p.Out.Header[name] = values
		}
	}
	for name := range p.Out.Header {
		if stripped.Has(name) {
			p.Out.Header.Del(name)
		}
	}
	p.Out.Trailer = nil
	if !strings.EqualFold(p.Out.Header.Get("Upgrade"), "websocket") { // another protocol would bypass the guard of bodies
		p.Out.Header.Del("Connection")
		p.Out.Header.Del("Upgrade")
	}
}

// metricsPath ends the path of an engine's metrics page, which pickers read.
const metricsPath = "/metrics"

// modifyResponse removes reserved headers and trailers from an engine's answer, and tells readers of its metrics page that a
// sidecar is between them.
func modifyResponse(resp *http.Response) error {
	transport.RemoveReserved(resp.Header)
	if strings.HasSuffix(resp.Request.URL.Path, metricsPath) {
		resp.Header.Set(pd.HeaderSidecar, pd.SidecarTakesPlans)
		resp.Header.Set(pd.HeaderSidecarReads, pd.SidecarReadsRanks+", "+pd.SidecarReadsSource)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		transport.RemoveReserved(resp.Trailer)
		resp.Body = &trailed{resp.Body, resp}
	}
	return nil
}

// trailed is an answer's body that removes reserved trailers at its end.
type trailed struct {
	io.ReadCloser
	resp *http.Response
}

// Read implements io.Reader.
func (t *trailed) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(b)
	if err == io.EOF {
		transport.RemoveReserved(t.resp.Trailer)
	}
	return n, err
}

// bodyKey is the context key of a call's *callBody.
type bodyKey struct{}

// callBody holds the body of a passed-through call for the error handler.
type callBody struct {
	paced intake.PacedBody
	guard *intake.GuardedBody // nil: the body is not JSON
	grpc  io.ReadCloser       // nil: the call is not gRPC
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		b := new(callBody)
		b.paced.Begin(r.Context(), w, r, p.intake.BodyPause)
		defer b.paced.End()
		if intake.IsGRPC(r) {
			b.grpc = p.intake.GuardGRPC(r)
			p.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), bodyKey{}, b)))
			return
		}
		guard, refusal := p.intake.GuardByType(r)
		if refusal != nil {
			p.intake.Refuse(w, r, refusal)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, b))
		if guard != nil {
			defer guard.Free()
			b.guard = guard
			r.Body = guard.Once()
		}
	}
	p.proxy.ServeHTTP(w, r)
}

// refuse answers a call that could not be passed through.
func (p *Proxy) refuse(w http.ResponseWriter, r *http.Request, err error) {
	refusal := p.intake.RefusalOf(err)
	if b, ok := r.Context().Value(bodyKey{}).(*callBody); ok && refusal == nil {
		if refusal = p.intake.RefusalOf(b.guard.Failure()); refusal == nil {
			refusal = b.paced.LateRefusal()
		}
	}
	if refusal == nil {
		refusal = transport.Unreachable(err)
	}
	p.intake.Refuse(w, r, refusal)
}
