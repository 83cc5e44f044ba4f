package sglang

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/sim/pyjson"
)

// bootstrapServer tells decode engines where the ranks of a prefill engine are.
type bootstrapServer struct {
	engine   *Engine
	listener net.Listener
	server   *http.Server
	served   chan struct{}
}

func newBootstrapServer(e *Engine) (*bootstrapServer, error) {
	l, err := e.cfg.Network.Listen(e.cfg.Bootstrap)
	if err != nil {
		return nil, fmt.Errorf("opening the bootstrap server: %w", err)
	}
	b := &bootstrapServer{engine: e, listener: l, served: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { b.text(w, http.StatusOK, "OK") })
	mux.HandleFunc("GET /route", b.route)
	mux.HandleFunc("POST /query_dp_ranks", func(w http.ResponseWriter, _ *http.Request) {
		b.json(w, struct{}{}) // no request registers its rank under the policy follow_bootstrap_room
	})
	b.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		defer close(b.served)
		if err := b.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			e.cfg.Logger.Error("serving the bootstrap server", "error", err)
		}
	}()
	return b, nil
}

func (b *bootstrapServer) close() {
	_ = b.server.Close() // its errors are those of the listener, which it closes
	<-b.served
}

// routeQuery are the parameters of /route. -1 for all of them asks for the engine as a whole.
var routeQuery = [4]string{"prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"}

func (b *bootstrapServer) route(w http.ResponseWriter, r *http.Request) {
	var at [len(routeQuery)]int
	whole := true
	for i, name := range routeQuery {
		n, err := number(r.URL.Query(), name)
		if err != nil {
			b.text(w, http.StatusBadRequest, "Missing inputs for bootstrap server.")
			return
		}
		at[i], whole = n, whole && n == -1
	}
	cfg := &b.engine.cfg
	switch {
	case whole:
		b.json(w, prefillInfo{AttnTPSize: 1, AttnCPSize: 1, DPSize: cfg.Ranks, PPSize: 1, PageSize: cfg.PageSize, KVCacheDtype: "auto",
			FollowBootstrapRoom: true, DecodeAllocationPolicy: "early", PrefillHTTPPort: cfg.Port})
	case at[0] >= 0 && at[0] < cfg.Ranks && [3]int(at[1:]) == [3]int{}:
		host, port, _ := net.SplitHostPort(b.engine.ranks[at[0]].listener.Addr().String())
		n, _ := strconv.Atoi(port)
		b.json(w, rankAddress{host, n})
	default:
		b.text(w, http.StatusNotFound, fmt.Sprintf("Bootstrap info not found for dp_rank=%d cp_rank=%d tp_rank=%d pp_rank=%d", at[0], at[1], at[2], at[3]))
	}
}

func number(query url.Values, name string) (int, error) { return strconv.Atoi(query.Get(name)) }

func (b *bootstrapServer) text(w http.ResponseWriter, status int, text string) {
	b.write(w, status, "text/plain; charset=utf-8", []byte(text))
}

func (b *bootstrapServer) json(w http.ResponseWriter, v any) {
	b.write(w, http.StatusOK, "application/json; charset=utf-8", pyjson.EncodeSpaced(v))
}

func (b *bootstrapServer) write(w http.ResponseWriter, status int, kind string, body []byte) {
	h := w.Header()
	h.Set("Server", "Python/3.11 aiohttp/3.14.5")
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		return // the caller has left
	}
}
