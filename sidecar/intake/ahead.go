package intake

import (
	"io"
	"net/http"
	"sync"

	"github.com/tandem-serving/tandem/pd"
)

// LookAhead reads the body of r, for which paced was begun and whose length is not known, until it ends or is longer than a limit (bytes),
// or memory is scarce. r then has the same body again, and, if whole, its length. The caller must call free when the request is over, also
// after an error, which is as Receive's.
func (in *Intake) LookAhead(r *http.Request, paced *PacedBody, limit int64) (whole bool, free func(), err error) {
	a := &ahead{rest: r.Body, counter: in.buffered}
	defer func() { r.Body = a }()
	for size := int64(firstSegment); a.size <= limit && in.buffered.Take(size); size = min(2*size, maxSegment) {
		segment := make([]byte, 0, size)
		a.size += size
		for len(segment) < cap(segment) {
			n, readErr := r.Body.Read(segment[len(segment):cap(segment)])
			segment = segment[:len(segment)+n]
			if readErr != nil {
				a.segments = append(a.segments, segment)
				if err = paced.Failure(readErr); err == nil {
					r.ContentLength, r.TransferEncoding = a.length(), nil
				}
				return err == nil, a.free, err
			}
		}
		a.segments = append(a.segments, segment)
	}
	return false, a.free, nil
}

// ahead is a body of which the beginning was read.
type ahead struct {
	rest    io.ReadCloser
	counter *pd.BufferedBytes

	mu       sync.Mutex // guards the rest: the end of a request may free what a leg still reads
	segments [][]byte   // what of the beginning is still to be read again
	size     int64      // how much of counter belongs to it
}

func (a *ahead) length() (n int64) {
	for _, s := range a.segments {
		n += int64(len(s))
	}
	return n
}

// Read implements io.Reader.
func (a *ahead) Read(p []byte) (int, error) {
	if n := a.again(p); n > 0 || len(p) == 0 {
		return n, nil
	}
	return a.rest.Read(p)
}

// again reads what was read already.
func (a *ahead) again(p []byte) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.segments) > 0 && n < len(p) {
		copied := copy(p[n:], a.segments[0])
		n += copied
		if a.segments[0] = a.segments[0][copied:]; len(a.segments[0]) == 0 {
			a.segments[0], a.segments = nil, a.segments[1:]
		}
	}
	if len(a.segments) == 0 {
		a.release()
	}
	return n
}

// Close implements io.Closer.
func (a *ahead) Close() error {
	a.free()
	return a.rest.Close()
}

// free drops the beginning.
func (a *ahead) free() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.segments = nil
	a.release()
}

// release gives the memory back. The caller holds mu.
func (a *ahead) release() {
	a.counter.Release(a.size)
	a.size = 0
}
