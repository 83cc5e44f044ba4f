package pool

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// Further is a page that is read of every endpoint, beside its metrics page.
type Further struct {
	Name   string // for logs
	Source FurtherSource
	Reader FurtherReader
}

// FurtherSource says where such a page is, and how often it is read.
type FurtherSource struct {
	Source
	// Node says that the page is served by the endpoint's node.
	Node bool
	// Usual is the time between two readings if Interval is 0.
	Usual time.Duration
}

// FurtherReader reads such a page. It must be comparable.
type FurtherReader interface {
	Read(from io.Reader, e *epp.Endpoint) (epp.Further, error)
}

// furtherLimit bounds the size of such a page (bytes). A DCGM exporter's has some kilobytes for each GPU.
const furtherLimit = 4 << 20

// outdated is how many times the interval what a page says is kept while it cannot be read.
const outdated = 3

// furtherPage is such a page of all endpoints, until the configuration changes.
type furtherPage struct {
	Further
	client   *http.Client
	interval time.Duration
}

func newFurther(f Further, timeout time.Duration) (*furtherPage, error) {
	transport, err := f.Source.transport(timeout)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", f.Name, err)
	}
	interval := max(cmp.Or(f.Source.Interval, f.Source.Usual), minInterval)
	return &furtherPage{f, &http.Client{Transport: transport, CheckRedirect: noRedirect}, interval}, nil
}

// furtherState is what one endpoint's scraper knows of such a page.
type furtherState struct {
	page    *furtherPage
	due     time.Time
	reading atomic.Bool

	// Guarded by furtherReads.mu.
	found  epp.Further
	at     time.Time // when it was read; zero = it is not known
	failed bool      // the last reading
}

// furtherReads are the further pages of one endpoint. The zero value has none.
type furtherReads struct {
	work   sync.WaitGroup // readings that run
	mu     sync.Mutex
	states []*furtherState
}

// adoptFurther replaces the pages. What one that stays has said is kept; what readings of earlier ones still find does not count.
func (s *scraper) adoptFurther(pages []*furtherPage) {
	s.further.mu.Lock()
	defer s.further.mu.Unlock()
	before := s.further.states
	s.further.states = nil
	for _, p := range pages {
		next := &furtherState{page: p}
		for _, old := range before {
			if old.page.Further == p.Further {
				next.found, next.at, next.failed = old.found, old.at, old.failed
			}
		}
		s.further.states = append(s.further.states, next)
	}
	if s.member.further.Load() != nil {
		s.storeFurther()
	}
}

// readFurther begins to read the pages that are due. It does not wait for them: a page that takes long must not delay that of the
// load.
func (s *scraper) readFurther(ctx context.Context) {
	now := time.Now()
	for _, f := range s.further.states {
		if now.Before(f.due) || !f.reading.CompareAndSwap(false, true) {
			continue
		}
		f.due = now.Add(spread(f.page.interval, rand.Float64()))
		s.further.work.Go(func() {
			defer f.reading.Store(false)
			found, err := f.page.read(ctx, s.member.Endpoint, s.pool.options.Timeout)
			if ctx.Err() == nil {
				s.foundFurther(f, found, err)
			}
		})
	}
}

// read reads the page of an endpoint.
func (p *furtherPage) read(ctx context.Context, e *epp.Endpoint, timeout time.Duration) (epp.Further, error) {
	hostport := e.Address
	if p.Source.Node {
		if e.Node == "" {
			return epp.Further{}, fmt.Errorf("the address of the node of %s is not known", e)
		}
		hostport = e.Node
	}
	request, err := p.Source.request(hostport)
	if err != nil {
		return epp.Further{}, err
	}
	request.Header.Set("Accept", "*/*") // not every such page is one of metrics
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := p.client.Do(request.WithContext(ctx))
	if err != nil {
		return epp.Further{}, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return epp.Further{}, errStatus(answer.StatusCode)
	}
	return p.Reader.Read(io.LimitReader(answer.Body, furtherLimit), e)
}

// foundFurther stores what a page says, and tells when it has become unreadable, or readable again.
func (s *scraper) foundFurther(f *furtherState, found epp.Further, err error) {
	s.further.mu.Lock()
	defer s.further.mu.Unlock()
	log, now := s.pool.options.Log.With("endpoint", s.member.String(), "source", f.page.Name), time.Now()
	switch {
	case err != nil && !f.failed:
		log.Warn("page cannot be read", "error", err)
	case err == nil && f.failed:
		log.Info("page can be read again")
	}
	f.failed = err != nil
	switch {
	case err == nil:
		f.found, f.at = found, now
	case f.at.IsZero() || now.Sub(f.at) < outdated*f.page.interval:
		return
	default:
		f.found, f.at = epp.Further{}, time.Time{}
	}
	s.storeFurther()
}

// storeFurther sets what is known of the endpoint, for the next snapshot. The caller holds further.mu.
func (s *scraper) storeFurther() {
	var all *epp.Further
	for _, f := range s.further.states {
		if f.at.IsZero() {
			continue
		}
		if all == nil {
			all = new(epp.Further)
		}
		all.Attributes = append(all.Attributes, f.found.Attributes...)
		if f.found.Models != nil {
			all.Models = f.found.Models
		}
	}
	s.member.further.Store(all)
	s.pool.loadChanged(epp.LoadsChanged)
}
