package pool

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool/page"
)

// sglangPages are the pages of one SGLang engine that are read beside its metrics page, from the same port. The zero value has read
// none.
type sglangPages struct {
	loads, info ownPage
	mode        epp.EngineMode // of the last reading
	noPrefixes  bool           // as info said last
}

// ownPage is one of them.
type ownPage struct {
	due    time.Time // of the next reading
	failed bool      // the last reading
}

const (
	// infoInterval is how often an engine is asked whether it keeps prefixes. It says the same until it is started anew.
	infoInterval = 30 * time.Second
	// ownPagePause is how long a page that could not be read is left alone. Engines of older versions do not have it.
	ownPagePause = maxPause
)

// readSGLang completes the load on an SGLang engine's metrics page by the engine's own pages. Where these cannot be read, the
// metrics page counts.
func (s *scraper) readSGLang(ctx context.Context, load *epp.Load) {
	p, now := &s.sglang, time.Now()
	if !now.Before(p.loads.due) {
		s.readOwn(ctx, &p.loads, page.PathLoads, func(from io.Reader) error { return page.ReadLoads(from, load) })
	}
	if load.Mode != p.mode {
		p.mode, p.info, p.noPrefixes = load.Mode, ownPage{}, load.Mode == epp.EngineDecode
	}
	if !now.Before(p.info.due) {
		s.readOwn(ctx, &p.info, page.PathModelInfo, func(from io.Reader) (err error) {
			var off bool
			if off, err = page.ReadNoPrefixes(from); err == nil {
				p.noPrefixes, p.info.due = off, now.Add(spread(infoInterval, rand.Float64()))
			}
			return err
		})
	}
	load.Cache.NoPrefixes = p.noPrefixes
}

// readOwn reads one page, and tells when it has become unreadable, or readable again.
func (s *scraper) readOwn(ctx context.Context, p *ownPage, path string, read func(io.Reader) error) {
	source := s.pages.source
	source.Path = path
	err := s.readFrom(ctx, source, read)
	log := s.pool.options.Log.With("endpoint", s.member.String(), "page", path)
	switch {
	case err != nil && !p.failed:
		log.Warn("page of an SGLang engine cannot be read; its metrics page counts alone", "error", err)
	case err == nil && p.failed:
		log.Info("page of an SGLang engine can be read again")
	}
	if p.failed = err != nil; p.failed {
		p.due = time.Now().Add(ownPagePause)
	}
}

// readFrom reads a page of the endpoint.
func (s *scraper) readFrom(ctx context.Context, source Source, read func(io.Reader) error) error {
	request, err := source.request(s.member.Metrics)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	answer, err := s.pages.client.Do(request.WithContext(ctx))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errStatus(answer.StatusCode)
	}
	return read(answer.Body)
}

// adopt has the page read as that of the engine that it was noticed to be, and reports whether that changes anything.
func (s *scraper) adopt(engine string) bool {
	prog, ok := s.pages.programs.Noticed(s.member.Labels, engine)
	if !ok || prog == s.program {
		return false
	}
	s.pool.options.Log.Info("endpoint's engine is known by its metrics page", "endpoint", s.member.String(), "engine", engine)
	s.program = prog
	s.address()
	return true
}
