package sidecar

import (
	"errors"
	"io"
	"sync"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// bufferedRequest is a whole request body in memory, in the segments it came in.
type bufferedRequest struct {
	*request.Request
	body body.Body
	scan *body.Scanner
	fit  request.Fit
	asIs bool // no edit is possible or needed: it goes to the local engine as it came
}

const (
	// firstSegment and maxSegment bound the segments of a body whose length is not known (bytes): small enough that an
	// ordinary request wastes little, large enough that a long one has few.
	firstSegment = 16 << 10
	maxSegment   = 256 << 10
	// bodyDepth is how deep encoding/json nests; engines give up far earlier.
	bodyDepth = 10000
)

func (s *Server) limits() body.Limits {
	return body.Limits{Depth: bodyDepth, Size: s.cfg.Trust.BodyLimit}
}

var scanners = sync.Pool{New: func() any { return new(body.Scanner) }}

// receive holds the body and scans it while it comes.
func (x *exchange) receive() (*bufferedRequest, error) {
	if x.r.ContentLength > x.s.cfg.Trust.BodyLimit {
		return nil, tooLarge(x.s.cfg.Trust.BodyLimit)
	}
	if !x.s.held.Fits(x.r.ContentLength) {
		return nil, heldTooMuch()
	}
	req := &bufferedRequest{scan: scanners.Get().(*body.Scanner)}
	x.holds = holding{scan: req.scan, body: &req.body, of: x.s.held}
	req.scan.Reset(request.Base.Members(), x.s.limits(), nil)
	scanErr, err := x.readBody(req)
	if err == nil && scanErr == nil {
		scanErr = req.scan.Close()
	}
	req.Request = request.Base.Request(x.api, &req.body, req.scan)
	switch {
	case err != nil:
		return nil, err
	case scanErr != nil:
		return x.unreadable(req, scanErr)
	}
	req.fit = req.Fit()
	return req, nil
}

// readBody reads to the end, also behind what the scanner could not read: the engine shall see all of it.
func (x *exchange) readBody(req *bufferedRequest) (scanErr, err error) {
	left := x.r.ContentLength // -1 = unknown
	size := int64(firstSegment)
	for {
		if left >= 0 {
			size = left + 1 // one more than is there, to meet the end without another segment
		}
		size = x.s.segmentSize(size)
		if !x.holds.take(size) {
			return scanErr, heldTooMuch()
		}
		segment := make([]byte, 0, size)
		for len(segment) < cap(segment) {
			n, readErr := x.r.Body.Read(segment[len(segment):cap(segment)])
			chunk := segment[len(segment) : len(segment)+n]
			segment = segment[:len(segment)+n]
			if scanErr == nil {
				_, scanErr = req.scan.Write(chunk)
			}
			if refusal := refusalOf(scanErr, x.s.cfg.Trust.BodyLimit); refusal != nil {
				return scanErr, refusal
			}
			if readErr != nil {
				req.body.Append(segment)
				return scanErr, x.readError(readErr)
			}
			if req.body.Len()+int64(len(segment)) > x.s.cfg.Trust.BodyLimit {
				return scanErr, tooLarge(x.s.cfg.Trust.BodyLimit)
			}
		}
		req.body.Append(segment)
		left = max(left-int64(len(segment)), -1)
		size = min(2*size, maxSegment)
	}
}

// readError tells the end of a body from a client that broke off.
func (x *exchange) readError(err error) error {
	switch {
	case err == io.EOF:
		return nil
	case x.body.late():
		return slowBody()
	case x.ctx.Err() != nil, errors.Is(err, io.ErrUnexpectedEOF):
		return x.gone()
	}
	return pd.Refuse(pd.BadRequest, "The request body could not be read: %v.", err)
}

// unreadable decides on a body that is not what JSON allows. The engine's own error is the best answer, so it goes there
// as it came, unless something may hide in it that no client may send.
func (x *exchange) unreadable(req *bufferedRequest, err error) (*bufferedRequest, error) {
	if request.Base.Members().Mentions(&req.body, x.s.strips) {
		return nil, pd.Refuse(pd.BadRequest, "The request body is not valid JSON (%v), and names members that only engines may exchange.", err)
	}
	req.fit, req.asIs = request.FitDoubted, true
	return req, nil
}

// refusalOf gives the refusal for a scanner's error that no engine needs to see, or nil.
func refusalOf(err error, limit int64) *pd.Refusal {
	if err == nil {
		return nil
	}
	var duplicate *body.DuplicateError
	switch {
	case errors.As(err, &duplicate):
		return pd.Refuse(pd.DuplicateKey, "The request body has the member %q twice.", duplicate.Path)
	case errors.Is(err, body.ErrTooLarge):
		return tooLarge(limit)
	case errors.Is(err, body.ErrTooDeep):
		return pd.Refuse(pd.BadRequest, "The request body is nested deeper than %d levels.", bodyDepth)
	case errors.Is(err, body.ErrEncoding):
		return pd.Refuse(pd.BadRequest, "The request body is not UTF-8. JSON must be sent as UTF-8.")
	case errors.Is(err, body.ErrTooMany):
		return pd.Refuse(pd.BadRequest, "The request body repeats controlled members too often.")
	case errors.Is(err, body.ErrHidden):
		return pd.Refuse(pd.BadRequest, "The request body names members that only engines may exchange, where they cannot be taken out.")
	}
	return nil
}

func tooLarge(limit int64) *pd.Refusal {
	return pd.Refuse(pd.TooLarge, "The request body is larger than %d bytes.", limit)
}
