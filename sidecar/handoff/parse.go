package handoff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/sidecar/continuation"
	"github.com/tandem-serving/tandem/sidecar/relay"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// parsers knows whether other engines can parse the chats that go on there: all are started in the same way as the local one.
type parsers struct {
	turn chan struct{} // has an element while an engine parses, and for a while after

	mu    sync.Mutex
	asked chan struct{}   // closed when the local engine has answered; nil: it is to be asked
	none  bool            // it does not parse for others
	able  map[string]bool // URLs of engines that have parsed
}

// knows reports whether an engine has parsed before.
func (p *parsers) knows(url string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.able[url]
}

// note notes that an engine has parsed.
func (p *parsers) note(url string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.able) >= maxWatched || p.able == nil {
		p.able = map[string]bool{}
	}
	p.able[url] = true
}

// may reports whether other engines may be able to parse chats. It waits a while for the local engine's answer.
func (p *parsers) may(ctx context.Context, legs *Legs) bool {
	p.mu.Lock()
	if p.asked == nil && legs.Ask != nil && legs.open.Err() == nil {
		asked := make(chan struct{})
		p.asked = asked
		legs.work.Go(func() { p.ask(legs, asked) })
	}
	asked := p.asked
	p.mu.Unlock()
	if asked != nil {
		await(ctx, asked, protocolPatience)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.none
}

// ask asks the local engine, with a body that no engine can parse.
func (p *parsers) ask(legs *Legs, asked chan struct{}) {
	status, _, err := legs.Ask(legs.Decode, pd.RoleDecode).Post(legs.open, continuation.ParsePath, []byte("{}"), modeTimeout)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(asked)
	switch {
	case err == nil:
		p.none = refusesPath(status)
	case p.asked == asked:
		p.asked = nil
	}
}

// doubt has the local engine asked again: another one may be at its address.
func (p *parsers) doubt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = nil
}

// refusesPath reports whether an engine does not serve a path at all. vLLM answers 403 if it was started without --enable-scale-out.
func refusesPath(status int) bool {
	switch status {
	case http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	}
	return false
}

// errNoParser says that an engine cannot parse a stream for this sidecar.
var errNoParser = errors.New("the engine does not parse tokens: vLLM needs --enable-scale-out")

// parse asks an engine to parse tokens. The tokens so far are parsed again each time, so a sidecar asks one question after another, with a
// pause as long as the last answer took: that takes at most half of a thread from the streams of other engines.
func (o *ongoing) parse(ctx context.Context, engine transport.Engine, header http.Header, question []byte) ([]byte, error) {
	legs := o.x.legs
	select {
	case legs.parsers.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	began := time.Now()
	defer func() { time.AfterFunc(min(time.Since(began), time.Second), func() { <-legs.parsers.turn }) }()
	ctx, cancel := context.WithTimeout(ctx, legs.FirstEvent)
	defer cancel()
	answer, err := ask(ctx, engine, http.MethodPost, continuation.ParsePath, question, header)
	if err == nil {
		legs.parsers.note(engine.URL)
	}
	var refused *statusError
	if errors.As(err, &refused) && refusesPath(refused.status) {
		return nil, fmt.Errorf("%w: %w", errNoParser, err)
	}
	return answer, err
}

// parsedBody is the answer to a leg whose tokens the same engine parses.
type parsedBody struct {
	io.Closer
	from    io.Reader
	parsing *continuation.Parsing
	parse   func(question []byte) ([]byte, error)
	events  body.Events
	buf     []byte
	ready   []byte
	err     error
}

// parsedChunk is how much is read at once (bytes): some hundred tokens that have come while others were parsed.
const parsedChunk = 32 << 10

func newParsedBody(from io.ReadCloser, parsing *continuation.Parsing, parse func([]byte) ([]byte, error)) *parsedBody {
	return &parsedBody{Closer: from, from: from, parsing: parsing, parse: parse, events: body.Events{Limit: relay.MaxEvent}, buf: make([]byte, parsedChunk)}
}

// Read implements io.Reader.
func (b *parsedBody) Read(p []byte) (int, error) {
	for len(b.ready) == 0 && b.err == nil {
		n, err := b.from.Read(b.buf)
		failed := b.events.Feed(b.buf[:n], func(e body.Event) error {
			if b.parsing.Take(e); b.parsing.Full() {
				return b.leave()
			}
			return nil
		})
		if failed == nil {
			failed = b.leave()
		}
		if b.err = failed; b.err == nil {
			b.err = err
		}
	}
	if len(b.ready) == 0 {
		return 0, b.err
	}
	n := copy(p, b.ready)
	b.ready = b.ready[n:]
	return n, nil
}

// leave has the events parsed that were taken, and makes them ready.
func (b *parsedBody) leave() error {
	if question := b.parsing.Question(); question != nil {
		answer, err := b.parse(question)
		if err == nil {
			err = b.parsing.Answer(answer)
		}
		if err != nil {
			return fmt.Errorf("parsing a stream's tokens: %w", err)
		}
	}
	b.ready = append(b.ready, b.parsing.Events()...)
	return nil
}
