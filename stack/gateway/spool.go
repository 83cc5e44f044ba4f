package gateway

import (
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/tandem-serving/tandem/epp/extproc/client"
)

// spool stores the request's body as the picker returns it. Each try reads it from the beginning. Up to the limit everything is
// stored for another try; beyond it, chunks that the only try has read are dropped. Chunks that no try has read yet are always
// stored: the picker bounds them.
type spool struct {
	limit int64

	mu      sync.Mutex
	more    sync.Cond
	chunks  [][]byte
	size    int64 // of all chunks so far
	first   int   // number of the first chunk that is still stored
	ended   bool
	err     error
	trailer http.Header
}

func newSpool(limit int64) *spool {
	s := &spool{limit: limit}
	s.more.L = &s.mu
	return s
}

// add appends a chunk. last ends the body, unless trailers follow.
func (s *spool) add(chunk []byte, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(chunk) > 0 {
		s.chunks = append(s.chunks, chunk)
		s.size += int64(len(chunk))
	}
	s.ended = s.ended || last && s.trailer == nil
	s.more.Broadcast()
}

// end ends the body with an error, unless it has ended before.
func (s *spool) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.ended, s.err = true, err
	}
	s.more.Broadcast()
}

// expectTrailer stores the client's trailers, which end the body once the picker has answered them.
func (s *spool) expectTrailer(h http.Header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trailer = h.Clone()
}

// endWithTrailer ends the body with the client's trailers, as the picker changed them.
func (s *spool) endWithTrailer(m client.Mutation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.Apply(s.trailer, nil)
	s.ended = true
	s.more.Broadcast()
}

// failure returns the error that ended the body too early, or nil.
func (s *spool) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// repeatable reports whether a new reader would get the whole body.
func (s *spool) repeatable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first == 0
}

// next waits for the chunk with a number.
func (s *spool) next(number int, closed *bool) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		at := number - s.first
		switch {
		case *closed:
			return nil, http.ErrBodyReadAfterClose
		case at < 0:
			return nil, errors.New("the beginning of the body is not there any more")
		case at < len(s.chunks):
			if s.size > s.limit {
				s.drop(at)
			}
			return s.chunks[number-s.first], nil
		case s.err != nil:
			return nil, s.err
		case s.ended:
			return nil, io.EOF
		}
		s.more.Wait()
	}
}

// drop drops the first n chunks.
func (s *spool) drop(n int) {
	clear(s.chunks[:n])
	s.chunks, s.first = s.chunks[n:], s.first+n
}

// reader reads the body for one try.
type reader struct {
	spool   *spool
	number  int // of the next chunk
	rest    []byte
	closed  bool
	trailer http.Header // set at the end of the body, for the names that it has
}

func (s *spool) reader(trailer http.Header) *reader { return &reader{spool: s, trailer: trailer} }

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		chunk, err := r.spool.next(r.number, &r.closed)
		if err != nil {
			if err == io.EOF {
				r.fillTrailer()
			}
			return 0, err
		}
		r.number, r.rest = r.number+1, chunk
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *reader) fillTrailer() {
	r.spool.mu.Lock()
	defer r.spool.mu.Unlock()
	for name := range r.trailer {
		r.trailer[name] = r.spool.trailer[name]
	}
}

// Close ends a Read that waits, as http.Transport expects.
func (r *reader) Close() error {
	r.spool.mu.Lock()
	defer r.spool.mu.Unlock()
	r.closed = true
	r.spool.more.Broadcast()
	return nil
}
