package intake

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// Config limits what a client may send.
type Config struct {
	// BodyPause is the longest wait for the next part of a body. pd.BodyRate is the rate at which it must come in addition.
	BodyPause time.Duration
	// BodyLimit is the largest body that is buffered, or streamed to a generate call (bytes).
	BodyLimit int64
	// BufferLimit is how many bytes of bodies may be buffered, over all requests.
	BufferLimit int64
	// Table lists the members that a scan finds, and those that are removed from what clients send.
	Table *request.Table
	Log   *slog.Logger
}

// Intake reads requests within the limits of its configuration. Make it with New; it is safe for concurrent use.
type Intake struct {
	Config
	buffered *pd.BufferedBytes
	strips   func(want int) bool // Table.Strips as a function value
}

// New makes an Intake.
func New(c Config) *Intake {
	return &Intake{Config: c, buffered: pd.NewBufferedBytes(c.BufferLimit), strips: c.Table.Strips}
}

// Buffered returns how many bytes of bodies are buffered now.
func (in *Intake) Buffered() float64 { return in.buffered.Bytes() }

// Scarce reports whether more than half of the memory for bodies is taken.
func (in *Intake) Scarce() bool { return in.buffered.Scarce() }

// maxDepth is the nesting limit of encoding/json; engines have far lower ones.
const maxDepth = 10000

func (in *Intake) limits() body.Limits {
	return body.Limits{Depth: maxDepth, Size: in.BodyLimit}
}

// MaxHeaders is the most header lines of a request: each costs hundreds of bytes in memory, and four on the wire. Envoy
// accepts 100, and adds some.
const MaxHeaders = 256

// CheckHeaders wraps a handler and refuses requests with too many header lines.
func (in *Intake) CheckHeaders(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lines := 0
		for _, values := range r.Header {
			lines += len(values)
		}
		if lines > MaxHeaders {
			in.Refuse(w, r, pd.Refuse(pd.LongHeader, "The request has more than %d header lines.", MaxHeaders))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// Refuse answers a request that is refused before any decision about it.
func (in *Intake) Refuse(w http.ResponseWriter, r *http.Request, refusal *pd.Refusal) {
	api := pd.APIOf(r.URL.Path)
	if IsGRPC(r) {
		api = pd.APIVLLMGenerate
	}
	if err := refusal.Write(w, api, refusal.Result(), true); err != nil {
		in.Log.Debug("answering a request", "error", err)
	}
}

// CheckEncoding refuses a compressed body, and returns nil for others: an engine that decompresses it would read what the
// sidecar has not seen.
func CheckEncoding(h http.Header) *pd.Refusal {
	for _, coding := range h["Content-Encoding"] {
		if coding != "" && !strings.EqualFold(coding, "identity") {
			return pd.Refuse(pd.BadRequest, "The request body is compressed (%q). It must be sent as it is.", coding)
		}
	}
	return nil
}

// TooLarge returns the refusal of a body beyond Config.BodyLimit.
func (in *Intake) TooLarge() *pd.Refusal {
	return pd.Refuse(pd.TooLarge, "The request body is larger than %d bytes.", in.BodyLimit)
}

// busy returns the refusal of a body beyond Config.BufferLimit.
func busy() *pd.Refusal {
	return pd.Refuse(pd.Busy, "This pod holds as many request bodies as it may. Try again; another pod may have room.")
}

// slowBody returns the refusal of a body that does not arrive in time.
func slowBody() *pd.Refusal {
	return pd.Refuse(pd.SlowBody, "The request body did not arrive in time. Send it again without pauses.")
}

// RefusalOf returns the refusal for an error of scanning a body, nil for other errors and for those that the engine explains
// better.
func (in *Intake) RefusalOf(err error) *pd.Refusal {
	if err == nil {
		return nil
	}
	var refusal *pd.Refusal // of a guard
	var duplicate *body.DuplicateError
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.As(err, &duplicate):
		return pd.Refuse(pd.DuplicateKey, "The request body has the member %q twice.", duplicate.Path)
	case errors.Is(err, body.ErrTooLarge):
		return in.TooLarge()
	case errors.Is(err, body.ErrTooDeep):
		return pd.Refuse(pd.BadRequest, "The request body is nested deeper than %d levels.", maxDepth)
	case errors.Is(err, body.ErrEncoding):
		return pd.Refuse(pd.BadRequest, "The request body is not UTF-8. JSON must be sent as UTF-8.")
	case errors.Is(err, body.ErrTooMany):
		return pd.Refuse(pd.BadRequest, "The request body repeats controlled members too often.")
	case errors.Is(err, body.ErrHidden):
		return pd.Refuse(pd.BadRequest, "The request body names members that only engines may exchange, where they cannot be taken out.")
	}
	return nil
}
