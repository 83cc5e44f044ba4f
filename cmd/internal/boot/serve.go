package boot

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// headerTimeout is the longest time in which a client may send its request header, so that half-open connections cannot
	// pile up.
	headerTimeout = 10 * time.Second
	// idleTimeout is longer than usual scrape intervals, so that a scraper keeps its connection.
	idleTimeout = 2 * time.Minute
	// endTimeout bounds the graceful end of auxiliary listeners. Their responses are short, except a running profile, which
	// is cut.
	endTimeout = 2 * time.Second
)

// Service is an auxiliary HTTP listener: metrics and probes, or administration. Request traffic does not use it; its servers
// set other limits.
type Service struct {
	Name     string // for errors
	Listener net.Listener
	Handler  http.Handler
	TLS      *tls.Config // nil: plaintext
}

// Serve serves until ctx is cancelled or one service fails. Then it ends all services, lets running responses finish for two
// seconds, and returns after the last goroutine has ended. It closes the listeners. Give it a context that outlives the
// drain of the data port, so that probes and metrics are still served during the drain.
func Serve(ctx context.Context, log *slog.Logger, services ...Service) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	errs := make([]error, len(services))
	for i, s := range services {
		running.Go(func() {
			// If one service fails, the others end too.
			defer cancel()
			errs[i] = s.serve(ctx, log)
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

func (s Service) serve(ctx context.Context, log *slog.Logger) error {
	server := &http.Server{
		Handler:           s.Handler,
		TLSConfig:         s.TLS,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		// These messages of the server are about single connections, such as a scanner that does not speak TLS.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		end(server)
	})
	var err error
	if s.TLS != nil {
		err = server.ServeTLS(s.Listener, "", "")
	} else {
		err = server.Serve(s.Listener)
	}
	if !stop() {
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	_ = server.Close() // the listener is closed; this closes its connections
	return fmt.Errorf("serving %s at %v: %w", s.Name, s.Listener.Addr(), err)
}

// end stops the server gracefully, and cuts it off after endTimeout.
func end(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close() // responses that did not finish in time are cut; the error has no reader
	}
}

// Operations serves /metrics from the registry, in OpenMetrics, which has exemplars, to scrapers that accept it; /livez always, and /readyz: 200 while ready returns nil, else 503 with the
// reason. Each of the details that is not empty adds a line to /readyz, for conditions that do not keep the program from
// serving but should be known.
func Operations(metrics prometheus.Gatherer, ready func() error, details ...func() string) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
		for _, detail := range details {
			if line := detail(); line != "" {
				fmt.Fprintln(w, line)
			}
		}
	})
	return mux
}

// Admin returns a handler of /debug/pprof/. Programs add pages that only the operator may see; the listener belongs on
// loopback.
func Admin() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
