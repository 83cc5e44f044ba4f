package transport

import (
	"context"
	"io"
	"net"
	"net/http"
)

// NewLeg makes the request of one engine leg. length is the length of the body in bytes, -1 if it is not known; open returns
// the body from its beginning. header belongs to the leg from here on.
//
// The leg may be sent again if the engine had closed the idle connection. net/http does so by itself for requests that it
// takes for idempotent, if no byte of an answer has been read, the connection was not new, and the body can be opened again.
// The nil Idempotency-Key marks the request as idempotent without being sent.
func NewLeg(ctx context.Context, url string, header http.Header, length int64, open func() (io.ReadCloser, error)) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header = header
	if _, ok := header["Idempotency-Key"]; !ok {
		header["Idempotency-Key"] = nil
	}
	if length == 0 {
		req.Body = http.NoBody
		return req, nil
	}
	req.ContentLength = length
	req.GetBody = open
	req.Body, err = open()
	return req, err
}

// NewBufferedLeg is NewLeg for a buffered body of length bytes.
func NewBufferedLeg(ctx context.Context, url string, header http.Header, segments [][]byte, length int64) (*http.Request, error) {
	return NewLeg(ctx, url, header, length, func() (io.ReadCloser, error) { return newSegmentReader(segments), nil })
}

// segmentReader reads segments in order without joining them.
type segmentReader struct{ rest net.Buffers }

func newSegmentReader(segments [][]byte) *segmentReader {
	// net.Buffers consumes its outer slice, and the segments are needed again.
	return &segmentReader{rest: append(net.Buffers(nil), segments...)}
}

// Read implements io.Reader.
func (r *segmentReader) Read(p []byte) (int, error) { return r.rest.Read(p) }

// Close implements io.Closer.
func (r *segmentReader) Close() error { return nil }

// len returns the number of bytes left.
func (r *segmentReader) len() int64 {
	var n int64
	for _, segment := range r.rest {
		n += int64(len(segment))
	}
	return n
}
