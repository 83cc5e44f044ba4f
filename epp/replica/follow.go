package replica

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

const (
	// lookUp is the time between two resolutions of the replicas' names.
	lookUp = 2 * time.Second
	// again is how long after a failure a replica is asked again.
	again = 500 * time.Millisecond
)

// Run follows the other replicas until ctx ends. Afterwards nothing of theirs counts.
func (x *Exchange) Run(ctx context.Context) error {
	defer close(x.done)
	var running sync.WaitGroup
	running.Go(func() { x.settle(ctx) })
	for _, name := range x.o.With {
		running.Go(func() { x.resolve(ctx, name) })
	}
	running.Wait()
	<-ctx.Done()
	return nil
}

// settle notes, until ctx ends, which load of this picker the others certainly know. It is what was in flight two ticks ago: a line is sent
// one interval after the change at the latest, and needs time to arrive.
func (x *Exchange) settle(ctx context.Context) {
	tick := time.NewTimer(x.every())
	defer tick.Stop()
	var of []*epp.Endpoint
	var one, two []epp.InFlight // one and two ticks ago
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		tick.Reset(x.every())
		if x.Others() == 0 {
			of = nil // what is noted is not used, and is old when the next replica comes
			continue
		}
		heard := false
		if endpoints := x.o.Pool.Snapshot().Endpoints; !slices.Equal(endpoints, of) {
			of, one = endpoints, make([]epp.InFlight, len(endpoints))
			for i, e := range of {
				one[i] = e.Own()
			}
			two = slices.Clone(one)
		}
		for i, e := range of {
			unheard := e.Untold()
			e.SetTold(two[i])
			heard = heard || unheard != (epp.InFlight{}) && e.Untold() != unheard
			two[i], one[i] = one[i], e.Own()
		}
		if heard && x.o.Heard != nil {
			x.o.Heard()
		}
	}
}

// resolve follows every address that a name stands for.
func (x *Exchange) resolve(ctx context.Context, name string) {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		x.o.Log.Error("replica cannot be followed", "replica", name, "error", err) // the flags are checked before
		return
	}
	transport := x.transport(host)
	defer transport.CloseIdleConnections()
	var running sync.WaitGroup
	defer running.Wait()
	following := map[string]context.CancelFunc{} // by address
	defer func() {
		for _, stop := range following {
			stop()
		}
	}()
	again := time.NewTicker(lookUp)
	defer again.Stop()
	failed := false
	for {
		hosts, err := net.DefaultResolver.LookupHost(ctx, host)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil: // those that are followed go on: they may be there although no name server answers
			if !failed {
				x.o.Log.Warn("the name of replicas cannot be resolved", "replicas", name, "error", err)
			}
		default:
			now := map[string]bool{}
			for _, host := range hosts {
				address := net.JoinHostPort(host, port)
				if now[address] = true; following[address] == nil {
					one, stop := context.WithCancel(ctx)
					following[address] = stop
					running.Go(func() { x.follow(one, transport, address) })
				}
			}
			for address, stop := range following {
				if !now[address] {
					stop()
					delete(following, address)
				}
			}
		}
		failed = err != nil
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// transport returns how the replicas that a host stands for are connected to.
func (x *Exchange) transport(host string) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // a connection carries one answer, which has no end
	t := &http.Transport{ResponseHeaderTimeout: silence, DisableCompression: true, Protocols: protocols, DialContext: x.dial}
	if x.o.TLS == nil {
		return t
	}
	t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		config := x.o.TLS() // with the current content of the files
		if config.ServerName == "" {
			config = config.Clone()
			config.ServerName = host
		}
		return (&tls.Dialer{Config: config}).DialContext(ctx, network, address)
	}
	return t
}

// follow counts the load of the replica at an address until ctx ends, however often the connection breaks.
func (x *Exchange) follow(ctx context.Context, transport *http.Transport, address string) {
	told := "" // what was logged last
	for {
		err := x.listen(ctx, transport, address)
		if ctx.Err() != nil {
			return
		}
		pause := again
		switch {
		case errors.Is(err, errSelf), errors.Is(err, errKnown):
			pause = lookUp
		case err.Error() != told:
			told = err.Error()
			x.o.Log.Warn("another replica of the picker cannot be followed: its load does not count", "replica", address, "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// listen counts what a replica tells until the connection ends. It returns why it has ended.
func (x *Exchange) listen(ctx context.Context, transport *http.Transport, address string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := time.AfterFunc(silence, func() { cancel(fmt.Errorf("it has told nothing for %v", silence)) })
	defer limit.Stop()
	scheme := "http://"
	if x.o.TLS != nil {
		scheme = "https://"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+address+Path+"?"+promptsOf+"="+url.QueryEscape(x.o.Secret), nil)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return because(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s to GET %s: is a picker's share port there?", resp.Status, Path)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxLine)
	if !lines.Scan() {
		return because(ctx, ended(lines))
	}
	var first hello
	if err := json.Unmarshal(lines.Bytes(), &first); err != nil || first.Picker == "" {
		return errors.New("what answers is no picker's share port")
	}
	r, err := x.join(first.Picker, address)
	if err != nil {
		return err
	}
	x.o.Log.Info("another replica of the picker counts", "replica", address)
	defer func() { x.leave(r, ctx.Err() == nil || context.Cause(ctx) != context.Canceled) }()
	for lines.Scan() {
		limit.Reset(silence)
		told, err := read(lines.Bytes())
		if err != nil {
			return err
		}
		if err := x.hear(r, told); err != nil {
			return err
		}
	}
	return because(ctx, ended(lines))
}

// because returns why a context has ended, or else err.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// ended says why there are no more lines.
func ended(lines *bufio.Scanner) error {
	if err := lines.Err(); err != nil {
		return err
	}
	return errors.New("it has closed the connection")
}

const (
	// What one replica may have in flight on one endpoint: a hundred of them fit into the counts of an endpoint.
	maxRequests = 1 << 16
	maxTokens   = 1 << 32
)

// news is what a line tells.
type news struct {
	loads   map[string]epp.InFlight // of the endpoints whose load has changed
	sizes   map[string]int          // all sizes; nil: they have not changed
	down    []string                // all endpoints that are unreachable; nil: they have not changed
	waiting []epp.Queued            // all that waits; nil: it has not changed
	prompts []prompt                // that were learned
	waited  time.Duration           // until the first of them was told
}

// read reads a line.
func read(text []byte) (*news, error) {
	var l struct {
		Loads map[string][2]int `json:"loads"`
		Sizes map[string]int    `json:"sizes"`
		Down  []string          `json:"down"`
		// Waiting has the requests and the bytes of each priority.
		Waiting map[int][2]int64 `json:"waiting"`
		Prompts []prompt         `json:"prompts"`
		Waited  int64            `json:"waited_us"`
	}
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, fmt.Errorf("a line cannot be read: %w", err)
	}
	loads := make(map[string]epp.InFlight, len(l.Loads))
	for name, n := range l.Loads {
		if n[0] < 0 || n[0] > maxRequests || n[1] < 0 || n[1] > maxTokens {
			return nil, fmt.Errorf("it tells of %d requests and %d tokens in flight on %q", n[0], n[1], name)
		}
		loads[name] = epp.InFlight{Requests: n[0], Tokens: n[1]}
	}
	if len(l.Sizes) > maxSizes {
		return nil, fmt.Errorf("it wants replicas of %d deployments", len(l.Sizes))
	}
	for name, n := range l.Sizes {
		if n < 0 || n > maxSize {
			return nil, fmt.Errorf("it wants %d replicas of %q", n, name)
		}
	}
	if len(l.Down) > maxTold {
		return nil, errMany
	}
	waiting, err := readWaiting(l.Waiting)
	if err != nil {
		return nil, err
	}
	return &news{loads, l.Sizes, l.Down, waiting, l.Prompts, time.Duration(max(0, l.Waited)) * time.Microsecond}, nil
}

// readWaiting reads what waits at a replica; nil: the line does not say it.
func readWaiting(told map[int][2]int64) ([]epp.Queued, error) {
	if told == nil {
		return nil, nil
	}
	if len(told) > maxWaiting {
		return nil, fmt.Errorf("requests of %d priorities wait at it", len(told))
	}
	all := make([]epp.Queued, 0, len(told))
	for priority, n := range told {
		if n[0] < 0 || n[0] > maxWaitingRequests || n[1] < 0 || n[1] > maxWaitingBytes {
			return nil, fmt.Errorf("%d requests of %d bytes and priority %d wait at it", n[0], n[1], priority)
		}
		all = append(all, epp.Queued{Priority: priority, Requests: int(n[0]), Bytes: n[1]})
	}
	return all, nil
}
