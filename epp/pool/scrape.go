package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool/page"
	"github.com/tandem-serving/tandem/pd"
)

// pages says how metrics pages are read, until the configuration changes.
type pages struct {
	source   Source
	client   *http.Client // nil: no pages are read
	programs *page.Programs
	further  []*furtherPage
	busy     time.Duration
}

func newPages(source Source, extractor page.Extractor, timeout, busy time.Duration) (*pages, error) {
	if source == (Source{}) {
		return &pages{busy: busy}, nil
	}
	programs, err := extractor.Compile()
	if err != nil {
		return nil, err
	}
	transport, err := source.transport(timeout)
	if err != nil {
		return nil, err
	}
	if source.Interval > 0 {
		busy = max(source.Interval, minInterval)
	}
	client := &http.Client{Transport: transport, CheckRedirect: noRedirect}
	return &pages{source: source, client: client, programs: programs, busy: busy}, nil
}

func (p *pages) closeIdle() {
	if p == nil {
		return
	}
	if p.client != nil {
		p.client.CloseIdleConnections()
	}
	for _, f := range p.further {
		f.client.CloseIdleConnections()
	}
}

// noRedirect makes a redirect a failure: otherwise an engine could make the picker send requests to any address.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// lanes bound how many scrapes run at the same time. Endpoints whose last scrape succeeded have a lane apart from the others,
// so that endpoints that use up their timeout delay no healthy one. An endpoint that starts to fail occupies a place among
// the healthy ones once, for at most the timeout.
type lanes struct{ proven, unproven chan struct{} }

func newLanes() lanes { return lanes{make(chan struct{}, 64), make(chan struct{}, 32)} }

// enter waits for a place. ok is false if ctx ended first.
func (l lanes) enter(ctx context.Context, proven bool) (leave func(), ok bool) {
	lane := l.unproven
	if proven {
		lane = l.proven
	}
	select {
	case lane <- struct{}{}:
		return func() { <-lane }, true
	case <-ctx.Done():
		return nil, false
	}
}

// scraper reads the page of one endpoint repeatedly.
type scraper struct {
	pool   *Pool
	member *member
	schedule
	proven   bool // the last scrape succeeded
	timeouts int  // scrapes in a row that got no answer
	doubted  bool // another picker has found the endpoint unreachable, or reachable again, and the scrape that runs is to tell
	pages    *pages
	program  *page.Program
	request  *http.Request
	further  furtherReads
	sglang   sglangPages
}

// run reads the page until ctx ends.
func (s *scraper) run(ctx context.Context) {
	timer := time.NewTimer(time.Duration(rand.Float64() * float64(s.pool.options.Busy)))
	defer timer.Stop()
	defer s.further.work.Wait()
	defer wake(s.member.turned) // the scraper of the endpoint's next version may have missed a value that this one got
	for {
		var busy bool // at some moment since the page was read
		select {
		case <-ctx.Done():
			return
		case <-s.member.turned:
			busy = true
		case <-s.member.doubted:
			s.doubted = true
			s.turn(ctx)
			s.doubted = false
			s.member.Arm()
			busy = s.member.busy()
		case <-timer.C:
			s.turn(ctx)
			s.member.Arm() // before busy is asked, so that no request is missed
			busy = s.member.busy()
		}
		timer.Reset(s.wait(time.Now(), busy))
	}
}

// turn reads the page once and stores its load.
func (s *scraper) turn(ctx context.Context) {
	s.prepare()
	s.readFurther(ctx)
	if s.pages.client == nil {
		s.done(time.Now(), true)
		return
	}
	leave, ok := s.pool.lanes.enter(ctx, s.proven)
	if !ok {
		return
	}
	start, sent := time.Now(), s.member.InFlight()
	load, err := s.read(ctx)
	now := time.Now()
	leave()
	if ctx.Err() != nil {
		return // the endpoint has left, or the pool stops: the error says nothing about the endpoint
	}
	s.pool.metrics.scraped(resultOf(err), now.Sub(start))
	s.tell(err)
	s.done(now, err == nil)
	if s.timeouts++; resultOf(err) != "timeout" {
		s.timeouts = 0
	}
	switch {
	case err == nil:
		load.At, load.Sent = start, sent // the engine wrote the page since
		load.LearnBatch(s.member.load.Load())
		s.pool.store(s.member, &load)
	case s.unreachable(err):
		s.soon(now)
		s.pool.markUnreachable(s.member)
	case s.timeouts > 0:
		s.soon(now)
	}
}

// hungTimeouts is how many readings in a row must get no answer until the endpoint counts as hung: a busy engine may be slow to answer
// one.
const hungTimeouts = 2

// unreachable reports whether a failed reading means that requests would fail too: the address for requests accepts no
// connection, or repeatedly answers nothing, or the sidecar there reports that its engine does not answer. If the page has a port of its own, the failure
// says nothing about requests: that port may be wrong.
func (s *scraper) unreachable(err error) bool {
	if s.request == nil || s.request.URL.Host != s.member.Address {
		return false
	}
	var status errStatus
	hung := s.timeouts >= hungTimeouts || s.doubted && s.timeouts > 0 // another picker's readings got no answer before
	return unconnected(err) || hung || errors.As(err, &status) && (status == http.StatusBadGateway || status == http.StatusServiceUnavailable)
}

// unconnected reports whether an address accepted no connection in time. Other failures to connect, such as too many open files,
// are this process's own.
func unconnected(err error) bool {
	var dial *net.OpError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.As(err, &dial) && dial.Op == "dial" && dial.Timeout()
}

// prepare adopts a changed configuration.
func (s *scraper) prepare() {
	pages := s.pool.pages.Load()
	if pages == s.pages {
		return
	}
	s.pages, s.busy, s.idle = pages, pages.busy, max(s.pool.options.Idle, pages.busy)
	s.adoptFurther(pages.further)
	if pages.client == nil {
		s.pool.forget(s.member)
		return
	}
	var known bool
	if s.program, known = pages.programs.Of(s.member.Labels); !known {
		s.pool.options.Log.Warn("endpoint names an engine that is not configured; its metrics are read as the default engine's",
			"endpoint", s.member.String(), "label", pages.programs.Label, "engine", s.member.Labels[pages.programs.Label])
	}
	s.address()
}

// address makes the request for the page. An operator's own path counts more than the engine's.
func (s *scraper) address() {
	source := s.pages.source
	if s.program.Path != "" && source.Path == DefaultSource().Path {
		source.Path = s.program.Path
	}
	s.request, _ = source.request(s.member.Metrics)
}

// tell logs that the page has become unreadable, or readable again.
func (s *scraper) tell(err error) {
	switch {
	case err != nil && s.failures == 0:
		s.pool.options.Log.Warn("metrics page cannot be read", "endpoint", s.member.String(), "error", err)
	case err == nil && s.failures > 0:
		s.pool.options.Log.Info("metrics page can be read again", "endpoint", s.member.String(), "failures", s.failures)
	}
	s.proven = err == nil
}

var readers = sync.Pool{New: func() any { return new(page.Reader) }}

// errStatus is the status of an answer that is not a page.
type errStatus int

func (e errStatus) Error() string { return fmt.Sprintf("status %d", int(e)) }

// read reads the page, and what else the engine has of its own, and returns the load that they report.
func (s *scraper) read(ctx context.Context) (epp.Load, error) {
	if s.request == nil {
		return epp.Load{}, fmt.Errorf("%q is no host:port", s.member.Metrics)
	}
	ctx, cancel := context.WithTimeout(ctx, s.pool.options.Timeout)
	defer cancel()
	load, err := s.readPage(ctx)
	if errors.Is(err, page.ErrNoValues) && s.adopt(load.Engine) {
		load, err = s.readPage(ctx)
	}
	switch {
	case err != nil:
		s.sglang = sglangPages{} // the next page may be of an engine that was started anew
		return epp.Load{}, err
	case load.Engine == epp.EngineSGLang:
		s.readSGLang(ctx, &load)
	}
	return load, nil
}

// readPage reads the metrics page. After page.ErrNoValues only the engine may be known.
func (s *scraper) readPage(ctx context.Context) (epp.Load, error) {
	answer, err := s.pages.client.Do(s.request.WithContext(ctx))
	if err != nil {
		return epp.Load{}, err
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode != http.StatusOK:
		return epp.Load{}, errStatus(answer.StatusCode)
	case answer.ContentLength > s.pool.options.PageLimit:
		return epp.Load{}, page.ErrTooLarge
	}
	if s.request.URL.Host == s.member.Address { // otherwise it does not come by way of what takes the requests
		s.member.SetPeer(peerOf(answer.Header), reads(answer.Header, pd.SidecarReadsRanks), reads(answer.Header, pd.SidecarReadsSource))
	}
	r := readers.Get().(*page.Reader)
	defer readers.Put(r)
	load, err := r.Read(answer.Body, s.pool.options.PageLimit, s.program, s.member.load.Load())
	if err != nil {
		return load, fmt.Errorf("reading the page: %w", err)
	}
	return load, nil
}

// peerOf tells by the header of a metrics page whether Tandem's sidecar has passed it on.
func peerOf(h http.Header) epp.Peer {
	if h.Get(pd.HeaderSidecar) == pd.SidecarTakesPlans {
		return epp.PeerTandem
	}
	return epp.PeerOther
}

// reads tells by the header of a metrics page whether the sidecar that has passed it on reads an optional part of plans.
func reads(h http.Header, part string) bool {
	for member := range strings.SplitSeq(h.Get(pd.HeaderSidecarReads), ",") {
		if strings.TrimSpace(member) == part {
			return true
		}
	}
	return false
}

// resultOf returns the label of a scrape's result in metrics.
func resultOf(err error) string {
	var status errStatus
	var unreachable *url.Error
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, page.ErrTooLarge):
		return "too-large"
	case errors.Is(err, page.ErrNoValues):
		return "no-values"
	case errors.As(err, &status):
		return "status"
	case errors.As(err, &unreachable):
		return "unreachable"
	}
	return "broken"
}
