package relay

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/tandem-serving/tandem/pd/body"
)

// ErrCompressed says that an answer is compressed, and so keeps the engine's name of the model.
var ErrCompressed = errors.New("the answer is compressed, so it keeps the engine's name of the model")

// RenameModel makes an answer carry the client's name of the model, if Client.Rename is set. It must be called before the
// answer is read. The error is ErrCompressed.
func (c *Client) RenameModel(resp *http.Response) error {
	if c.Rename == nil {
		return nil
	}
	events := IsEventStream(resp.Header)
	if !events && !isJSON(resp.Header) {
		return nil
	}
	if Encoded(resp.Header) {
		return ErrCompressed
	}
	resp.Body = &renaming{ReadCloser: resp.Body, by: body.NewRenamer(c.Rename.Answers, c.Rename.Asked, events)}
	resp.Header.Del("Content-Length") // the two names may differ in length
	resp.ContentLength = -1
	return nil
}

func isJSON(h http.Header) bool {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// renaming is an answer's body that a Renamer edits.
type renaming struct {
	io.ReadCloser
	by    *body.Renamer
	buf   []byte
	parts [][]byte // not yet read
	rest  [][]byte // the unread end of parts
	err   error    // of the source
}

// Read implements io.Reader. It waits only if it has no byte to return.
func (r *renaming) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.fill(len(p))
	}
	n := 0
	for len(r.rest) > 0 && n < len(p) {
		k := copy(p[n:], r.rest[0])
		n += k
		if r.rest[0] = r.rest[0][k:]; len(r.rest[0]) == 0 {
			r.rest = r.rest[1:]
		}
	}
	return n, nil
}

// fill reads the source once, for a reader of size bytes, into a buffer that is no larger than that while bytes come slowly.
func (r *renaming) fill(size int) {
	if size = min(max(size, waitBuffer), burstBuffer); len(r.buf) < size {
		r.buf = make([]byte, size)
	}
	var n int
	n, r.err = r.ReadCloser.Read(r.buf)
	r.parts = r.by.Feed(r.parts[:0], r.buf[:n])
	if r.err != nil {
		if pending := r.by.Close(); len(pending) > 0 {
			r.parts = append(r.parts, pending)
		}
	}
	r.rest = r.parts
}
