package warmup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

const (
	// idPrefix begins the request ids of the warm-up. In the log of a vLLM engine that logs requests they are
	// cmpl-tandem-warmup-….
	idPrefix = "tandem-warmup-"
	// prompt follows the request id, so that no cache has it: a decode engine does not pull what it has cached.
	prompt = " Tandem warms this pair up."
	// growth is the factor by which the prompt grows after a try without a hand-off, and maxGrowths the number of such tries.
	// Models with hybrid attention hand over only whole blocks, of up to some 2,200 tokens.
	growth, maxGrowths = 8, 3
	// handOffTimeout bounds one hand-off of the warm-up. A failing handshake takes engines 5 s.
	handOffTimeout = 15 * time.Second
	// maxModels limits the decode engine's list of models (bytes).
	maxModels = 16 << 20
)

// Errors after which another try is useless. The sidecar has no API key: clients send theirs with requests.
var (
	// ErrLocked says that the prefill engine requires an API key.
	ErrLocked       = errors.New("the prefill engine asks for a key")
	errDecodeLocked = errors.New("the decode engine asks for a key")
	errNoHandoff    = errors.New("the prefill engine hands nothing over, however long the prompt")
)

// IsLocked reports whether a status means that the engine requires an API key.
func IsLocked(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// warmUp has one hand-off of a few tokens run from a prefill engine to the decode engine.
func (w *Warmup) warmUp(ctx context.Context, t pd.Target) error {
	ctx, cancel := context.WithTimeout(ctx, handOffTimeout)
	defer cancel()
	model, err := w.model(ctx)
	if err != nil {
		return fmt.Errorf("asking decode for its model: %w", err)
	}
	id := idPrefix + transport.RequestID(nil)
	body, err := json.Marshal(map[string]any{"model": model, "prompt": id + strings.Repeat(prompt, w.promptLength(t)), "max_tokens": 1, "temperature": 0})
	if err != nil {
		return err
	}
	header := http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {id}, "User-Agent": transport.NoAgent,
		"Accept-Encoding": transport.Identity}
	return w.HandOff(ctx, t, header, body)
}

// promptLength returns how many times the prompt is repeated.
func (w *Warmup) promptLength(t pd.Target) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 1
	if p := w.pairs[t]; p != nil {
		for range p.grown {
			n *= growth
		}
	}
	return n
}

var errNoModel = errors.New("it serves none")

// model asks the decode engine for its models and returns the name of the first.
func (w *Warmup) model(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.Decode.URL+"/v1/models", nil)
	if err != nil {
		return "", err
	}
	resp, err := w.Decode.Transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if IsLocked(resp.StatusCode) {
		return "", fmt.Errorf("%w: it answered %s", errDecodeLocked, resp.Status)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxModels)).Decode(&list); err != nil {
		return "", err
	}
	if len(list.Data) == 0 || list.Data[0].ID == "" {
		return "", errNoModel
	}
	return list.Data[0].ID, nil
}
