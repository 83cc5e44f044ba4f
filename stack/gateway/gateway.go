package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/epp/extproc/client"
)

const (
	// retries is how often another endpoint is tried, as in Envoy's bootstrap.
	retries = 3
	// connectTimeout is for connections to endpoints, as in Envoy's bootstrap.
	connectTimeout = time.Second
	// messageTimeout bounds an answer of the picker about headers or trailers, as in Envoy's bootstrap. It does not bound the
	// pick, which may wait in a queue.
	messageTimeout = 10 * time.Second
	// drainTimeout is how long running answers may take after the context of Serve has ended.
	drainTimeout = 5 * time.Second
	// headerTimeout bounds the arrival of a client's request header.
	headerTimeout = 30 * time.Second
)

// Options configure a gateway.
type Options struct {
	Picker client.Options
	Single bool  // one ext-proc filter instead of the pair
	Keep   int64 // how much of a request's body is stored for another try, in bytes
	Log    *slog.Logger
}

// Gateway is an http.Handler. Use Serve to serve it, because its clients' connections must allow reading and writing at the same
// time.
type Gateway struct {
	options   Options
	picker    *client.Conn
	transport *http.Transport
	log       *slog.Logger
}

// New makes a gateway. The error is about the options; the picker need not run yet.
func New(o Options) (*Gateway, error) {
	picker, err := client.Dial(o.Picker)
	if err != nil {
		return nil, fmt.Errorf("making the gateway: %w", err)
	}
	dialer := net.Dialer{Timeout: connectTimeout}
	return &Gateway{options: o, picker: picker, log: o.Log, transport: &http.Transport{
		DialContext: dialer.DialContext, DisableCompression: true, MaxIdleConnsPerHost: 1024, IdleConnTimeout: time.Minute,
	}}, nil
}

// Close ends all connections to the picker and to endpoints. Call it when no request is served any more.
func (g *Gateway) Close() error {
	g.transport.CloseIdleConnections()
	return g.picker.Close()
}

// Serve serves clients on l, HTTP/1.1 and unencrypted HTTP/2, until ctx ends, and lets running answers finish for five
// seconds.
func (g *Gateway) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: g, ReadHeaderTimeout: headerTimeout, Protocols: new(http.Protocols),
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if server.Shutdown(drain) != nil {
			_ = server.Close() // requests that did not finish in time are cut
		}
	})
	err := server.Serve(l)
	if !stop() {
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	_ = server.Close() // the listener is closed already; this closes its connections
	return fmt.Errorf("serving at %v: %w", l.Addr(), err)
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c := &call{g: g, w: w, in: r, control: http.NewResponseController(w), head: requestHead(r),
		trailer: slices.Collect(maps.Keys(r.Trailer))}
	// HTTP/2 does not need it, and returns an error.
	_ = c.control.EnableFullDuplex()
	defer c.close(cancel)
	switch err := c.serve(ctx); {
	case err == nil:
	case c.answering:
		panic(http.ErrAbortHandler) // so that the client notices that its answer is incomplete
	default:
		c.refuse(ctx, err)
	}
}
