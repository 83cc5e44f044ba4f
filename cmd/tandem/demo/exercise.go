package demo

import (
	"context"
	"net/http"

	"github.com/tandem-serving/tandem/e2e/sim"
)

// exchange is one question, both answers, and the KV that moved meanwhile.
type exchange struct {
	question
	answer
	failure   error // why there is no whole answer
	reference answer
	kvBytes   int64 // that the decode engine read
}

// evidence is all that the demo saw.
type evidence struct {
	exchanges []exchange
	// At the end, when all answers were there.
	prefill, decode, reference sim.State
	blockBytes                 int64
	ended                      error // how the programs ended
}

// exercise asks all questions, one after the other, because the KV that moved is counted by engine and not by request.
func (s *stage) exercise(ctx context.Context) (seen evidence, err error) {
	model, err := sim.NamedModel(modelName)
	if err != nil {
		return seen, err
	}
	seen.blockBytes = int64(blockSize * model.StoredBytesPerToken)
	for _, q := range questions() {
		x, err := s.compare(ctx, q)
		if err != nil {
			return seen, err
		}
		seen.exchanges = append(seen.exchanges, x)
	}
	for _, one := range []struct {
		engine engine
		to     *sim.State
	}{{s.prefill, &seen.prefill}, {s.decode, &seen.decode}, {s.reference, &seen.reference}} {
		if *one.to, err = s.settle(ctx, one.engine); err != nil {
			return seen, err
		}
	}
	return seen, nil
}

// compare asks the stack and the reference. A stack that fails is something to report; the error is that of the demo.
func (s *stage) compare(ctx context.Context, q question) (x exchange, err error) {
	x.question = q
	before, err := s.state(ctx, s.decode)
	if err != nil {
		return x, err
	}
	x.answer, x.failure = s.ask(ctx, s.sidecar, q, q.header(s.prefill.address))
	after, err := s.state(ctx, s.decode)
	if err != nil {
		return x, err
	}
	x.kvBytes = after.KVBytesRead - before.KVBytesRead
	x.reference, err = s.ask(ctx, s.reference.address, q, http.Header{})
	return x, err
}
