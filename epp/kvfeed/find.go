package kvfeed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp/kvevents"
	"github.com/tandem-serving/tandem/pd"
)

const (
	dialTimeout = 5 * time.Second
	askTimeout  = 5 * time.Second
	// keepAlive notices a peer that is gone without a word: engines that are idle publish nothing.
	keepAlive = 15 * time.Second
	// askAgain is how often an engine is asked again where it publishes, after an answer; after a failure, firstPause and then twice as
	// long each time.
	askAgain   = time.Minute
	firstPause = time.Second
	// maxSources bounds the data-parallel ranks of one engine.
	maxSources = 1024
	// maxAnswer is the longest answer that is read (bytes). SGLang's has 37 kB.
	maxAnswer = 1 << 20
)

// How a source was found, for people.
const (
	configuredPort = "configured port"
	namedByEngine  = "named by the engine"
	usual          = "usual port"
	connects       = "connects to the picker"
	delivered      = "delivered without a network"
)

// place is where one rank publishes.
type place struct {
	rank int
	from kvevents.Source // zero: it connects to the picker
	how  string          // it was found
}

// follow keeps up with where a member publishes, and follows it there, until ctx ends.
func (f *Feed) follow(ctx context.Context, m *member) {
	pause := firstPause
	for {
		places, err := f.find(ctx, m)
		next := askAgain
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			text := err.Error()
			if m.asked.Swap(&text) == nil {
				f.log.Warn("no KV events: it is not known where the engine publishes them", "endpoint", m.String(), "error", err)
			}
			next, pause = pause, min(2*pause, askAgain)
		default:
			m.asked.Store(nil)
			pause = firstPause
			f.followAt(ctx, m, places)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// followAt follows a member at these places, and no longer at others.
func (f *Feed) followAt(ctx context.Context, m *member, places []place) {
	for _, s := range *m.sources.Load() {
		if s.pushed == nil && !slices.ContainsFunc(places, func(p place) bool { return p.rank == s.rank && p.from == s.from }) {
			f.remove(m, s)
		}
	}
	for _, p := range places {
		if slices.ContainsFunc(*m.sources.Load(), func(s *source) bool { return s.rank == p.rank }) {
			continue
		}
		s := f.add(m, p, false)
		if s == nil {
			return
		}
		ctx, stop := context.WithCancel(ctx)
		f.mu.Lock()
		s.stop = stop
		left := !slices.Contains(*m.sources.Load(), s)
		f.mu.Unlock()
		if left {
			stop()
			return
		}
		f.work.Go(func() {
			defer stop()
			s.stream.Follow(ctx, f.dialer, s.from, f.log.With("endpoint", m.String(), "rank", s.rank))
		})
	}
}

// find finds out where a member publishes.
func (f *Feed) find(ctx context.Context, m *member) ([]place, error) {
	if f.options.Port > 0 {
		return []place{f.configured(m)}, nil
	}
	places, err := f.ask(ctx, m, pd.PathEventSources, readVLLM)
	if errors.Is(err, errNotServed) {
		places, err = f.ask(ctx, m, "/server_info", readSGLang)
	}
	if errors.Is(err, errNotServed) {
		return []place{{0, kvevents.Source{Events: m.at(usualPort)}, usual}}, nil
	}
	if err == nil && len(places) == 0 {
		err = errors.New("the engine publishes none: start vLLM or SGLang with --kv-events-config")
	}
	return places, err
}

// configured returns the configured ports. Each endpoint of a pod is a rank of one engine there, so it has the port that is as much
// higher as there are endpoints of the pod with lower ports.
func (f *Feed) configured(m *member) place {
	f.mu.Lock()
	defer f.mu.Unlock()
	offset := 0
	for _, other := range f.members {
		if other.Addr.Addr() == m.Addr.Addr() && other.Addr.Port() < m.Addr.Port() && other.Pod == m.Pod && m.Pod != "" {
			offset++
		}
	}
	from := kvevents.Source{Events: m.at(f.options.Port + offset)}
	if f.options.ReplayPort > 0 {
		from.Replay = m.at(f.options.ReplayPort + offset)
	}
	return place{0, from, configuredPort}
}

// at returns the address of a port of a member.
func (m *member) at(port int) string {
	return net.JoinHostPort(m.Addr.Addr().String(), strconv.Itoa(port))
}

var errNotServed = errors.New("it does not serve this page")

// ask asks a member on one of its pages where it publishes.
func (f *Feed) ask(ctx context.Context, m *member, path string, read func([]byte) ([]told, error)) ([]place, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.Address+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "tandem-epp")
	res, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusForbidden, http.StatusUnauthorized, http.StatusNotImplemented:
		return nil, errNotServed
	default:
		return nil, fmt.Errorf("%s answers %s", path, res.Status)
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	all, err := read(text)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	var places []place
	for _, t := range all {
		from := kvevents.Source{}
		if from.Events, err = m.dialed(t.events); err != nil {
			return nil, err
		}
		if t.replay != "" {
			if from.Replay, err = m.dialed(t.replay); err != nil {
				return nil, err
			}
		}
		places = append(places, place{t.rank, from, namedByEngine})
	}
	return places, nil
}

// told is where a rank publishes, in the engine's words: tcp://*:5557.
type told struct {
	rank           int
	events, replay string
}

// dialed returns where the picker connects for an address that an engine names. That is always one of the endpoint: an engine that names
// another host connects there itself, or must not make the picker connect there.
func (m *member) dialed(text string) (string, error) {
	u, err := url.Parse(strings.Replace(text, "//*", "//0.0.0.0", 1))
	if err != nil || u.Scheme != "tcp" {
		return "", fmt.Errorf("the engine publishes at %q, which is not of the form tcp://HOST:PORT", text)
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil || port == 0 {
		return "", fmt.Errorf("the engine publishes at %q, which names no port", text)
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil && u.Hostname() != "localhost" {
		return "", fmt.Errorf("the engine connects to %q itself: name that address in kvEventsConfig.zmqEndpoint, or let the engine bind tcp://*:%d", text, usualPort)
	}
	return m.at(int(port)), nil
}

// readVLLM reads the answer of /kv_event_sources: an object by rank.
func readVLLM(text []byte) (all []told, err error) {
	var ranks map[string]struct {
		Enabled   bool   `json:"enable_kv_cache_events"`
		Publisher string `json:"publisher"`
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint"`
	}
	if err := json.Unmarshal(text, &ranks); err != nil {
		return nil, err
	}
	if len(ranks) > maxSources {
		return nil, fmt.Errorf("%d ranks are too many", len(ranks))
	}
	for name, r := range ranks {
		rank, err := strconv.Atoi(name)
		if err != nil || rank < 0 || rank > math.MaxInt32 {
			return nil, fmt.Errorf("%q is not the number of a rank", name)
		}
		if r.Enabled && r.Publisher == "zmq" {
			all = append(all, told{rank, r.Endpoint, r.Replay})
		}
	}
	slices.SortFunc(all, func(a, b told) int { return a.rank - b.rank })
	return all, nil
}

// readSGLang reads the answer of /server_info.
func readSGLang(text []byte) (all []told, err error) {
	var info struct {
		Events *struct {
			Publisher string `json:"publisher"`
			Port      int    `json:"endpoint_port_base"`
			Replay    int    `json:"replay_endpoint_port_base"`
			Ranks     int    `json:"dp_size"`
		} `json:"kv_events"`
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return nil, err
	}
	e := info.Events
	if e == nil || e.Publisher != "zmq" {
		return nil, nil
	}
	if e.Ranks > maxSources {
		return nil, fmt.Errorf("%d ranks are too many", e.Ranks)
	}
	for rank := range max(e.Ranks, 1) {
		t := told{rank: rank, events: fmt.Sprintf("tcp://*:%d", e.Port+rank)}
		if e.Replay > 0 {
			t.replay = fmt.Sprintf("tcp://*:%d", e.Replay+rank)
		}
		all = append(all, t)
	}
	return all, nil
}
