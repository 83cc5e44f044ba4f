package sglang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/transfer"
)

// routeTable is what a decode rank knows of prefill engines, by the address of the bootstrap server. The loop owns it.
type routeTable map[string]*route

// route is one prefill engine.
type route struct {
	known     bool // info is there
	info      prefillInfo
	endpoints map[int]*endpoint
	waiting   []*core.Sequence // for info
	misses    int              // heartbeats in a row that failed
}

// endpoint is one rank of a prefill engine, as it was when decode first met it. Decode does not notice that the engine was started
// anew.
type endpoint struct {
	route   *route
	rank    int
	ready   bool
	address string        // of the rank port
	peer    transfer.Peer // "": it could not be reached
	waiting []*core.Sequence
}

// prefillInfo is what a bootstrap server says of its engine; members in the real server's order.
type prefillInfo struct {
	AttnTPSize                 int    `json:"attn_tp_size"`
	AttnCPSize                 int    `json:"attn_cp_size"`
	DPSize                     int    `json:"dp_size"`
	PPSize                     int    `json:"pp_size"`
	PageSize                   int    `json:"page_size"`
	KVCacheDtype               string `json:"kv_cache_dtype"`
	FollowBootstrapRoom        bool   `json:"follow_bootstrap_room"`
	EnableDSACacheLayerSplit   bool   `json:"enable_dsa_cache_layer_split"`
	DecodeAllocationPolicy     string `json:"decode_allocation_policy"`
	EnableKVCacheSharding      bool   `json:"enable_kv_cache_sharding"`
	PrefillHTTPPort            int    `json:"prefill_http_port"`
	TargetTPRank               *int   `json:"target_tp_rank"`
	TargetTPRanks              []int  `json:"target_tp_ranks"`
	TargetCPRanks              []int  `json:"target_cp_ranks"`
	TargetPPRanks              []int  `json:"target_pp_ranks"`
	RequiredDstInfoNum         *int   `json:"required_dst_info_num"`
	RequiredPrefillResponseNum *int   `json:"required_prefill_response_num"`
}

// rankAddress is where a rank listens, as a bootstrap server says.
type rankAddress struct {
	IP   string `json:"rank_ip"`
	Port int    `json:"rank_port"`
}

const (
	// lookups is how often decode asks for an unknown prefill engine, once in lookupInterval. A question takes lookupTime at most.
	lookups        = 15
	lookupInterval = time.Second
	lookupTime     = 5 * time.Second
)

// receive has a decode leg look for its prefill engine.
func (r *rank) receive(s *core.Sequence) {
	l := legOf(s)
	room := *l.req.Rendezvous.Room
	r.enter(l, handshaking, time.Time{})
	if r.isFake(s) {
		r.prealloc(s)
		return
	}
	if earlier := r.receiving[room]; earlier != nil { // it never gets an answer
		r.enter(legOf(earlier), legOf(earlier).stage, time.Time{})
	}
	r.receiving[room] = s
	address := r.bootstrapAddress(l)
	way := r.routes[address]
	if way == nil {
		way = &route{endpoints: make(map[int]*endpoint)}
		r.routes[address] = way
		r.core.Spawn(func(ctx context.Context) { r.lookUp(ctx, address, way) })
	}
	if !way.known {
		way.waiting = append(way.waiting, s)
		return
	}
	r.meet(s, address, way)
}

// bootstrapAddress returns where the bootstrap server of a leg is.
func (r *rank) bootstrapAddress(l *leg) string {
	port := strconv.Itoa(l.req.Rendezvous.Port)
	if l.req.Rendezvous.Port == 0 {
		_, port, _ = net.SplitHostPort(r.cfg.Bootstrap)
	}
	return net.JoinHostPort(l.req.Rendezvous.Host, port)
}

// lookUp asks a bootstrap server for its engine until it answers. No step begins while a question is open, because the real scheduler
// asks in its own thread. It runs outside of the loop.
func (r *rank) lookUp(ctx context.Context, address string, way *route) {
	for i := range lookups {
		began := time.Now()
		r.core.Post(r.core.Stall)
		var info prefillInfo
		_, err := r.get(ctx, address, "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1", &info)
		r.core.Post(r.core.Resume)
		if err == nil {
			r.core.Post(func() { r.found(address, way, info) })
			return
		}
		r.cfg.Logger.Warn("looking up a prefill engine", "address", address, "try", i+1, "error", err)
		if i+1 < lookups && core.Sleep(ctx, lookupInterval-time.Since(began)) != nil {
			return
		}
	}
	r.core.Post(func() {
		delete(r.routes, address)
		for _, s := range r.stillWaiting(way.waiting, handshaking) {
			r.lose(s, causeAbort)
		}
	})
}

// found continues the legs that wait for a prefill engine to be known.
func (r *rank) found(address string, way *route, info prefillInfo) {
	if info.PageSize != r.cfg.PageSize {
		r.core.Die(fmt.Errorf("RuntimeError: Page size mismatch: prefill server has page_size=%d, but decode server has page_size=%d",
			info.PageSize, r.cfg.PageSize))
		return
	}
	way.known, way.info = true, info
	for _, s := range r.stillWaiting(way.waiting, handshaking) {
		r.meet(s, address, way)
	}
	way.waiting = nil
}

// stillWaiting returns the legs that are still at a stage.
func (r *rank) stillWaiting(list []*core.Sequence, at stage) []*core.Sequence {
	return slices.DeleteFunc(slices.Clone(list), func(s *core.Sequence) bool { return s.Done || legOf(s).stage != at })
}

// meet has a leg find its rank of a prefill engine.
func (r *rank) meet(s *core.Sequence, address string, way *route) {
	at := legOf(s).req.Rendezvous
	number := at.Room.rank(max(1, way.info.DPSize))
	if at.PrefillRank != nil {
		number = *at.PrefillRank
	}
	end := way.endpoints[number]
	if end == nil {
		end = &endpoint{route: way, rank: number}
		way.endpoints[number] = end
		r.core.Spawn(func(ctx context.Context) { r.greet(ctx, address, end) })
	}
	if !end.ready {
		end.waiting = append(end.waiting, s)
		return
	}
	r.met(s, end)
}

// greet finds a rank's port and transport. It runs outside of the loop.
func (r *rank) greet(ctx context.Context, address string, end *endpoint) {
	var where rankAddress
	query := fmt.Sprintf("/route?prefill_dp_rank=%d&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0", end.rank)
	if _, err := r.get(ctx, address, query, &where); err != nil {
		r.cfg.Logger.Warn("looking up a rank", "address", address, "rank", end.rank, "error", err)
		r.core.Post(func() {
			r.routes.drop(end)
			for _, s := range r.stillWaiting(end.waiting, handshaking) {
				r.lose(s, fmt.Sprintf("Could not fetch bootstrap info for: prefill_dp_rank: %d prefill_cp_rank: 0 target_tp_rank: 0 and target_pp_rank 0", end.rank))
			}
		})
		return
	}
	rankPort := net.JoinHostPort(where.IP, strconv.Itoa(where.Port))
	var peer transfer.Peer
	answer, err := r.ask(ctx, rankPort, message{Kind: greeting}, askTime)
	if err == nil {
		peer, err = r.transport.Load(ctx, answer.Agent)
	}
	if err == nil {
		err = core.Sleep(ctx, r.core.Scaled(r.cfg.Model.HandshakeTime()))
	}
	if err != nil { // the real engine's messages get lost without an error
		r.cfg.Logger.Warn("greeting a rank", "address", rankPort, "error", err)
	}
	r.core.Post(func() {
		end.ready, end.address, end.peer = true, rankPort, peer
		for _, s := range r.stillWaiting(end.waiting, handshaking) {
			r.met(s, end)
		}
		end.waiting = nil
	})
}

// met has a leg that knows its rank wait for pages.
func (r *rank) met(s *core.Sequence, end *endpoint) {
	legOf(s).endpoint = end
	r.prealloc(s)
}

// prealloc has a decode leg wait for pages.
func (r *rank) prealloc(s *core.Sequence) {
	r.enter(legOf(s), preallocating, time.Time{})
	s.KV = core.Wanted
	r.core.Wait(s)
}

// drop forgets an endpoint, so that the next leg asks for it anew.
func (routeTable) drop(end *endpoint) {
	if end.route.endpoints[end.rank] == end {
		delete(end.route.endpoints, end.rank)
	}
}

// forget drops the endpoint of a leg.
func (t routeTable) forget(tr transfer.Transport, l *leg) {
	t.drop(l.endpoint)
	tr.Forget(l.endpoint.peer)
}

// heartbeat asks the bootstrap servers of all known prefill engines for their health, until ctx ends. It runs outside of the loop.
func (r *rank) heartbeat(ctx context.Context) {
	tick := time.NewTicker(r.cfg.Times.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		known := make(map[string]*route)
		r.core.Call(func() {
			for address, way := range r.routes {
				if way.known {
					known[address] = way
				}
			}
		})
		for address, way := range known {
			_, err := r.get(ctx, address, "/health", nil)
			r.core.Call(func() { r.beat(address, way, err) })
		}
	}
}

// beat takes the result of a heartbeat.
func (r *rank) beat(address string, way *route, err error) {
	if err == nil {
		way.misses = 0
		return
	}
	if way.misses++; way.misses < r.cfg.Times.HeartbeatFailures || r.routes[address] != way {
		return
	}
	r.cfg.Logger.Error("lost connection with a prefill engine", "address", address, "error", err)
	delete(r.routes, address)
	for s := range r.core.Live() {
		if l := legOf(s); !s.Done && l.endpoint != nil && l.endpoint.route == way && (l.stage == preallocating || l.stage == transferring) {
			r.lose(s, "Lost connection with prefill instance (bootstrap_addr: "+address+")")
		}
	}
	for _, end := range way.endpoints {
		r.transport.Forget(end.peer)
	}
}

// heartbeatTime bounds a question to a bootstrap server.
const heartbeatTime = 3 * time.Second

// get asks a bootstrap server. The error of an answer without success is errStatus.
func (r *rank) get(ctx context.Context, address, path string, into any) (int, error) {
	patience := lookupTime
	if into == nil {
		patience = heartbeatTime
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, err
	}
	req.Close = true
	answer, err := r.engine.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	switch {
	case err != nil:
		return answer.StatusCode, err
	case answer.StatusCode != http.StatusOK:
		return answer.StatusCode, fmt.Errorf("%s: %w", answer.Status, errStatus)
	case into == nil:
		return answer.StatusCode, nil
	}
	return answer.StatusCode, json.Unmarshal(body, into)
}

var errStatus = errors.New("the bootstrap server refuses")
