package intake

import (
	"net/http"
	"sync"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// Request is a request whose whole body is in memory, as the segments in which it arrived.
type Request struct {
	*request.Request
	Fit  request.Fit
	AsIs bool // the body is not JSON, and can only be sent unchanged

	body body.Body
}

const (
	// firstSegment and maxSegment bound the segments of a body of unknown length (bytes): small enough that an ordinary
	// request wastes little, large enough that a long one has few.
	firstSegment = 16 << 10
	maxSegment   = 256 << 10
)

var scanners = sync.Pool{New: func() any { return new(body.Scanner) }}

// Receive buffers the body of r, for which paced was begun, and scans it while it arrives. buf accounts for its memory: the
// caller must call buf.Release when it no longer needs the request, also after an error.
//
// The error is a *pd.Refusal or ErrClientLeft.
func (in *Intake) Receive(r *http.Request, paced *PacedBody, api pd.API, buf *Buffer) (*Request, error) {
	if r.ContentLength > in.BodyLimit {
		return nil, in.TooLarge()
	}
	if !in.buffered.Fits(r.ContentLength) {
		return nil, busy()
	}
	scan := scanners.Get().(*body.Scanner)
	req := &Request{}
	*buf = Buffer{scan: scan, body: &req.body, counter: in.buffered}
	scan.Reset(in.Table.Members(), in.limits(), nil)
	scanErr, err := in.readBody(r, paced, buf)
	if err == nil && scanErr == nil {
		scanErr = scan.Close()
	}
	req.Request = in.Table.Request(api, &req.body, scan)
	switch {
	case err != nil:
		return nil, err
	case scanErr != nil:
		return in.unreadable(req, scanErr)
	}
	req.Fit = req.Request.Fit()
	return req, nil
}

// readBody reads the whole body, even if the scanner failed, because the engine gets all of it.
func (in *Intake) readBody(r *http.Request, paced *PacedBody, buf *Buffer) (scanErr, err error) {
	left := r.ContentLength // -1 = unknown
	size := int64(firstSegment)
	for {
		if left >= 0 {
			size = left + 1 // one byte more, so that the end is found without another segment
		}
		size = in.segmentSize(size)
		if !buf.take(size) {
			return scanErr, busy()
		}
		segment := make([]byte, 0, size)
		for len(segment) < cap(segment) {
			n, readErr := r.Body.Read(segment[len(segment):cap(segment)])
			chunk := segment[len(segment) : len(segment)+n]
			segment = segment[:len(segment)+n]
			if scanErr == nil {
				_, scanErr = buf.scan.Write(chunk)
			}
			if refusal := in.RefusalOf(scanErr); refusal != nil {
				return scanErr, refusal
			}
			if readErr != nil {
				buf.body.Append(segment)
				return scanErr, paced.Failure(readErr)
			}
			if buf.body.Len()+int64(len(segment)) > in.BodyLimit {
				return scanErr, in.TooLarge()
			}
		}
		buf.body.Append(segment)
		left = max(left-int64(len(segment)), -1)
		size = min(2*size, maxSegment)
	}
}

// segmentSize returns the size of a new segment for a body of which n bytes are expected. A client that announces bytes and
// does not send them costs a whole segment, so segments are small while memory is scarce.
func (in *Intake) segmentSize(n int64) int64 {
	if in.buffered.Scarce() {
		return min(n, firstSegment)
	}
	return min(n, maxSegment)
}

// unreadable decides about a body that is not valid JSON. It goes to the engine unchanged, because the engine's own error
// explains it best, unless it may hide members that no client may send.
func (in *Intake) unreadable(req *Request, err error) (*Request, error) {
	if in.Table.Members().Mentions(&req.body, in.strips) {
		return nil, pd.Refuse(pd.BadRequest, "The request body is not valid JSON (%v), and names members that only engines may exchange.", err)
	}
	req.Fit, req.AsIs = request.FitDoubted, true
	return req, nil
}

// Buffer accounts for a buffered body and the last leg that was made from it. The zero value accounts for nothing.
type Buffer struct {
	// Leg is the last leg's body, which shares segments with the client's.
	Leg [][]byte

	counter *pd.BufferedBytes
	size    int64         // how much of counter belongs to this body
	scan    *body.Scanner // from scanners
	body    *body.Body
	derived *body.Body // made of body; nil: none is
}

// Derive notes a body that was made of this one and shares its segments: it is dropped with it.
func (b *Buffer) Derive(made *body.Body) { b.derived = made }

// take counts n more bytes of the body. It returns false if they must not be buffered.
func (b *Buffer) take(n int64) bool {
	if !b.counter.Take(n) {
		return false
	}
	b.size += n
	return true
}

// Release returns the scanner and the body's count; the request must not be edited after it. The segments stay, because
// running legs still read them. A release of the hand-off that is sent with them ends within moments, and is not counted.
func (b *Buffer) Release() {
	if b.scan == nil {
		return
	}
	scanners.Put(b.scan)
	b.counter.Release(b.size)
	b.scan, b.size = nil, 0
}

// Drop releases the body and its segments. No further leg may be made from it, and the last one must have its answer, whose
// rest may take minutes. net/http keeps that leg; a goroutine that still writes it has slices of its own.
func (b *Buffer) Drop() {
	b.Release()
	if b.body != nil {
		b.body.Reset()
	}
	if b.derived != nil {
		b.derived.Reset()
	}
	clear(b.Leg)
	b.body, b.derived, b.Leg = nil, nil, nil
}
